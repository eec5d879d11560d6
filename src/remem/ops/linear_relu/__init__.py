"""relu(W x + b) by one kernel: cuBLAS clips its product before it writes it, which otherwise is read and written again.

torch.compile does not fuse an activation into a product of cuBLAS, and would keep a mask for the way back besides the
result, which says the same.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from remem.ops.linear_relu.reference import reference
from remem.ops.paths import fast


def linear_relu(
    x: Float[Tensor, "*s i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"]
) -> Float[Tensor, "*s o"]:
    """relu(W x + b), in the type that autocast gives a product."""
    if x.is_cuda and fast():
        return _linear_relu(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])
    return reference(x, weight, bias)


# an operation of its own, as torch has no gradient for the one inside
@torch.library.custom_op("remem::linear_relu", mutates_args=())
def _linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch._addmm_activation(bias, x, weight.t())


@_linear_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(len(x), len(weight))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, out = ctx.saved_tensors
    grad = grad.masked_fill(out <= 0, 0.0)
    return grad @ weight, grad.mT @ x, grad.sum(dim=0)


_linear_relu.register_autograd(_gradients, setup_context=_keep)
for _device in ("cuda", "cpu"):
    _linear_relu.register_autocast(_device, torch.bfloat16)
