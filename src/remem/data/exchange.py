"""Words that stories treat alike, found by counting, and orders in which such words may change places.

If John and Mary do the same things in a set of stories, a story with the two exchanged is as good a story. A model that
learns stories by heart instead of the rule behind them has no hold on it. On text without such words there is nothing
to exchange, and nothing happens.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import combinations, product

import torch

from remem.data.babi_format import Story, Words
from remem.data.batch import UNSEEN_ANSWER
from remem.data.codec import TextCodec
from remem.data.dataset import Exchange
from remem.data.random import StableRandom

Cell = tuple[object, str, str]  # what is looked at, and two words or answers in it
Places = tuple[int, ...]  # where each word of a sentence stands in a question, or -1
_PART = re.compile(r"[^, ]+")  # an answer may name several things

RAREST = 10  # a cell with fewer stories in it and its counterpart tells nothing
SURPRISE = 30.0  # the largest (n - n')² / (n + n') of a cell: five and a half standard deviations
ENOUGH = 100_000  # pairs of a sentence and a question; more would take longer and tell the same
MEAN_SURPRISE = 2.5  # of all cells; chance gives about one, but cells share their stories


def exchangeable(stories: list[Story]) -> list[list[str]]:
    """Groups of words any two of which may change places, as far as the counts of the stories tell.

    Counted are the stories in which two words stand at two places of one sentence (and apart from that, of the first
    sentence with the second of them: nothing is dropped before it was taken), or one in a sentence and the other in a
    question or its answer, or in an answer together with where the question's words occur in the sentence. If two words
    may be exchanged, a cell is as full as the one with them exchanged, up to chance. A word that stands for another in
    disguise (a direction and its letter, a singular and its plural) shows in the answers and is left alone.
    """
    seen, counts, looked_at = _Cells(), Counter[int](), 0
    for story in stories:
        counts.update(seen.of(story))
        looked_at += len(story.sentences) * len(story.questions)
        if looked_at > ENOUGH:
            break
    cells = {cell: counts[number] for cell, number in seen.numbers.items()}
    by_word: defaultdict[str, set[Cell]] = defaultdict(set)
    for cell in cells:
        for text in cell[1:]:
            for word in _PART.findall(text):
                by_word[word].add(cell)
    groups: list[list[str]] = []
    for word in sorted(by_word):
        for group in groups:
            if all(_alike(cells, by_word, word, other) for other in group):
                group.append(word)
                break
        else:
            groups.append([word])
    return [group for group in groups if len(group) > 1]


class _Cells:
    """The cells of stories, by number: sentences and questions come again and again, and what they hold with them."""

    def __init__(self) -> None:
        self.numbers: dict[Cell, int] = {}
        self._told: dict[Words, frozenset[int]] = {}
        self._asked: dict[tuple[Words, Words], tuple[frozenset[int], Places]] = {}
        self._answered: dict[tuple[Words, Places, str], frozenset[int]] = {}

    def of(self, story: Story) -> set[int]:
        """The numbers of all cells that a story is in."""
        found: set[int] = set()
        met: set[str] = set()
        for number, sentence in enumerate(story.sentences):
            found |= self._in_sentence(sentence)
            if not met.issuperset(sentence):
                found |= self._numbered(
                    (("first", len(sentence), i, j), one, other)
                    for (i, one), (j, other) in combinations(enumerate(sentence), 2)
                    if other not in met
                )
                met.update(sentence)
            for question in story.questions:
                if number < question.position:
                    found |= self._in_both(sentence, question.words, question.answer)
        for question in story.questions:
            for j, asked in enumerate(question.words):
                found |= self._numbered([(("question", len(question.words), j), asked, question.answer)])
        return found

    def _numbered(self, cells: Iterable[Cell]) -> frozenset[int]:
        return frozenset(self.numbers.setdefault(cell, len(self.numbers)) for cell in cells)

    def _in_sentence(self, sentence: Words) -> frozenset[int]:
        if sentence not in self._told:
            pairs = combinations(enumerate(sentence), 2)
            self._told[sentence] = self._numbered(((len(sentence), i, j), one, other) for (i, one), (j, other) in pairs)
        return self._told[sentence]

    def _in_both(self, sentence: Words, asked: Words, answer: str) -> frozenset[int]:
        if (sentence, asked) not in self._asked:
            places = tuple(asked.index(word) if word in asked else -1 for word in sentence)
            pairs = product(enumerate(sentence), enumerate(asked))
            cells = self._numbered((("asked", len(sentence), i, j), word, other) for (i, word), (j, other) in pairs)
            self._asked[sentence, asked] = cells, places
        cells, places = self._asked[sentence, asked]
        if (sentence, places, answer) not in self._answered:
            looked_at = product((len(sentence), places), enumerate(sentence))
            self._answered[sentence, places, answer] = self._numbered(
                (("answer", what, i), word, answer) for what, (i, word) in looked_at
            )
        return cells | self._answered[sentence, places, answer]


def _alike(cells: dict[Cell, int], by_word: dict[str, set[Cell]], one: str, other: str) -> bool:
    """Whether exchanging two words leaves every count as it was, up to chance."""
    mapping = {one: other, other: one}
    total, counted = 0.0, 0
    for cell in by_word[one] | by_word[other]:
        what, left, right = cell
        turned = (what, _exchange(left, mapping), _exchange(right, mapping))
        here, there = cells[cell], cells.get(turned, 0)
        if turned == cell or here + there < RAREST:
            continue
        surprise = (here - there) ** 2 / (here + there)
        if surprise > SURPRISE:
            return False
        total, counted = total + surprise, counted + 1
    return counted > 0 and total / counted <= MEAN_SURPRISE


def _exchange(text: str, mapping: dict[str, str]) -> str:
    return _PART.sub(lambda part: mapping.get(part.group(), part.group()), text)


def make_exchange(stories: dict[int, list[Story]], codec: TextCodec, ways: int, parts: int) -> Exchange:
    """`ways` orders of the words of every part of a task, by the part's number; other parts stay as they are.

    An answer that becomes one the model does not know is unseen.
    """
    words = torch.arange(len(codec.words)).expand(parts, ways, -1).clone()
    answers = torch.arange(codec.num_answers).expand(parts, ways, -1).clone()
    for part, told in stories.items():
        # an answer may name what no story does, and then no word has its number to change places with
        groups = [
            [word for word in group if (word in codec.word_index) == told_of]
            for group in exchangeable(told)
            for told_of in (True, False)
        ]
        orders = [StableRandom(part, "exchange", *group).permutations(ways, len(group)).tolist() for group in groups]
        for way in range(ways):
            mapping: dict[str, str] = {}
            for group, order in zip(groups, orders, strict=True):
                mapping.update(zip(group, (group[i] for i in order[way]), strict=True))
            for old, new in mapping.items():
                if old in codec.word_index:
                    words[part, way, codec.word_index[old]] = codec.word_index[new]
            images = (codec.answer_index.get(_exchange(answer, mapping), UNSEEN_ANSWER) for answer in codec.answers)
            answers[part, way] = torch.tensor(list(images))
    return Exchange(words, answers)
