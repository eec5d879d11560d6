"""The feed-forward part of a Transformer layer, as it is written."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from remem.ops.dropout import dropout


def reference(
    x: Float[Tensor, "*s d"],
    inner: Float[Tensor, "h d"],
    inner_bias: Float[Tensor, " h"],
    outer: Float[Tensor, "d h"],
    outer_bias: Float[Tensor, " d"],
    drop: float = 0.0,
) -> Float[Tensor, "*s d"]:
    """W_2 drop(relu(W_1 x + b_1)) + b_2."""
    middle = F.linear(x, inner, inner_bias).relu()
    return F.linear(dropout(middle, drop) if drop else middle, outer, outer_bias)
