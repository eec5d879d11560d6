"""Where 16 bits are too few."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def at_least_float32(values: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """16-bit values widened before a softmax or a sum over time; 32 and 64 bits stay as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
