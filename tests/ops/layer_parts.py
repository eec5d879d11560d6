"""What tests of layers share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def with_gradients(layer: Callable[..., Tensor], leaves: list[Tensor], grad: Tensor) -> list[Tensor]:
    """The output, then the gradients of the input and of every weight."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    out = layer(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(out.dtype))]


def assert_close(mine: list[Tensor], true: list[Tensor]) -> None:
    """Each within 1e-5 of the largest number of its counterpart."""
    for a, b in zip(mine, true, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * max(1.0, float(b.abs().max())))
