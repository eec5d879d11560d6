"""Streams of vectors into any `Memorizer`: frames, embeddings, sensor readings, without a vocabulary in between."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.bundle import fingerprint_of
from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import Memorizer, State, detach_state
from remem.service.events import pack_event, unpack_event
from remem.service.network import NotFinite
from remem.service.numerics import is_finite, numerics_id, pack_state, require_same_bits, unpack_state, use_one_thread
from remem.service.records import FORMAT_VERSION

Reader = Callable[[Float[Tensor, "1 k d"], Any, int], Any]
"""Answers a question from the memory; the last argument is how many answers are wanted."""


class VectorNetwork:
    """A memorizer for vectors of `item_dim` numbers, N to a segment, and a reader that answers from its memory."""

    def __init__(
        self, memorizer: nn.Module, *, item_dim: int, segment_len: int, reader: Reader | None = None, name: str = ""
    ) -> None:
        if not isinstance(memorizer, Memorizer):
            raise BadInput(f"{type(memorizer).__name__} is no memory; expected a Memorizer.")
        use_one_thread()
        memorizer.eval()
        self._memorizer: Memorizer = memorizer
        self._item_dim, self._reader, self.segment_events = item_dim, reader, segment_len
        with torch.no_grad():
            self._empty = detach_state(memorizer.initial_state(1))
        whole = (
            f"{fingerprint_of(memorizer)} {type(memorizer).__name__} {name} {item_dim} {segment_len} {FORMAT_VERSION}"
        )
        self.fingerprint = hashlib.sha256(whole.encode()).hexdigest()[:24]

    @cached_property
    def numerics(self) -> str:
        """Libraries, processor, and the bits of a fixed stream."""
        return numerics_id(self.fold(self.initial_memory(), self._test_segments()))

    def checked_item(self, item: Any) -> list[float]:
        """The vector in single precision; others of its size and range are refused."""
        if isinstance(item, str | bytes) or not isinstance(item, Sequence):
            raise BadInput(f"Expected a list of {self._item_dim} numbers.")
        if len(item) != self._item_dim:
            raise BadInput(f"The vector has {len(item)} numbers; expected {self._item_dim}.")
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in item):
            raise BadInput("The vector holds something that is no number.")
        try:
            values = torch.tensor([float(value) for value in item], dtype=torch.float32)
        except OverflowError:
            raise BadInput("The vector holds a number that is too large.") from None
        if not bool(torch.isfinite(values).all()):
            raise BadInput("The vector holds a number that is not finite.")
        return values.tolist()

    def checked_question(self, question: Any) -> Any:
        """Whatever the reader takes."""
        if self._reader is None:
            raise BadInput("This network has no reader; give one to ask its memory.")
        return question

    def initial_memory(self) -> bytes:
        """The memorizer's own."""
        return pack_state(self._empty)

    def fold(self, memory: bytes, segments: Sequence[Sequence[bytes]]) -> bytes:
        """One segment after the other, alone in its batch, on one thread."""
        use_one_thread()
        state = self._state(memory)
        with torch.no_grad():
            for segment in segments:
                vectors = [item for payload in segment if (item := unpack_event(payload).item) is not None]
                if vectors:
                    state = detach_state(self._memorizer.write(state, self._padded(vectors)))
        if not is_finite(state):
            raise NotFinite("The memory came out with NaN or infinity in it.")
        return pack_state(state)

    def answer(self, memory: bytes, question: Any, top: int) -> Any:
        """By the reader."""
        use_one_thread()
        assert self._reader is not None
        with torch.no_grad():
            return self._reader(self._memorizer.memory(self._state(memory)), question, top)

    def describe(self, memory: bytes) -> dict[str, Any]:
        """Sizes, and the norm of each slot."""
        with torch.no_grad():
            slots = self._memorizer.memory(self._state(memory))[0]
        norms = [round(float(norm), 4) for norm in slots.norm(dim=-1)]
        return {"slots": slots.shape[0], "dim": slots.shape[1], "slot_norms": norms}

    def self_test(self) -> None:
        """A fixed stream in several ways."""
        require_same_bits(self.fold, self.initial_memory(), self._test_segments())

    def _padded(self, vectors: Sequence[Sequence[float]]) -> Segment:
        items = torch.zeros(1, self.segment_events, self._item_dim)
        items[0, : len(vectors)] = torch.tensor(vectors)
        return Segment(items, torch.arange(self.segment_events)[None] < len(vectors))

    def _state(self, memory: bytes) -> State:
        return unpack_state(memory, self._empty)

    def _test_segments(self) -> list[list[bytes]]:
        generator = torch.Generator().manual_seed(0)
        lengths = [1 + (5 * turn) % self.segment_events for turn in range(6)]
        drawn = [torch.randn(length, self._item_dim, generator=generator).tolist() for length in lengths]
        return [[pack_event(vector, False) for vector in vectors] for vectors in drawn]
