"""W_2 relu(W_1 x + b_1) + b_2, trained on a CPU some rows at a time.

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
from remem.ops.linear import product, trained_here
from remem.ops.linear_relu import linear_relu

_BLOCK = 1024  # rows at a time: at the paper's sizes their middle is two megabytes


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
    if trained_here(x):
        return _InBlocks.apply(x.flatten(0, -2), inner, inner_bias, outer, outer_bias).view_as(x)  # type: ignore[no-untyped-call]
    return reference(x, inner, inner_bias, outer, outer_bias)


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor) -> Tensor:
        middle, out = [], torch.empty_like(x)
        for rows, to in zip(x.split(_BLOCK), out.split(_BLOCK), strict=True):
            middle.append(product(rows, inner, inner_bias).relu_())
            to.copy_(product(middle[-1], outer, outer_bias))
        ctx.save_for_backward(x, inner, outer, *middle)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, inner, outer, *middle = ctx.saved_tensors
        inner_turned, outer_turned = inner.t().contiguous(), outer.t().contiguous()
        on_x, on_inner, on_outer = torch.empty_like(x), torch.zeros_like(inner), torch.zeros_like(outer)
        on_inner_bias = inner.new_zeros(len(inner))
        for g, rows, h, to in zip(grad.split(_BLOCK), x.split(_BLOCK), middle, on_x.split(_BLOCK), strict=True):
            on_h = product(g, outer_turned)
            torch.ops.aten.threshold_backward.grad_input(on_h, h, 0.0, grad_input=on_h)
            on_outer.addmm_(g.t(), h)
            on_inner.addmm_(on_h.t(), rows)
            on_inner_bias += on_h.sum(dim=0)
            to.copy_(product(on_h, inner_turned))
        return on_x, on_inner, on_inner_bias, on_outer, grad.sum(dim=0)
