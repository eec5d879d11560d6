"""Padded tensors for streams and questions, and their masks.

Shape letters, here and everywhere: b streams, t segments, n items, q questions of a stream, w words of a question,
s distinct segments, e width of raw vectors, c answers to choose from, k slots, d item dim, m model dim, f fragments,
j distractors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

T = TypeVar("T", bound=tuple[Any, ...])


UNSEEN_ANSWER = -1  # an answer that can't be given: always wrong, and trains nothing


class Segment(NamedTuple):
    """One segment of each stream, as embedded items X^t."""

    items: Float[Tensor, "b n d"]
    mask: Bool[Tensor, "b n"]


class StreamBatch(NamedTuple):
    """Streams cut into segments, each distinct segment held once.

    A stream is a row of `order`, which points into the table of segments. Texts repeat their sentences, so a segment
    that several streams share is embedded and encoded once; streams without repeats simply point to rows of their own.
    Items are numbers, or vectors of any width, such as the features of a frame.
    """

    items: Int[Tensor, "s n"] | Float[Tensor, "s n e"]
    item_mask: Bool[Tensor, "s n"]
    order: Int[Tensor, "b t"]
    segment_mask: Bool[Tensor, "b t"]
    in_turn: bool = False
    """Whether the table holds each stream's segments in turn, so that `order` counts from 0 to b t - 1."""
    most_items: int | None = None
    """No stream has more real items than this; None if unknown, and then it is t n."""


class Candidates(NamedTuple):
    """The answers that may be chosen for any question of a stream, as words; one without a word is padding."""

    tokens: Int[Tensor, "b c w"]
    token_mask: Bool[Tensor, "b c w"]


WHOLE = ("candidates", "after_all")  # what a QueryBatch has beside one row a question


class QueryBatch(NamedTuple):
    """The questions of each stream, each asked after `position` segments.

    `answer` is a class, the place of the right candidate, or 1 for a click and 0 for none; -1 stands for an answer that
    can't be given, which is always wrong and trains nothing. Scores of answers are [b, q, c] for every task; a single
    score without candidates is the logit of a click.
    """

    tokens: Int[Tensor, "b q w"]
    token_mask: Bool[Tensor, "b q w"]
    position: Int[Tensor, "b q"]
    answer: Int[Tensor, "b q"]
    mask: Bool[Tensor, "b q"]
    part: Int[Tensor, "b q"]  # which part of the task a question belongs to: early or later, or the bAbI task
    evidence: Int[Tensor, "b q"]  # segment where the evidence begins; -1 if nobody knows
    candidates: Candidates | None = None
    """One set for all questions of a stream; None where the answers are the same for every stream."""
    after_all: bool = False
    """Whether every question is known to come after its stream's last segment, so that one reading serves them all."""

    def asks_clicks(self, scores: Tensor) -> bool:
        """Whether the scores are logits of clicks. A single candidate has a single score, too, and is no click."""
        return scores.shape[-1] == 1 and self.candidates is None

    def each(self, change: Callable[[Tensor], Tensor]) -> QueryBatch:
        """A change of all that has one row a question, such as the choice of some; candidates belong to the stream."""
        questions = {name: change(getattr(self, name)) for name in self._fields if name not in WHOLE}
        return self._replace(**questions)  # type: ignore[arg-type]

    def rows(self, rows: Int[Tensor, " r"]) -> QueryBatch:
        """The questions of some streams."""
        candidates = None if self.candidates is None else Candidates(*(value[rows] for value in self.candidates))
        return self.each(lambda value: value[rows])._replace(candidates=candidates)


class Batch(NamedTuple):
    """Streams with their questions, and the number of each stream in its dataset."""

    stream: StreamBatch
    query: QueryBatch
    ids: Int[Tensor, " b"]


def to_device(batch: T, device: Any) -> T:
    """The same named tuple, nested ones included, with its tensors on `device`."""

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device, non_blocking=True)
        return to_device(value, device) if isinstance(value, tuple) else value

    return type(batch)(*(moved(value) for value in batch))
