"""The truth that the kernels are held to, and what runs where they cannot."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def reference(qkv: Float[Tensor, "s n 3 h c"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, "s n h c"]:
    """out_i = sum_j softmax_j(q_i . k_j / sqrt(c)) v_j over the items j that the mask allows, in at least float32."""
    q, k, v = qkv.unbind(2)
    wide = torch.promote_types(q.dtype, torch.float32)
    hidden = ~mask
    # filled rather than weighted by zero: padding may hold NaN, and 0 * NaN is NaN
    keys, values = (x.to(wide).masked_fill(hidden[:, :, None, None], 0) for x in (k, v))
    scores = torch.einsum("sihc,sjhc->shij", q.to(wide), keys) * q.shape[-1] ** -0.5
    # the lowest finite number, as a row of nothing but -inf would make NaN
    weights = scores.masked_fill(hidden[:, None, None], torch.finfo(wide).min).softmax(dim=-1)
    weights = weights.masked_fill(hidden[:, None, None], 0)  # [s, h, i, j]; a row with no key gives zeros
    return torch.einsum("shij,sjhc->sihc", weights, values).to(q.dtype).contiguous()
