"""W_2 relu(W_1 x + b_1) + b_2, trained on a CPU a few rows at a time.

The layer in the middle is four times as wide as the rest. Taken whole, each of its gradients is tens of megabytes that
the system hands out page by page, to be read and written again from main memory; a block of rows stays in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from remem.ops.feed_forward.reference import reference
from remem.ops.linear_relu import linear_relu
from remem.ops.paths import fast

_BLOCK = 512  # rows at a time: at the paper's sizes their middle is a megabyte


def feed_forward(
    x: Float[Tensor, "*s d"],
    inner: Float[Tensor, "h d"],
    inner_bias: Float[Tensor, " h"],
    outer: Float[Tensor, "d h"],
    outer_bias: Float[Tensor, " d"],
) -> Float[Tensor, "*s d"]:
    """W_2 relu(W_1 x + b_1) + b_2, in the type that autocast gives a product."""
    if x.is_cuda:
        return F.linear(linear_relu(x, inner, inner_bias), outer, outer_bias)
    if fast() and _pays(x):
        return _InBlocks.apply(x.flatten(0, -2), inner, inner_bias, outer, outer_bias).view_as(x)  # type: ignore[no-untyped-call]
    return reference(x, inner, inner_bias, outer, outer_bias)


def _pays(x: Tensor) -> bool:
    """Only in training: what a memory holds must not depend on how many were written at once."""
    plain = x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    return plain and torch.is_grad_enabled() and x.numel() > _BLOCK * x.shape[-1]


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor) -> Tensor:
        middle, out = x.new_empty(len(x), len(inner)), torch.empty_like(x)
        for rows, h, y in zip(x.split(_BLOCK), middle.split(_BLOCK), out.split(_BLOCK), strict=True):
            torch.addmm(inner_bias, rows, inner.t(), out=h).relu_()
            torch.addmm(outer_bias, h, outer.t(), out=y)
        ctx.save_for_backward(x, inner, outer, middle)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, inner, outer, middle = ctx.saved_tensors
        on_x, on_inner, on_outer = torch.empty_like(x), torch.zeros_like(inner), torch.zeros_like(outer)
        on_inner_bias, scratch = inner.new_zeros(len(inner)), inner.new_empty(_BLOCK, len(inner))
        parts = (each.split(_BLOCK) for each in (grad.contiguous(), x, middle, on_x))
        for g, rows, h, on_rows in zip(*parts, strict=True):
            on_h = torch.mm(g, outer, out=scratch[: len(g)])
            torch.ops.aten.threshold_backward.grad_input(on_h, h, 0.0, grad_input=on_h)
            on_outer.addmm_(g.t(), h)
            on_inner.addmm_(on_h.t(), rows)
            on_inner_bias += on_h.sum(dim=0)
            torch.mm(on_h, inner, out=on_rows)
        return on_x, on_inner, on_inner_bias, on_outer, grad.sum(dim=0)
