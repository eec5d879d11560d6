"""A memory of your own: a GRU whose wide state is cut into K slots. `remem check examples.own_memory:make` tries it."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from remem.data.batch import Segment
from remem.model.interface import EmbeddedStream, Trace


class GRUState(NamedTuple):
    """All that is kept of a stream."""

    hidden: Tensor  # [b, k d]


class GRUMemory(nn.Module):
    def __init__(self, item_dim: int, num_slots: int) -> None:
        super().__init__()
        self.shape = (num_slots, item_dim)
        self.cell = nn.GRUCell(item_dim, num_slots * item_dim)

    def initial_state(self, batch_size: int) -> GRUState:
        return GRUState(self.cell.weight_hh.new_zeros(batch_size, self.cell.hidden_size))

    def memory(self, state: GRUState) -> Tensor:
        return state.hidden.unflatten(1, self.shape)

    def write(self, state: GRUState, segment: Segment) -> GRUState:
        hidden = state.hidden
        for item, real in zip(segment.items.unbind(1), segment.mask[..., None].unbind(1), strict=True):
            # a padded item may hold anything, and must leave the state as it was
            hidden = torch.where(real, self.cell(item.masked_fill(~real, 0.0), hidden), hidden)
        return GRUState(hidden)

    def write_stream(self, state: GRUState, stream: EmbeddedStream) -> Trace:
        memories = [self.memory(state)]
        for rows, there in zip(stream.order.unbind(1), stream.segment_mask.unbind(1), strict=True):
            state = self.write(state, Segment(stream.items[rows], stream.item_mask[rows] & there[:, None]))
            memories.append(self.memory(state))
        return Trace(state, torch.stack(memories, dim=1), figures={}, losses={})

    def compile_parts(self, backend: str) -> None:
        self.cell.compile(backend=backend)


def make() -> GRUMemory:
    return GRUMemory(item_dim=16, num_slots=4)


if __name__ == "__main__":
    from remem.checks.memorizer import check_memorizer

    check_memorizer(make(), item_dim=16)
    print("the memory holds to the contract")
