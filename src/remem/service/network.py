"""What the engine asks of a model. A memory is bytes to it: only the model reads them, and only models need torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class NotFinite(ArithmeticError):
    """A memory came out with NaN or infinity in it; it is never stored."""


class Fold(NamedTuple):
    """A memory, and the segments of event payloads to be written into it."""

    memory: bytes
    segments: Sequence[Sequence[bytes]]


class Ask(NamedTuple):
    """A question to the memory that a fold gives, and how many answers are wanted."""

    fold: Fold
    question: Any
    top: int


class Network(Protocol):
    """A memory model behind the engine. All methods are pure, and may be called from many threads at once."""

    @property
    def fingerprint(self) -> str:
        """Names all that gives a memory its meaning: weights, settings, vocabulary, segments, format."""
        ...

    @property
    def numerics(self) -> str:
        """Names all that decides a memory's last bits: libraries, processor, threads, batch."""
        ...

    @property
    def segment_events(self) -> int:
        """After how many events a segment ends by itself: N, or 1 where every event is a segment."""
        ...

    def checked_item(self, item: Any) -> Any:
        """The item as it will be stored: text, an integer or a list of floats; refuses others with `BadInput`."""
        ...

    def initial_memory(self) -> bytes:
        """The memory before the first event: a safetensors file, as every memory."""
        ...

    def fold(self, memory: bytes, segments: Sequence[Sequence[bytes]]) -> bytes:
        """The memory after these segments of event payloads; raises `NotFinite` rather than return a broken one."""
        ...

    def fold_many(self, folds: Sequence[Fold]) -> list[bytes | NotFinite]:
        """The same for several streams, each with the bits it would get alone."""
        ...

    def checked_question(self, question: Any) -> Any:
        """The question as `ask_many` takes it; refuses others with `BadInput`."""
        ...

    def ask_many(self, asks: Sequence[Ask]) -> list[Any | NotFinite]:
        """Answers, each from its memory alone; equal folds are done once, and hashable for that."""
        ...

    def describe(self, memory: bytes) -> dict[str, Any]:
        """Figures about a memory that do not give it away, as JSON values."""
        ...

    def self_test(self) -> None:
        """Raise `SelfTestFailed` unless the same events give the same bits, however they come."""
        ...
