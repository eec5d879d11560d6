"""Writing one encoded segment into the slots (Eq. 1 and 2, Sec. 3.2)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from remem.model.attention import AdditiveScore, at_least_float32


class SlotWriter(nn.Module):
    """Slot-to-item attention and gate-based update.

    alpha_kn = w^T tanh(W_1 m_k + W_2 f_n + b)     l_k = sum_n softmax_k(alpha_kn) f_n     m_k' = GRU(m_k, l_k)

    The softmax runs over the slots: each item hands out one unit of itself among them.
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
        slot_identity: bool = False,
    ) -> None:
        super().__init__()
        self.attention = AdditiveScore(left_dim=item_dim, right_dim=item_dim, model_dim=model_dim, gain=score_gain)
        self.cell = nn.GRUCell(item_dim, item_dim)
        with torch.no_grad():
            self.cell.bias_hh[item_dim : 2 * item_dim] += keep_bias  # torch's z, the share of the old slot
        self.aligned_gain = aligned_gain
        self.identity = nn.Parameter(torch.randn(num_slots, model_dim)) if slot_identity else None

    def project(self, features: Float[Tensor, "*s n d"]) -> Float[Tensor, "*s n m"]:
        """W_2 f_n + b: the item side of the scores, which needs no memory and so no waiting for it."""
        return self.attention.right(features)

    def assign(
        self,
        slots: Float[Tensor, "b k d"],
        item_side: Float[Tensor, "b n m"],
        item_mask: Bool[Tensor, "b n"],
    ) -> Float[Tensor, "b k n"]:
        """alpha-hat of Eq. 1: how each item is shared out among the slots; nothing of a padded item."""
        slot_side = self.attention.left(slots)
        if self.identity is not None:
            slot_side = slot_side + self.identity
        scores = self.attention.pairs(slot_side[:, :, None], item_side[:, None])  # [b, k, n]
        return at_least_float32(scores).softmax(dim=1).masked_fill(~item_mask[:, None], 0.0)

    def align(
        self, assignment: Float[Tensor, "b k n"], features: Float[Tensor, "b n d"], item_mask: Bool[Tensor, "b n"]
    ) -> Float[Tensor, "b k d"]:
        """l_k of Eq. 1. A padded item may hold anything, so it is left out rather than multiplied by zero."""
        real = features.masked_fill(~item_mask[..., None], 0.0)
        return self.aligned_gain * (assignment.to(real.dtype) @ real)

    def update(self, slots: Float[Tensor, "b k d"], aligned: Float[Tensor, "b k d"]) -> Float[Tensor, "b k d"]:
        """m' = GRU(m, l) of Eq. 2, where torch's cell takes (input, hidden) and the paper (hidden, input).

        Written out because a cell under autocast would round the slots to 16 bits at every step of the stream.
        """
        from_items = at_least_float32(F.linear(aligned, self.cell.weight_ih, self.cell.bias_ih))
        from_slots = at_least_float32(F.linear(slots, self.cell.weight_hh, self.cell.bias_hh))
        reset_i, keep_i, new_i = from_items.chunk(3, dim=-1)
        reset_s, keep_s, new_s = from_slots.chunk(3, dim=-1)
        reset, keep = torch.sigmoid(reset_i + reset_s), torch.sigmoid(keep_i + keep_s)
        new = torch.tanh(new_i + reset * new_s)
        return torch.lerp(new, slots.to(new.dtype), keep)

    def forward(
        self,
        slots: Float[Tensor, "b k d"],
        features: Float[Tensor, "b n d"],
        item_side: Float[Tensor, "b n m"],
        item_mask: Bool[Tensor, "b n"],
    ) -> tuple[Float[Tensor, "b k d"], Float[Tensor, "b k n"]]:
        """The slots after the segment, and how its items were shared out."""
        assignment = self.assign(slots, item_side, item_mask)
        written = self.update(slots, self.align(assignment, features, item_mask))
        # rows whose segment is all padding have received nothing
        return torch.where(item_mask.any(dim=-1)[:, None, None], written, slots), assignment
