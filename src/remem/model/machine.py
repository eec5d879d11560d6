"""Rehearsal memory machine G (Sec. 3.2): the stream X into K slots M."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from remem.data.batch import Segment
from remem.model.encoder import GRUEncoder, TransformerEncoder
from remem.model.interface import EmbeddedStream, Trace
from remem.model.writer import SlotWriter


class SlotState(NamedTuple):
    """The memory M^t: all that is kept of a stream."""

    slots: Float[Tensor, "b k d"]


class SlotMachine(nn.Module):
    """What reads segments for slots, whatever decides where they go: the encoder, weights of items, and the writer."""

    def __init__(
        self,
        *,
        encoder: TransformerEncoder | GRUEncoder,
        writer: SlotWriter,
        num_slots: int,
        item_dim: int,
        weigh_items: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, self.writer = encoder, writer
        self.weigh = nn.Linear(item_dim, 1) if weigh_items else None
        if self.weigh is not None:
            nn.init.zeros_(self.weigh.weight)
            nn.init.zeros_(self.weigh.bias)
        self.first_slots = nn.Parameter(torch.tanh(torch.randn(num_slots, item_dim)))

    def features(self, items: Float[Tensor, "s n d"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, "s n d"]:
        """F^t of X^t, each item by its weight where items are weighed."""
        encoded = self.encoder(items, mask)
        return encoded if self.weigh is None else 2 * torch.sigmoid(self.weigh(encoded)) * encoded

    def scan(
        self, slots: Float[Tensor, "b k d"], features: Float[Tensor, "s n d"], stream: EmbeddedStream
    ) -> tuple[Float[Tensor, "b _ k d"], dict[str, Float[Tensor, ""]]]:
        """Eq. 1 and 2 alone: the slots before the first and after every segment, and how widely items were shared."""
        scanned = self.writer.scan(
            slots, features, stream.item_mask, stream.order, stream.segment_mask, in_turn=stream.in_turn
        )
        items = (stream.item_mask.sum(dim=1)[stream.order] * stream.segment_mask).sum()
        return scanned.memories, {"write_entropy": scanned.entropy.sum() / items.clamp(min=1)}

    def compile_parts(self, backend: str) -> None:
        """The encoder, and what the scan prepares."""
        if isinstance(self.encoder, TransformerEncoder):  # a GRU is one kernel, and under autocast can't be traced
            self.encoder.compile(backend=backend)
        self.writer.compile_parts(backend)


class MemoryMachine(SlotMachine):
    """Encodes each segment and writes it into the slots.

    The first memory is learned and different for every slot: slots that start equal stay equal under Eq. 1 and 2.
    """

    def initial_state(self, batch_size: int) -> SlotState:
        """M^1, the same for every stream."""
        return SlotState(self.first_slots.expand(batch_size, -1, -1))

    def memory(self, state: SlotState) -> Float[Tensor, "b k d"]:
        """M: the slots themselves."""
        return state.slots

    def write(self, state: SlotState, segment: Segment) -> SlotState:
        """M^{t+1} from M^t and the segment X^t."""
        slots, _ = self.writer(state.slots, self.features(segment.items, segment.mask), segment.mask)
        return SlotState(slots)

    def write_stream(self, state: SlotState, stream: EmbeddedStream) -> Trace:
        """All segments in turn: encoded in one call, so that only the write itself is sequential."""
        memories, figures = self.scan(state.slots, self.features(stream.items, stream.item_mask), stream)
        return Trace(SlotState(memories[:, -1]), memories, figures, {})
