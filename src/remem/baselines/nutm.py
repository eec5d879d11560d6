"""NUTM: a DNC whose commands come from stored programs, blended anew at every item.

Le, Tran and Venkatesh, "Neural Stored-program Memory", ICLR 2020.

Changed for the shared harness: as the DNC (see `remem.baselines.dnc`); reading is by content alone. The commands for
reading and those for writing have a program memory each: the authors' code for bAbI keeps two as well, but cuts their
results in another order than it joins them. Left open by the paper: the loss on the keys is the mean over the pairs
and the two memories, of the keys as they are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.baselines.dnc import DNCCell
from remem.baselines.word_by_word import Scalars, WordByWord
from remem.ops.memory_access import CommandLayout
from remem.ops.memory_access.reference import LARGEST, unit
from remem.ops.precision import at_least_float32, product


class ProgramMemory(nn.Module):
    """p programs, each a key and a linear map; what is executed is their blend.

    q = W_k h     beta = softplus(w_s h)     alpha = softmax_i(beta cos(tanh(key_i), tanh(q)))
    xi = (sum_i alpha_i W_i) h + sum_i alpha_i b_i

    Blending is linear, so all programs are run and their results blended: the same, without a matrix for each stream.
    """

    def __init__(self, *, input_dim: int, output_dim: int, num_programs: int, key_dim: int, gain: float) -> None:
        super().__init__()
        self.num_programs, self.output_dim = num_programs, output_dim
        # all programs, the query and its strength in one product
        self.run = nn.Linear(input_dim, num_programs * output_dim + key_dim + 1)
        self.keys = nn.Parameter(torch.randn(num_programs, key_dim))
        with torch.no_grad():
            for program in self.programs:
                nn.init.xavier_uniform_(program, gain=gain)

    @property
    def programs(self) -> Float[Tensor, "p x h"]:
        """W_i."""
        return self.run.weight[: self.num_programs * self.output_dim].unflatten(0, (self.num_programs, -1))

    def forward(self, features: Float[Tensor, "*b h"]) -> Float[Tensor, "*b x"]:
        """xi: the programs' results, blended."""
        results, asked = self.run(features).split([self.num_programs * self.output_dim, self.keys.shape[1] + 1], dim=-1)
        weights = self._weights(asked)
        return (weights[..., None] * results.unflatten(-1, (self.num_programs, -1))).sum(dim=-2)

    def weights(self, features: Float[Tensor, "*b h"]) -> Float[Tensor, "*b p"]:
        """alpha: how much of each program is executed."""
        start = self.num_programs * self.output_dim
        return self._weights(F.linear(features, self.run.weight[start:], self.run.bias[start:]))

    def _weights(self, asked: Float[Tensor, "*b a"]) -> Float[Tensor, "*b p"]:
        strength = F.softplus(at_least_float32(asked[..., -1:]).clamp(-LARGEST, LARGEST))
        cosine = product(unit(torch.tanh(asked[..., :-1])), unit(torch.tanh(self.keys)).T)
        return (strength * cosine).softmax(dim=-1)

    def key_similarity(self) -> Float[Tensor, ""]:
        """The mean cosine of two keys: by them the programs are told apart."""
        keys = unit(torch.tanh(self.keys))
        pairs = self.num_programs * (self.num_programs - 1) // 2
        return product(keys, keys.T).triu(diagonal=1).sum() / max(1, pairs)


class StoredPrograms(nn.Module):
    """The interface of a cell of one block: a program memory for reading and one for writing."""

    def __init__(
        self, *, input_dim: int, layout: CommandLayout, num_programs: int, key_dim: int, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.reading, self.writing = (
            ProgramMemory(input_dim=input_dim, output_dim=size, num_programs=num_programs, key_dim=key_dim, gain=gain)
            for size in (layout.reading, layout.writing)
        )

    def forward(self, features: Float[Tensor, "*b h"]) -> Float[Tensor, "*b x"]:
        """xi, in the order of `CommandLayout`."""
        return torch.cat([self.reading(features), self.writing(features)], dim=-1)


class NUTM(WordByWord):
    """NUTM as a `Memorizer`; sizes of the shared harness unless told otherwise.

    On bAbI its authors took 192 slots of 64 numbers and a controller of 172 with LayerNorm.
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
        num_programs: int = 4,
        key_dim: int | None = None,
        key_loss_weight: float = 0.1,
        program_gain: float = 1.0,
        masked: bool = False,
        deallocate: bool = False,
        norm_interface: bool = True,
        norm_controller: bool = False,
        norm_slots: bool = False,
    ) -> None:
        layout = CommandLayout(slot_dim=slot_dim or item_dim, num_reads=num_reads, links=False, masked=masked)
        width = controller_dim or item_dim
        programs = StoredPrograms(
            input_dim=width,
            layout=layout,
            num_programs=num_programs,
            key_dim=key_dim or num_programs,
            gain=program_gain,
        )
        super().__init__(
            DNCCell(
                item_dim=item_dim,
                num_slots=num_slots,
                controller_dim=width,
                layout=layout,
                interface=programs,
                deallocate=deallocate,
                norm_interface=norm_interface,
                norm_controller=norm_controller,
                norm_slots=norm_slots,
            )
        )
        self.key_loss_weight = key_loss_weight

    def observe(
        self, states: Sequence[Any], real: Bool[Tensor, "l b"], ids: Int[Tensor, "l b"] | None
    ) -> tuple[Scalars, Scalars]:
        """Besides the writes: whether one program does everything, and the loss that keeps their keys apart."""
        figures, losses = super().observe(states, real, ids)
        hidden = torch.stack([state.hidden.detach() for state in states])
        features, memories = self.cell.features(hidden), (self.programs.reading, self.programs.writing)
        shares = torch.stack([memory.weights(features).detach() for memory in memories])  # [2, l, b, p]
        used = shares.masked_fill(~real[..., None], 0.0).sum(dim=(1, 2)) / real.sum().clamp(min=1)
        figures["program_entropy"] = torch.special.entr(used).sum(dim=-1).mean()
        similarity = torch.stack([memory.key_similarity() for memory in memories]).mean()
        losses["program_keys"] = self.key_loss_weight * similarity
        return figures, losses

    @property
    def programs(self) -> StoredPrograms:
        """The cell's interface, by what it is."""
        return cast(StoredPrograms, self.cell.interface)
