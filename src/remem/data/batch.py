"""Padded tensors for streams and questions, and their masks.

Shape letters, here and everywhere: b streams, t segments, n items, q questions of a stream, w words of a question,
s distinct segments, k slots, d item dim, m model dim, f fragments, j distractors.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

T = TypeVar("T", bound=tuple[Any, ...])


class Segment(NamedTuple):
    """One segment of each stream, as embedded items X^t."""

    items: Float[Tensor, "b n d"]
    mask: Bool[Tensor, "b n"]


class StreamBatch(NamedTuple):
    """Streams cut into segments, each distinct segment held once.

    A stream is a row of `order`, which points into the table of segments. Texts repeat their sentences, so a segment
    that several streams share is embedded and encoded once; streams without repeats simply point to rows of their own.
    """

    items: Int[Tensor, "s n"]
    item_mask: Bool[Tensor, "s n"]
    order: Int[Tensor, "b t"]
    segment_mask: Bool[Tensor, "b t"]
    in_turn: bool = False
    """Whether the table holds each stream's segments in turn, so that `order` counts from 0 to b t - 1."""
    most_items: int | None = None
    """No stream has more real items than this; None if unknown, and then it is t n."""


class QueryBatch(NamedTuple):
    """The questions of each stream, each asked after `position` segments."""

    tokens: Int[Tensor, "b q w"]
    token_mask: Bool[Tensor, "b q w"]
    position: Int[Tensor, "b q"]
    answer: Int[Tensor, "b q"]
    mask: Bool[Tensor, "b q"]
    part: Int[Tensor, "b q"]  # which part of the task a question belongs to: early or later, or the bAbI task
    evidence: Int[Tensor, "b q"]  # segment where the evidence begins


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
