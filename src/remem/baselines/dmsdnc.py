"""DMSDNC: a DNC with several memory blocks, which while it trains must also reproduce some of what it reads.

Park, Choi and Lee, "Distributed Memory based Self-Supervised Differentiable Neural Computer", 2020; published later as
"Distributed Associative Memory Network with Memory Refreshing Loss" (Neural Networks, 2021).

Changed for the shared harness: as the DNC (see `remem.baselines.dnc`); the K slots are split over the blocks and each
slot carries the mark of its block to the reasoner; the answer comes from the shared reasoner, so the loss of
reproduction is added to the answer's, both of them means, rather than balanced against it word by word. Besides the
controller's output, which its authors put through a LayerNorm, the commands go through one, as the DNC's do: with it,
remembering the first of 50 items is learned in about half the steps. Left open by the paper, for this use: items that
are vectors to begin with have no number to name, and then there is no such loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.baselines.dnc import DNCCell
from remem.baselines.word_by_word import Scalars, WordByWord, mean_over
from remem.ops.memory_access import CommandLayout


class ReproductionHead(nn.Module):
    """y = W_y [dropout(h); r]: which item was just read.

    The dropout is on the controller's side only ("bypass dropout"), so that the memory is worth reading.
    """

    def __init__(self, *, input_dim: int, read_dim: int, num_items: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.name = nn.Linear(input_dim + read_dim, num_items)

    def forward(self, features: Float[Tensor, "*b h"], reads: Float[Tensor, "*b x"]) -> Float[Tensor, "*b i"]:
        return self.name(torch.cat([self.dropout(features), reads], dim=-1))


def reproduction_loss(
    scores: Float[Tensor, "*b i"], ids: Int[Tensor, "*b"], chosen: Bool[Tensor, "*b"]
) -> Float[Tensor, ""]:
    """-log of the true item's share; mean over the chosen items, zero if there are none."""
    loss = F.cross_entropy(scores.float().flatten(0, -2), ids.flatten(), reduction="none")
    return mean_over(loss, chosen.flatten())


class DMSDNC(WordByWord):
    """DMSDNC as a `Memorizer`; sizes of the shared harness unless told otherwise.

    On bAbI its authors took two blocks of 128 slots of 48 numbers and a controller of 256, and no LayerNorm on the
    commands.

    Args:
        num_slots: of all blocks together.
        num_items: how many different items there are to name; None where there is nothing to reproduce.
        reproduced: the share of items that are to be reproduced.
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
        num_blocks: int = 2,
        num_items: int | None = None,
        reproduced: float = 0.1,
        reproduction_weight: float = 1.0,
        bypass_dropout: float = 0.1,
        norm_interface: bool = True,
        norm_slots: bool = False,
    ) -> None:
        width, slot_dim = controller_dim or item_dim, slot_dim or item_dim
        super().__init__(
            DNCCell(
                item_dim=item_dim,
                num_slots=num_slots,
                controller_dim=width,
                layout=CommandLayout(slot_dim=slot_dim, num_reads=num_reads, num_blocks=num_blocks, links=False),
                norm_interface=norm_interface,
                norm_controller=True,
                norm_slots=norm_slots,
            )
        )
        self.reproduced, self.reproduction_weight = reproduced, reproduction_weight
        self.head = (
            None
            if num_items is None
            else ReproductionHead(
                input_dim=width, read_dim=num_reads * slot_dim, num_items=num_items, dropout=bypass_dropout
            )
        )

    def observe(
        self, states: Sequence[Any], real: Bool[Tensor, "l b"], ids: Int[Tensor, "l b"] | None
    ) -> tuple[Scalars, Scalars]:
        """Besides the writes: while training, how well items chosen by chance are reproduced."""
        figures, losses = super().observe(states, real, ids)
        if self.head is None or ids is None or not self.training:
            return figures, losses
        features = self.cell.features(torch.stack([state.hidden for state in states]))
        scores = self.head(features, torch.stack([state.reads for state in states]))
        # all items are scored and some are counted: how many are chosen is for the device to know
        chosen = real & (torch.rand(real.shape, device=real.device) < self.reproduced)
        losses["reproduction"] = self.reproduction_weight * reproduction_loss(scores, ids, chosen)
        return figures, losses
