"""Where 16 bits are too few."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def at_least_float32(values: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """16-bit values widened before a softmax or a sum over time; 32 and 64 bits stay as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def product(left: Float[Tensor, "*b i j"], right: Float[Tensor, "... j o"]) -> Float[Tensor, "*b i o"]:
    """The matrix product in at least 32 bits, also where autocast would take 16."""
    with torch.autocast(left.device.type, enabled=False):
        return at_least_float32(left) @ at_least_float32(right)


def linear_in_32_bits(values: Float[Tensor, "*s i"], layer: nn.Linear) -> Float[Tensor, "*s o"]:
    """W x + b in at least 32 bits, also where autocast would take 16: for scores that are compared with one another."""
    bias = None if layer.bias is None else at_least_float32(layer.bias)
    with torch.autocast(values.device.type, enabled=False):
        return F.linear(at_least_float32(values), at_least_float32(layer.weight), bias)
