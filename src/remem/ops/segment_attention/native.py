"""The same attention on a CPU, in C."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from remem.ops.native import address, library, sizes, there

SOURCE = Path(__file__).with_name("cpu.c")
MOST_ITEMS = 32  # with more, Torch's own attention has enough to do


def fits(qkv: Float[Tensor, "s n 3 h c"]) -> bool:
    """Whether the kernels can be had and pay. While training alone: what is served must not depend on a compiler."""
    return (
        torch.is_grad_enabled()
        and qkv.requires_grad
        and qkv.device.type == "cpu"
        and qkv.dtype == torch.float32
        and qkv.shape[1] <= MOST_ITEMS
        and there(SOURCE)
    )


# operations of their own, so that torch.compile takes each as one node without looking inside
@torch.library.custom_op("remem::segment_attention_cpu", mutates_args=())
def segment_attention_cpu(qkv: Tensor, mask: Tensor) -> Tensor:
    """`segment_attention` of q, k and v as the one projection that they are parts of; where it `fits`."""
    qkv, mask = qkv.contiguous(), mask.contiguous()
    s, n, _, h, c = qkv.shape
    out = qkv.new_empty(s, n, h, c)
    _done(_kernels().attend(*sizes(s, n, h, c), address(qkv), address(mask), address(out)))
    return out


@torch.library.custom_op("remem::segment_attention_cpu_backward", mutates_args=())
def _backward(grad: Tensor, qkv: Tensor, mask: Tensor) -> Tensor:
    grad, qkv, mask = grad.contiguous(), qkv.contiguous(), mask.contiguous()
    s, n, _, h, c = qkv.shape
    d_qkv = torch.empty_like(qkv)
    tensors = (address(tensor) for tensor in (qkv, mask, grad, d_qkv))
    _done(_kernels().attend_backward(*sizes(s, n, h, c), *tensors))
    return d_qkv


@segment_attention_cpu.register_fake
def _(qkv: Float[Tensor, "s n 3 h c"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, "s n h c"]:
    s, n, _, h, c = qkv.shape
    return qkv.new_empty(s, n, h, c)


@_backward.register_fake
def _(grad: Tensor, qkv: Tensor, mask: Tensor) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _backward(grad, *ctx.saved_tensors), None


segment_attention_cpu.register_autograd(_gradients, setup_context=_keep)


def _kernels() -> ctypes.CDLL:
    kernels = library(SOURCE)
    assert kernels is not None
    return kernels


def _done(failed: int) -> None:
    if failed:
        raise MemoryError("There is no memory left for the attention of a batch.")
