"""The feed-forward part of a Transformer layer, as it is written."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def reference(
    x: Float[Tensor, "*s d"],
    inner: Float[Tensor, "h d"],
    inner_bias: Float[Tensor, " h"],
    outer: Float[Tensor, "d h"],
    outer_bias: Float[Tensor, " d"],
) -> Float[Tensor, "*s d"]:
    """W_2 relu(W_1 x + b_1) + b_2."""
    return F.linear(F.linear(x, inner, inner_bias).relu(), outer, outer_bias)
