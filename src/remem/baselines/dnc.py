"""DNC: an LSTM that writes to free or similar slots, and reads by content or along the order of writes.

Graves et al., "Hybrid computing using a neural network with dynamic external memory", Nature 538 (2016).

Changed for the shared harness: the slots themselves are the memory that the shared reasoner attends to, so there is no
output layer; the read heads stay, since what they read goes back into the LSTM and what they free can be written again.
Their number of slots is K and a slot is as wide as an item, unless `slot_dim` asks for a width of its own, which a
linear map then brings to the item's. The vector of commands goes through a LayerNorm (Franke et al., "Robust and
Scalable Differentiable Neural Computer for Question Answering", 2018): without it training is known to diverge.
Left open by the paper: how the memory starts (every number 1e-6) and whether gradients go through what was written into
what is free (they don't, as in the authors' code).

One cell covers the relatives, too: without links and with stored programs it is NUTM, with several blocks DMSDNC, and
with `masked`, `deallocate` and `sharpen` the DNC of Csordas and Schmidhuber (ICLR 2019).

Shape letters beside the usual ones: c blocks, k slots of a block, d slot width, r read heads, h controller width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from remem.baselines.word_by_word import WordByWord
from remem.errors import BadInput
from remem.ops.memory_access import AccessState, CommandLayout, access
from remem.ops.memory_access.reference import LARGEST
from remem.ops.precision import at_least_float32

FIRST_VALUE = 1e-6  # of every number in the memory: a cosine with exact zeros is good for nothing


class DNCState(NamedTuple):
    """All that is kept of a stream."""

    slots: Float[Tensor, "b c k d"]  # M
    usage: Float[Tensor, "b c k"]  # u
    write_weights: Float[Tensor, "b c k"]  # w^w
    read_weights: Float[Tensor, "b c r k"]  # w^r
    precedence: Float[Tensor, "b c k"]  # p; no slots where there are no links
    links: Float[Tensor, "b c k k"]  # L; likewise
    hidden: Float[Tensor, "b h"]  # of the LSTM
    carry: Float[Tensor, "b h"]  # its cell
    reads: Float[Tensor, "b r*d"]  # r^1 .. r^R


class DNCCell(nn.Module):
    """One item: the controller, the write, the read.

    h = LSTM([x; r])     xi = LayerNorm(W h + b)     M' = write(M, xi)     r' = read(M', xi)

    With several blocks each has its own commands and is written on its own; what the blocks' heads read is weighed by
    gates that sum to one over the blocks, and it is the gated weights that are kept.

    Args:
        interface: maps h to xi, `num_blocks` times the size of `layout`; a linear map if not given.
    """

    def __init__(
        self,
        *,
        item_dim: int,
        num_slots: int,
        controller_dim: int,
        layout: CommandLayout,
        interface: nn.Module | None = None,
        deallocate: bool = False,
        norm_interface: bool = True,
        norm_controller: bool = False,
        norm_slots: bool = False,
    ) -> None:
        super().__init__()
        blocks, slot_dim, size = layout.num_blocks, layout.slot_dim, layout.reading + layout.writing
        if num_slots % blocks:
            raise BadInput(f"{num_slots} slots cannot be split over {blocks} blocks; choose a multiple of {blocks}.")
        self.layout, self.deallocate, self.block_slots = layout, deallocate, num_slots // blocks
        self.from_item = nn.Linear(item_dim, 4 * controller_dim)
        self.from_state = nn.Linear(controller_dim + layout.num_reads * slot_dim, 4 * controller_dim, bias=False)
        with torch.no_grad():
            self.from_item.bias[controller_dim : 2 * controller_dim] += 1.0  # an LSTM that remembers to begin with
        self.controller_norm = nn.LayerNorm(controller_dim) if norm_controller else nn.Identity()
        self.interface = nn.Linear(controller_dim, blocks * size) if interface is None else interface
        self.interface_norm = nn.LayerNorm(size) if norm_interface else nn.Identity()
        self.slot_norm = nn.LayerNorm(slot_dim) if norm_slots else nn.Identity()
        self.slot_map = nn.Linear(slot_dim, item_dim) if slot_dim != item_dim else nn.Identity()
        self.block_code = nn.Parameter(0.1 * torch.randn(blocks, 1, item_dim)) if blocks > 1 else None

    def initial_state(self, batch_size: int) -> DNCState:
        """Nothing written, nothing read. Slots that start equal are told apart by allocation, which counts them."""
        zeros, layout = self.from_state.weight.new_zeros, self.layout
        rows = (batch_size, layout.num_blocks)
        slots, linked = self.block_slots, self.block_slots if layout.links else 0
        width = self.from_state.out_features // 4
        return DNCState(
            slots=zeros(*rows, slots, layout.slot_dim) + FIRST_VALUE,
            usage=zeros(*rows, slots),
            write_weights=zeros(*rows, slots),
            read_weights=zeros(*rows, layout.num_reads, slots),
            precedence=zeros(*rows, linked),
            links=zeros(*rows, linked, linked),
            hidden=zeros(batch_size, width),
            carry=zeros(batch_size, width),
            reads=zeros(batch_size, layout.num_reads * layout.slot_dim),
        )

    def slots_of(self, state: DNCState) -> Float[Tensor, "b c k d"]:
        """M of every block."""
        return state.slots

    def write_weights_of(self, state: DNCState) -> Float[Tensor, "b k"]:
        """w^w over the slots of all blocks."""
        return state.write_weights.flatten(1)

    def read_out(self, slots: Float[Tensor, "*b c k d"]) -> Float[Tensor, "*b c*k x"]:
        """All slots in a row, as wide as an item, each with the mark of its block."""
        memory = self.slot_map(self.slot_norm(slots))
        return (memory if self.block_code is None else memory + self.block_code).flatten(-3, -2)

    def project(self, items: Float[Tensor, "*s d"]) -> Float[Tensor, "*s g"]:
        """W_x x + b: the item's side of the LSTM's gates."""
        return self.from_item(items)

    def forward(self, state: DNCState, inputs: Float[Tensor, "b g"], real: Bool[Tensor, " b"]) -> DNCState:
        """The state after one item; where it is padding, the state before."""
        # 32 bits throughout: a step is bound by its number of kernels, and casts would only add to them
        with torch.autocast(inputs.device.type, enabled=False):
            hidden, carry = self.control(state, at_least_float32(inputs))
            xi = self.interface(self.features(hidden)).unflatten(-1, (self.layout.num_blocks, -1))
            before = AccessState(*(getattr(state, name) for name in AccessState._fields))
            memory = access(before, self.interface_norm(xi), real, self.layout, deallocate=self.deallocate)
        kept = real[:, None]
        return DNCState(
            **memory._asdict(),
            hidden=torch.where(kept, hidden, state.hidden),
            carry=torch.where(kept, carry, state.carry),
        )

    def control(
        self, state: DNCState, inputs: Float[Tensor, "b g"]
    ) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h"]]:
        """h = LSTM([x; r]), whose item side is given. Its cell is clipped; h itself is never beyond one."""
        gates = inputs + self.from_state(torch.cat([state.hidden, state.reads], dim=-1))
        opened, kept, new, shown = gates.chunk(4, dim=-1)
        carry = torch.sigmoid(kept) * state.carry + torch.sigmoid(opened) * torch.tanh(new)
        carry = carry.clamp(-LARGEST, LARGEST)
        return torch.sigmoid(shown) * torch.tanh(carry), carry

    def features(self, hidden: Float[Tensor, "*b h"]) -> Float[Tensor, "*b h"]:
        """The controller's output as everything after it sees it."""
        return self.controller_norm(hidden)


class DNC(WordByWord):
    """The DNC as a `Memorizer`; sizes of the shared harness unless told otherwise.

    On bAbI its authors took 256 slots of 64 numbers and a controller of 256, and no LayerNorm.
    """

    cell: DNCCell

    def __init__(
        self,
        *,
        item_dim: int,
        num_slots: int,
        controller_dim: int | None = None,
        num_reads: int = 4,
        slot_dim: int | None = None,
        links: bool = True,
        masked: bool = False,
        deallocate: bool = False,
        sharpen: bool = False,
        norm_interface: bool = True,
        norm_slots: bool = False,
    ) -> None:
        layout = CommandLayout(
            slot_dim=slot_dim or item_dim, num_reads=num_reads, links=links, masked=masked, sharpen=sharpen
        )
        super().__init__(
            DNCCell(
                item_dim=item_dim,
                num_slots=num_slots,
                controller_dim=controller_dim or item_dim,
                layout=layout,
                deallocate=deallocate,
                norm_interface=norm_interface,
                norm_slots=norm_slots,
            )
        )
