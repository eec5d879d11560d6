"""Streams of vectors into any `Memorizer`: frames, embeddings, sensor readings, without a vocabulary in between."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.bundle import fingerprint_of
from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import Memorizer, State, detach_state
from remem.service.events import pack_event, unpack_event
from remem.service.network import Ask
from remem.service.records import FORMAT_VERSION
from remem.service.torch_network import TorchNetwork

Reader = Callable[[Float[Tensor, "1 k d"], Any, int], Any]
"""Answers a question from the memory; the last argument is how many answers are wanted."""


class VectorNetwork(TorchNetwork):
    """A memorizer for vectors of `item_dim` numbers, N to a segment, and a reader that answers from its memory.

    `name` tells apart memorizers of the same weights that behave differently.
    """

    def __init__(
        self, memorizer: nn.Module, *, item_dim: int, segment_len: int, reader: Reader | None = None, name: str = ""
    ) -> None:
        if not isinstance(memorizer, Memorizer):
            raise BadInput(f"{type(memorizer).__name__} is no memory; expected a Memorizer.")
        memorizer.eval()
        self._item_dim, self._reader, self.segment_events = item_dim, reader, segment_len
        parts = (fingerprint_of(memorizer), type(memorizer).__name__, name, item_dim, segment_len, FORMAT_VERSION)
        super().__init__(memorizer, hashlib.sha256(repr(parts).encode()).hexdigest()[:24])

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

    def _pieces(self, segment: Sequence[bytes]) -> list[list[list[float]]]:
        vectors = [item for payload in segment if (item := unpack_event(payload).item) is not None]
        return [vectors] if vectors else []

    def _written(self, state: State, pieces: Sequence[list[list[float]]]) -> State:
        items = torch.zeros(len(pieces), self.segment_events, self._item_dim)
        for row, vectors in enumerate(pieces):
            items[row, : len(vectors)] = torch.tensor(vectors)
        lengths = torch.tensor([len(vectors) for vectors in pieces])
        mask = torch.arange(self.segment_events)[None] < lengths[:, None]
        return detach_state(self._memorizer.write(state, Segment(items, mask)))

    def _answers(self, slots: Sequence[Float[Tensor, "1 k d"]], asks: Sequence[Ask]) -> list[Any]:
        assert self._reader is not None
        return [self._reader(memory, ask.question, ask.top) for memory, ask in zip(slots, asks, strict=True)]

    def _test_segments(self) -> list[list[bytes]]:
        generator = torch.Generator().manual_seed(0)
        lengths = [1 + (5 * turn) % self.segment_events for turn in range(6)]
        drawn = [torch.randn(length, self._item_dim, generator=generator).tolist() for length in lengths]
        return [[pack_event(vector, False) for vector in vectors] for vectors in drawn]
