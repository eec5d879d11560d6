"""W_2 drop(relu(W_1 x + b_1)) + b_2, trained on a CPU some rows at a time.

The layer in the middle is four times as wide as the rest. Taken whole, each of its gradients is tens of megabytes that
the system hands out page by page, to be read and written again from main memory; a block of rows stays in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from remem.ops.dropout import draw_kept
from remem.ops.feed_forward.reference import reference
from remem.ops.linear_relu import linear_relu
from remem.ops.paths import fast

_LEAST_ROWS = 512
_BLOCK = 1024  # rows at a time: at the paper's sizes their middle is two megabytes


def feed_forward(
    x: Float[Tensor, "*s d"],
    inner: Float[Tensor, "h d"],
    inner_bias: Float[Tensor, " h"],
    outer: Float[Tensor, "d h"],
    outer_bias: Float[Tensor, " d"],
    drop: float = 0.0,
) -> Float[Tensor, "*s d"]:
    """W_2 drop(relu(W_1 x + b_1)) + b_2, in the type that autocast gives a product; a share `drop` of the middle is
    dropped."""
    if x.is_cuda and not drop:  # what drops can clip as well
        return F.linear(linear_relu(x, inner, inner_bias), outer, outer_bias)
    if _pays(x):
        return _InBlocks.apply(x.flatten(0, -2), inner, inner_bias, outer, outer_bias, drop).view_as(x)  # type: ignore[no-untyped-call]
    return reference(x, inner, inner_bias, outer, outer_bias, drop)


def _pays(x: Tensor) -> bool:
    """Whether there are many rows in float32 on a CPU, and their gradients are wanted."""
    if x.device.type != "cpu" or not fast() or torch.compiler.is_compiling():
        return False
    wanted = torch.is_grad_enabled() and x.requires_grad
    plain = x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return wanted and plain and x.numel() > _LEAST_ROWS * x.shape[-1]


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor, drop: float
    ) -> Tensor:
        middle, out = [], torch.empty_like(x)
        for rows, to in zip(x.split(_BLOCK), out.split(_BLOCK), strict=True):
            h = F.linear(rows, inner, inner_bias).relu_()
            if drop:
                h.mul_(draw_kept(h, drop)).div_(1 - drop)
            to.copy_(F.linear(h, outer, outer_bias))
            middle.append(h)
        ctx.save_for_backward(x, inner, outer, *middle)
        ctx.drop = drop
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, outer, *middle = ctx.saved_tensors
        inner_turned, outer_turned = inner.t().contiguous(), outer.t().contiguous()
        on_x, on_inner, on_outer = torch.empty_like(x), torch.zeros_like(inner), torch.zeros_like(outer)
        on_inner_bias = inner.new_zeros(len(inner))
        for g, rows, h, to in zip(grad.split(_BLOCK), x.split(_BLOCK), middle, on_x.split(_BLOCK), strict=True):
            on_h = F.linear(g, outer_turned)
            # what was dropped is zero, as is what was clipped
            torch.ops.aten.threshold_backward.grad_input(on_h, h, 0.0, grad_input=on_h)
            if ctx.drop:
                on_h.div_(1 - ctx.drop)
            on_outer.addmm_(g.t(), h)
            on_inner.addmm_(on_h.t(), rows)
            on_inner_bias += on_h.sum(dim=0)
            to.copy_(F.linear(on_h, inner_turned))
        return on_x, on_inner, on_inner_bias, on_outer, grad.sum(dim=0), None
