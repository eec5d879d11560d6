"""The original bAbI files: one line a sentence, numbered within its story, questions with tabs in between.

1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? <TAB> bathroom <TAB> 1
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from remem.errors import BadInput

Words = tuple[str, ...]
_WORD = re.compile(r"[a-z0-9]+(?:['-][a-z0-9]+)*")
UNKNOWN_EVIDENCE = -1


class MalformedFile(BadInput):
    """A file that is not in the format it claims: says where and why."""

    def __init__(self, source: str, line: int, reason: str) -> None:
        super().__init__(f"{source}, line {line}: {reason}" + ("" if reason.endswith("?") else "."))


class Question(NamedTuple):
    """A question, the number of sentences before it, and the first sentence that supports its answer."""

    words: Words
    answer: str
    position: int
    evidence: int


class Story(NamedTuple):
    """Sentences in order, with the questions asked between them."""

    sentences: tuple[Words, ...]
    questions: tuple[Question, ...]


def words_of(text: str) -> Words:
    """The lower-case words of a sentence, without its marks."""
    return tuple(_WORD.findall(text.lower()))


def parse_stories(lines: Iterable[str], source: str) -> list[Story]:
    """All stories of a file; the first line that breaks the format raises `MalformedFile`."""
    stories: list[Story] = []
    split = cache(words_of)  # sentences come again and again
    reader = _StoryReader(source, split)
    number = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if line.startswith("1 ") and reader.started:
            stories.append(reader.close(reader.last_line))
            reader = _StoryReader(source, split)
        reader.read(line.rstrip("\r\n"), number)
    if not reader.started:
        raise MalformedFile(source, max(number, 1), "the file holds no story")
    stories.append(reader.close(number))
    return stories


class _StoryReader:
    def __init__(self, source: str, split: Callable[[str], Words]) -> None:
        self.source, self.split = source, split
        self.sentences: list[Words] = []
        self.questions: list[Question] = []
        self.sentence_of_id: dict[str, int] = {}  # by the ID as it is written
        self.last_id = 0
        self.last_line = 0

    @property
    def started(self) -> bool:
        return self.last_id > 0

    def read(self, line: str, number: int) -> None:
        head, _, text = line.partition(" ")
        if not head.isascii() or not head.isdigit():
            raise MalformedFile(self.source, number, f"expected 'ID text', found {line[:40]!r}")
        if head != f"{self.last_id + 1}":
            expected = f"{self.last_id + 1}" if not self.started else f"{self.last_id + 1}, or 1 for a new story"
            raise MalformedFile(self.source, number, f"the sentence has number {head}; expected {expected}")
        self.last_id, self.last_line = int(head), number
        body, *columns = text.split("\t")
        words = self.split(body)
        if not words:
            raise MalformedFile(self.source, number, "the line holds no word")
        if columns:
            self.questions.append(self._question(words, [c.strip() for c in columns], number))
        else:
            self.sentence_of_id[head] = len(self.sentences)
            self.sentences.append(words)

    def _question(self, words: Words, columns: list[str], number: int) -> Question:
        if len(columns) > 2:
            raise MalformedFile(
                self.source,
                number,
                f"a question has up to 3 columns, question, answer and support; found {len(columns) + 1}",
            )
        if not columns[0]:
            raise MalformedFile(self.source, number, "the question has no answer")
        if not self.sentences:
            raise MalformedFile(self.source, number, "the question comes before any sentence of its story")
        evidence = [self._support(entry, number) for entry in columns[1].split()] if len(columns) == 2 else []
        first = min(evidence, default=UNKNOWN_EVIDENCE)
        return Question(words, columns[0].lower(), len(self.sentences), first)

    def _support(self, entry: str, number: int) -> int:
        if entry not in self.sentence_of_id:
            raise MalformedFile(self.source, number, f"the support {entry!r} is not an earlier sentence of this story")
        return self.sentence_of_id[entry]

    def close(self, number: int) -> Story:
        if not self.questions:
            raise MalformedFile(self.source, number, "the story that ends here asks no question; is the file cut off?")
        return Story(tuple(self.sentences), tuple(self.questions))
