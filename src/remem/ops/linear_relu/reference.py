"""The truth, and what runs where the fast way does not pay."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def reference(
    x: Float[Tensor, "*s i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"]
) -> Float[Tensor, "*s o"]:
    """relu(W x + b)."""
    return F.relu(F.linear(x, weight, bias))
