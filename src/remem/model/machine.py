"""Rehearsal memory machine G (Sec. 3.2): the stream X into K slots M."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.data.batch import Segment
from remem.model.encoder import GRUEncoder, TransformerEncoder
from remem.model.interface import EmbeddedStream, Trace
from remem.model.writer import SlotWriter


class SlotState(NamedTuple):
    """The memory M^t: all that is kept of a stream."""

    slots: Float[Tensor, "b k d"]


class MemoryMachine(nn.Module):
    """Encodes each segment and writes it into the slots.

    The first memory is learned and different for every slot: slots that start equal stay equal under Eq. 1 and 2.
    """

    def __init__(
        self, *, encoder: TransformerEncoder | GRUEncoder, writer: SlotWriter, num_slots: int, item_dim: int
    ) -> None:
        super().__init__()
        self.encoder, self.writer = encoder, writer
        self.first_slots = nn.Parameter(torch.tanh(torch.randn(num_slots, item_dim)))

    def initial_state(self, batch_size: int) -> SlotState:
        """M^1, the same for every stream."""
        return SlotState(self.first_slots.expand(batch_size, -1, -1))

    def memory(self, state: SlotState) -> Float[Tensor, "b k d"]:
        """M: the slots themselves."""
        return state.slots

    def write(self, state: SlotState, segment: Segment) -> SlotState:
        """M^{t+1} from M^t and the segment X^t."""
        features = self.encoder(segment.items, segment.mask)
        slots, _ = self.writer(state.slots, features, self.writer.project(features), segment.mask)
        return SlotState(slots)

    def write_stream(self, state: SlotState, stream: EmbeddedStream) -> Trace:
        """All segments in turn: encoded and projected in one call, so that only the write itself is sequential."""
        features = self.encoder(stream.items, stream.item_mask)
        item_side = self.writer.project(features)
        item_mask = stream.item_mask[stream.order] & stream.segment_mask[..., None]  # [b, t, n]
        slots, entropy = [state.slots], state.slots.new_zeros(())
        for t in range(stream.order.shape[1]):
            index = stream.order[:, t]
            written, assignment = self.writer(slots[-1], features[index], item_side[index], item_mask[:, t])
            slots.append(written)
            entropy = entropy + torch.special.entr(assignment.detach()).sum()
        return Trace(SlotState(slots[-1]), torch.stack(slots, dim=1), entropy / item_mask.sum().clamp(min=1))
