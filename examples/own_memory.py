"""A memory of your own: four methods, and the contract suite that tells whether they hold."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from remem.checks.memorizer import check_memorizer
from remem.data.batch import Segment
from remem.model.interface import EmbeddedStream, Trace


class MeanState(NamedTuple):
    """Running sums of all items, and how many there were."""

    total: Tensor  # [b, 1, d]
    count: Tensor  # [b, 1, 1]


class MeanMemory(nn.Module):
    """One slot: the mean of everything read so far."""

    def __init__(self, item_dim: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(1, item_dim))

    def initial_state(self, batch_size: int) -> MeanState:
        return MeanState(self.first.expand(batch_size, -1, -1), torch.ones(batch_size, 1, 1))

    def write(self, state: MeanState, segment: Segment) -> MeanState:
        real = segment.items.masked_fill(~segment.mask[..., None], 0.0)
        return MeanState(state.total + real.sum(1, keepdim=True), state.count + segment.mask.sum(1)[:, None, None])

    def memory(self, state: MeanState) -> Tensor:
        return state.total / state.count

    def write_stream(self, state: MeanState, stream: EmbeddedStream) -> Trace:
        memories = [self.memory(state)]
        for t in range(stream.order.shape[1]):
            rows, there = stream.order[:, t], stream.segment_mask[:, t, None]
            state = self.write(state, Segment(stream.items[rows], stream.item_mask[rows] & there))
            memories.append(self.memory(state))
        return Trace(state, torch.stack(memories, dim=1), torch.zeros(()))


check_memorizer(MeanMemory(item_dim=8), item_dim=8)
print("the memory holds to the contract")
