"""StreamMemory: read a stream item by item, ask at any time, keep K slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remem.bundle import Bundle, fingerprint_of, load_bundle
from remem.data.codec import Codec
from remem.errors import BadInput
from remem.model.assembly import MemoryModel
from remem.model.interface import State, detach_state
from remem.streaming.state import StreamState, load_state, save_state
from remem.streaming.steps import Answer, Asked, answer_question, write_segments


class StreamMemory:
    """The memory of one stream.

    `write` and `write_many` add items; a segment goes into the slots when it is full, or with its sentence. `query` may
    come at any time, also mid-segment, and changes nothing: pending items are written to a copy that is thrown away.
    """

    def __init__(self, model: MemoryModel, codec: Codec, *, fingerprint: str | None = None) -> None:
        self.model, self.codec = model.eval(), codec
        fingerprint = fingerprint or fingerprint_of(model)
        with torch.no_grad():
            memory = detach_state(model.initial_state(1))
        self.state = StreamState(memory, (), items=0, segments=0, fingerprint=fingerprint)

    @classmethod
    def open(cls, model: str | Path | Bundle) -> StreamMemory:
        """A fresh memory for a saved model."""
        bundle = model if isinstance(model, Bundle) else load_bundle(model)
        if not isinstance(bundle.model, MemoryModel):
            raise BadInput(
                f"The model is {bundle.run.method}, which reads the whole stream again for every question and keeps no "
                "memory; open one of a memory-based method."
            )
        return cls(bundle.model, bundle.codec, fingerprint=bundle.fingerprint)

    def write(self, item: Any) -> None:
        """Add one item of the stream: a number, or a sentence. An unknown one is refused and changes nothing."""
        self.write_many([item])

    def write_many(self, items: Iterable[Any]) -> None:
        """Add several items, all or none of them."""
        state = self.state
        encoded = [self.codec.encode_item(item) for item in items]
        for numbers in encoded:
            pending = (*state.pending, *numbers)
            memory, segments = state.memory, state.segments
            while len(pending) >= self.codec.segment_len or (pending and self.codec.segment_per_write):
                memory = self._written(memory, pending[: self.codec.segment_len])
                pending, segments = pending[self.codec.segment_len :], segments + 1
            state = replace(state, memory=memory, pending=pending, items=state.items + 1, segments=segments)
        self.state = state

    def query(self, question: Any, *, top: int = 5, candidates: Sequence[str] | None = None) -> Answer:
        """Answer from the memory alone; a model that chooses among candidates must be given some."""
        return answer_question(self.model, self.codec, self.slots(), Asked(question, top, candidates))

    @torch.no_grad()
    def slots(self) -> Tensor:
        """The memory [1, k, d] with the pending items written to a copy of it."""
        memory = self.state.memory
        if self.state.pending:
            memory = self._written(memory, self.state.pending)
        return self.model.memory_method.memory(memory)

    def save(self, path: str | Path) -> None:
        """Write this stream's state to a file."""
        save_state(Path(path), self.state)

    def load(self, path: str | Path) -> None:
        """Go on with a state that the same weights wrote."""
        state = load_state(Path(path), self.state.memory, self.state.fingerprint)
        if len(state.pending) >= self.codec.segment_len:
            raise BadInput(f"{path} holds {len(state.pending)} pending items; a segment has {self.codec.segment_len}.")
        self.state = state

    def _written(self, memory: State, items: tuple[Any, ...]) -> State:
        return write_segments(self.model, self.codec, memory, [items])
