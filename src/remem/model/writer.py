"""Writing one encoded segment into the slots (Eq. 1 and 2, Sec. 3.2)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.model.attention import AdditiveScore
from remem.ops.write_scan import Scanned, ScanWeights, prepare, reference, write_scan


class SlotWriter(nn.Module):
    """Slot-to-item attention and gate-based update.

    alpha_kn = w^T tanh(W_1 m_k + W_2 f_n + b)     l_k = sum_n softmax_k(alpha_kn) f_n     m_k' = GRU(m_k, l_k)

    The softmax runs over the slots: each item hands out one unit of itself among them. The equations themselves are in
    `remem.ops.write_scan.reference`.
    """

    def __init__(
        self,
        *,
        item_dim: int,
        model_dim: int,
        num_slots: int,
        aligned_gain: float = 1.0,
        score_gain: float = 1.0,
        keep_bias: float = 0.0,
        keep_spread: float = 0.0,
        copy_start: bool = False,
        slot_identity: bool = False,
    ) -> None:
        super().__init__()
        self.attention = AdditiveScore(left_dim=item_dim, right_dim=item_dim, model_dim=model_dim, gain=score_gain)
        self.cell = nn.GRUCell(item_dim, item_dim)
        with torch.no_grad():
            # torch's z, the share of the old slot
            self.cell.bias_hh[item_dim : 2 * item_dim] += torch.linspace(keep_bias, keep_bias + keep_spread, item_dim)
            if copy_start:
                self.cell.weight_ih[2 * item_dim :] = 0.5 * torch.eye(item_dim)
                self.cell.weight_hh[2 * item_dim :] = 0.0
        self.aligned_gain = aligned_gain
        self._prepare = prepare
        self.identity = nn.Parameter(torch.randn(num_slots, model_dim)) if slot_identity else None

    @property
    def weights(self) -> ScanWeights:
        """All that the scan needs, by the equations' names."""
        attention, cell = self.attention, self.cell
        return ScanWeights(
            slot_side=attention.left.weight,
            item_side=attention.right.weight,
            item_side_bias=attention.right.bias,
            identity=self.identity,
            score=attention.score.weight[0],
            items_to_gates=cell.weight_ih,
            slots_to_gates=cell.weight_hh,
            items_bias=cell.bias_ih,
            slots_bias=cell.bias_hh,
        )

    def forward(
        self, slots: Float[Tensor, "b k d"], features: Float[Tensor, "b n d"], item_mask: Bool[Tensor, "b n"]
    ) -> tuple[Float[Tensor, "b k d"], Float[Tensor, "b k n"]]:
        """The slots after one segment, and how its items were shared out."""
        weights = self.weights
        item_side = reference.project(features, weights)
        return reference.write_segment(slots, features, item_side, item_mask, weights, self.aligned_gain)

    def scan(
        self,
        slots: Float[Tensor, "b k d"],
        features: Float[Tensor, "s n d"],
        item_mask: Bool[Tensor, "s n"],
        order: Int[Tensor, "b t"],
        segment_mask: Bool[Tensor, "b t"],
        *,
        in_turn: bool = False,
    ) -> Scanned:
        """The slots along whole streams, which point by `order` into the table of encoded segments."""
        return write_scan(
            slots, features, item_mask, order, segment_mask, self.weights, self.aligned_gain,
            in_turn=in_turn, prepare=self._prepare,
        )  # fmt: skip

    def compile_parts(self, backend: str) -> None:
        """What comes before the scan, which has kernels of its own."""
        self._prepare = torch.compile(prepare, backend=backend)
