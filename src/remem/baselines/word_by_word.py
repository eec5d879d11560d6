"""Memories that read one item at a time: the loop that the DNC and its relatives share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.data.batch import Segment
from remem.model.interface import EmbeddedStream, State, Trace, gather_rows
from remem.model.packing import pack, without_padding

Scalars = dict[str, Tensor]


@runtime_checkable
class Cell(Protocol):
    """A recurrent memory: a module whose `forward` is one step."""

    def initial_state(self, batch_size: int) -> Any:
        """The state before the first item: a named tuple of tensors, batch first."""
        ...

    def project(self, items: Float[Tensor, "*s d"]) -> Float[Tensor, "*s g"]:
        """All that a step does to its item before the state comes in."""
        ...

    def __call__(self, state: Any, inputs: Float[Tensor, "b g"], real: Bool[Tensor, " b"]) -> Any:
        """The state after one projected item; rows where it is padding keep theirs."""
        ...

    def slots_of(self, state: Any) -> Float[Tensor, "b ..."]:
        """What of the state holds the memory."""
        ...

    def read_out(self, slots: Float[Tensor, "..."]) -> Float[Tensor, "*b k d"]:
        """The memory as the reasoner sees it, from any number of `slots_of`."""
        ...

    def write_weights_of(self, state: Any) -> Float[Tensor, "b k"]:
        """How much of the item was written to each slot."""
        ...

    def compile(self, *, backend: str) -> None:
        """Compile the step in place."""
        ...


def mean_over(values: Float[Tensor, "*s"], counted: Bool[Tensor, "*s"]) -> Float[Tensor, ""]:
    """The mean of the counted values; zero if there are none."""
    return values.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)


class WordByWord(nn.Module):
    """Any recurrent memory as a `Memorizer`: a segment is read item by item."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.compiled = False
        self.stance: str | None = None  # of the compiler, for the step alone; none leaves it as it is

    def initial_state(self, batch_size: int) -> State:
        """The memory of streams of which nothing has been read."""
        return self.cell.initial_state(batch_size)

    def memory(self, state: Any) -> Float[Tensor, "b k d"]:
        """All that reasoner and rehearsal may read."""
        return self.cell.read_out(self.cell.slots_of(state))

    def write(self, state: Any, segment: Segment) -> State:
        """One step for each item of the segment."""
        inputs = self.cell.project(without_padding(segment.items, segment.mask))
        for item, real in zip(inputs.unbind(dim=1), segment.mask.unbind(dim=1), strict=True):
            state = self.cell(state, item, real)
        return state

    def write_stream(self, state: Any, stream: EmbeddedStream) -> Trace:
        """As `write` segment by segment, in as many steps as the longest stream has real items."""
        packed = pack(stream.item_mask, stream.order, stream.segment_mask, stream.most_items)
        rows, real = packed.rows.T.flatten(), packed.real.T.contiguous()  # [l b], [l, b]
        # one product for all distinct items, before anything waits for anything
        table = self.cell.project(without_padding(stream.items, stream.item_mask)).flatten(0, 1)
        inputs = table.index_select(0, rows).unflatten(0, real.shape)  # [l, b, g]
        states = [state]
        with nullcontext() if self.stance is None else torch.compiler.set_stance(self.stance):
            for item, there in zip(inputs.unbind(), real.unbind(), strict=True):
                states.append(self.cell(states[-1], item, there))
        slots = torch.stack([self.cell.slots_of(each) for each in states], dim=1)  # [b, l+1, ...]
        memories = self.cell.read_out(gather_rows(slots, packed.read))
        ids = None if stream.ids is None else stream.ids.flatten().index_select(0, rows).view_as(real)
        figures, losses = self.observe(states[1:], real, ids)
        return Trace(states[-1], memories, figures, losses)

    def observe(
        self, states: Sequence[Any], real: Bool[Tensor, "l b"], ids: Int[Tensor, "l b"] | None
    ) -> tuple[Scalars, Scalars]:
        """Figures and losses, from the states after each item; a method with losses of its own adds them here."""
        weights = torch.stack([self.cell.write_weights_of(state).detach() for state in states])  # [l, b, k]
        shares = weights.clamp(min=0.0) / weights.sum(dim=-1, keepdim=True).clamp(min=1e-12)
        return {"write_entropy": mean_over(torch.special.entr(shares).sum(dim=-1), real)}, {}

    def compile_parts(self, backend: str) -> None:
        """The step, which is the same graph for every item of every stream."""
        self.cell.compile(backend=backend)
        self.compiled = True
