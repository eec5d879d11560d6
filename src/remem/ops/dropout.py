"""Dropout while training on a CPU: four numbers are decided by one draw of 64 bits, where Torch draws for each."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from remem.ops.paths import fast

_LEVELS = 2**16  # a share is kept to within one in so many


class Dropout(nn.Dropout):
    """`nn.Dropout`, by the draws of `dropout`."""

    def forward(self, x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        return dropout(x, self.p) if self.training and self.p else x


def dropout(x: Float[Tensor, "*s"], p: float) -> Float[Tensor, "*s"]:
    """x with a share p of its numbers set to zero, at random, and the others divided by 1 - p."""
    if x.device.type != "cpu" or not fast() or torch.compiler.is_compiling():
        return F.dropout(x, p)
    out: Tensor = _Dropout.apply(x, draw_kept(x, p), 1 / (1 - p))  # type: ignore[no-untyped-call]
    return out


def draw_kept(x: Float[Tensor, "*s"], p: float) -> Bool[Tensor, "*s"]:
    """Which numbers stay: 16 random bits for each are compared with p."""
    draws = torch.empty(math.ceil(x.numel() / 4), dtype=torch.int64).random_(-(2**63), 2**63 - 1)
    lanes = draws.view(torch.int16)[: x.numel()].view(x.shape)
    return lanes >= min(round(p * _LEVELS), _LEVELS - 1) - _LEVELS // 2


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return (x * kept).mul_(scale)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return (grad * kept).mul_(ctx.scale), None, None
