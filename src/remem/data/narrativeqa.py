"""NarrativeQA as streams: a sentence of a summary is a segment, a summary a stream, and all its questions come last.

The candidates of a summary are one answer to each of its questions, so every question has as many as its summary has
questions, and the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from remem.data.batch import Candidates, QueryBatch
from remem.data.codec import UNKNOWN_WORD, PassageCodec, cut
from remem.data.dataset import Bucket, Exchange, Split
from remem.data.gaps import GapMaker
from remem.data.narrativeqa_files import SPLITS, UNKNOWN_EVIDENCE
from remem.data.padding import groups_by_length, pad_rows
from remem.data.prepared import Prepared
from remem.data.random import StableRandom
from remem.data.windows import Windows
from remem.data.words import sentences, vocabulary
from remem.errors import BadInput

_BUCKET_LENGTHS = (24, 32, 40, 48, 64, 96, 192)
_LONGEST_WITH_GAPS = 96  # segments; a fairy tale of hundreds would take the time of ten summaries
HOW = "remem data import PATH --task narrativeqa"
Segments = list[tuple[int, int]]  # first word and length, in the row of all words


class Summaries:
    """Prepared NarrativeQA: where each summary, question and answer stands in the row of words."""

    def __init__(self, folder: Path) -> None:
        self.prepared = Prepared(folder, "narrativeqa", HOW)
        self.words = self.prepared.lines("words")
        self.tokens = self.prepared.array("tokens")
        self.documents = self.prepared.array("documents").tolist()
        self.questions = self.prepared.array("questions").tolist()

    @cached_property
    def questions_of(self) -> dict[int, list[list[int]]]:
        """Each document's questions, without its number."""
        found: dict[int, list[list[int]]] = {}
        for number, *question in self.questions:
            found.setdefault(number, []).append(question)
        return found

    def numbers(self, split: str) -> list[int]:
        """The documents of an official split, or the unlabelled ones."""
        wanted = SPLITS.index(split)
        return [number for number, (_, _, part) in enumerate(self.documents) if part == wanted]

    def text(self, first: int, end: int) -> list[str]:
        """Words from one place to another."""
        return [self.words[code] for code in self.tokens[first:end].tolist()]

    def build_codec(self, documents: Sequence[int], segment_len: int, least: int, stand_ins: int = 0) -> PassageCodec:
        """The words that occur at least `least` times in some documents, their questions and answers."""
        texts = []
        for number in documents:
            texts.append(self.text(*self.documents[number][:2]))
            for question in self.questions_of.get(number, []):
                texts += [self.text(*question[i : i + 2]) for i in (0, 2, 4)]
        words = vocabulary(texts, first=UNKNOWN_WORD, least=least)
        return PassageCodec(segment_len=segment_len, words=words, stand_ins=stand_ins)

    def segments(self, number: int, segment_len: int, *, truncate: bool) -> Segments:
        """The sentences of a document; one longer than N becomes several segments, or loses its end."""
        first, end, _ = self.documents[number]
        found: Segments = []
        for sentence in sentences(self.text(first, end)):
            pieces = list(cut(sentence, segment_len))[: 1 if truncate else None]
            place = first
            for piece in pieces:
                found.append((place, len(piece)))
                place += len(piece)
            first += len(sentence)
        return found


def folds(documents: Sequence[int], count: int, fold: int) -> tuple[list[int], list[int]]:
    """Documents to train on and to choose by; every document is chosen by in exactly one fold."""
    if not 2 <= count <= len(documents) or not 0 <= fold < count:
        raise BadInput(f"fold {fold} of {count} does not exist for {len(documents)} documents; count folds from 0.")
    order = StableRandom("narrativeqa", "folds").permutation(len(documents))
    held = {int(place) for place in order[fold::count]}
    return (
        [number for place, number in enumerate(documents) if place not in held],
        [number for place, number in enumerate(documents) if place in held],
    )


def as_split(
    data: Summaries,
    documents: Sequence[int],
    codec: PassageCodec,
    *,
    truncate: bool,
    with_gaps: Sequence[int] = (),
    gaps: int = 0,
) -> Split:
    """Documents to tensors, in buckets of similar length.

    Args:
        with_gaps: documents that are streams once more, with questions of their own making.
        gaps: how many of these questions each has at most.
    """
    if not documents:
        raise BadInput("There is no summary to read in this split; import the files that hold it.")
    values = torch.tensor(codec.encode_words(data.words), dtype=torch.int32)[data.tokens.long()]
    documents, questions = list(documents), [data.questions_of.get(number, []) for number in documents]
    rows = [data.segments(number, codec.segment_len, truncate=truncate) for number in documents]
    if gaps:
        maker = GapMaker(values, len(codec.words))
        for number in with_gaps:
            segments = data.segments(number, codec.segment_len, truncate=truncate)
            made = maker.questions(number, segments, gaps) if len(segments) <= _LONGEST_WITH_GAPS else []
            if made:
                documents.append(number)
                questions.append(made)
                rows.append(segments)
        values = maker.values
    starts = torch.tensor([first for row in rows for first, _ in row])
    lengths = torch.tensor([length for row in rows for _, length in row])
    firsts = np.cumsum([0, *map(len, rows)])
    buckets = []
    for group in groups_by_length([len(row) for row in rows], _BUCKET_LENGTHS):
        order, segment_mask = pad_rows([range(firsts[i], firsts[i + 1]) for i in group])
        query = _questions(values, [rows[i] for i in group], [questions[i] for i in group])
        buckets.append(Bucket(order, segment_mask, query, torch.tensor([documents[i] for i in group])))
    return Split(Windows(values, starts, lengths), None, tuple(buckets), repeats=False)


def exchange_stand_ins(codec: PassageCodec, ways: int) -> Exchange:
    """Orders in which the stand-ins change places, so that nothing but their being the same can be learned of them."""
    words = torch.arange(codec.num_items).expand(1, ways, -1).clone()
    first = len(codec.words)
    words[0, :, first:] = first + torch.from_numpy(StableRandom("stand-ins").permutations(ways, codec.stand_ins))
    return Exchange(words)


def _questions(values: Tensor, rows: list[Segments], asked: list[list[list[int]]]) -> QueryBatch:
    """All questions of each document, after its last sentence; without any there is one that counts for nothing."""
    shape = (len(rows), max(1, max(map(len, asked))))
    mask = torch.arange(shape[1]) < torch.tensor([len(each) for each in asked])[:, None]
    evidence = torch.full(shape, UNKNOWN_EVIDENCE)
    for i, (segments, each) in enumerate(zip(rows, asked, strict=True)):
        for j, question in enumerate(each):
            if question[6] != UNKNOWN_EVIDENCE:
                evidence[i, j] = _segment_of(segments, segments[0][0] + question[6])
    tokens, token_mask = _texts(values, asked, 0, shape[1])
    token_mask[..., 0] = True  # a padded question is asked with one word
    # two at least: a single score would be the logit of a click
    candidates = Candidates(*_texts(values, asked, 2, max(2, shape[1])))
    candidates.token_mask[:, 0, 0] = True
    return QueryBatch(
        tokens=tokens,
        token_mask=token_mask,
        position=torch.tensor([len(row) for row in rows])[:, None].expand(shape).contiguous(),
        answer=torch.arange(shape[1]).expand(shape).masked_fill(~mask, 0),
        mask=mask,
        part=torch.zeros(shape, dtype=torch.long),
        evidence=evidence,
        candidates=candidates,
    )


def _texts(values: Tensor, asked: list[list[list[int]]], field: int, count: int) -> tuple[Tensor, Tensor]:
    """One text of every question as [documents, count, words]."""
    texts = [
        values[q[field] : q[field + 1]].tolist() for each in asked for q in [*each, *[[0] * 7] * (count - len(each))]
    ]
    tokens, mask = pad_rows(texts)
    return tokens.unflatten(0, (len(asked), count)), mask.unflatten(0, (len(asked), count))


def _segment_of(segments: Segments, place: int) -> int:
    """The last segment that begins at or before a place; its words may have been cut off."""
    return max(i for i, (first, _) in enumerate(segments) if first <= place)
