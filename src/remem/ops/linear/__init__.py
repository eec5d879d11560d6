"""W x + b, trained on a CPU: products of many short rows by oneDNN, which has them sooner than Torch's own choice.

The gradient of W, a product of the other shape, stays with that. What is not trained goes the plain way: a memory must
not depend on which library computed it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from remem.ops.paths import fast

_LEAST_ROWS = 512


def linear(x: Float[Tensor, "*s i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"]) -> Float[Tensor, "*s o"]:
    """W x + b, in the type that autocast gives a product."""
    if not trained_here(x):
        return F.linear(x, weight, bias)
    out: Tensor = _Linear.apply(x.flatten(0, -2), weight, bias)  # type: ignore[no-untyped-call]
    return out.unflatten(0, x.shape[:-1])


def trained_here(x: Tensor) -> bool:
    """Whether there are many rows in float32 on a CPU, and their gradients are wanted."""
    if x.device.type != "cpu" or not fast() or torch.compiler.is_compiling():
        return False
    wanted = torch.is_grad_enabled() and x.requires_grad
    plain = x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return wanted and plain and x.numel() > _LEAST_ROWS * x.shape[-1]


def product(
    x: Float[Tensor, "s i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "s o"]:
    """W x + b, by oneDNN if it is there; it is not asked to clip as well, as it would make zeros of what is NaN."""
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight.contiguous(), bias, "none", [], "")
    return F.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return product(grad, weight.t()), grad.t() @ x, grad.sum(dim=0)
