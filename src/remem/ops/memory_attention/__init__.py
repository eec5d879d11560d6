"""Attention of many rows to one small memory, where general attention kernels are mostly padding."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from remem.errors import BadInput
from remem.ops.memory_attention.reference import reference
from remem.ops.paths import HAS_TRITON, fast

MAX_SLOTS = 64
WIDTHS = (16, 32, 64, 128)


def memory_attention(q: Float[Tensor, "s i h c"], kv: Float[Tensor, "s j 2 h c"]) -> Float[Tensor, "s i h c"]:
    """out_i = sum_j softmax_j(q_i . k_j / sqrt(c)) v_j: the rows i of each stream ask all its slots j.

    Keys and values come as the one projection that they are parts of, and so does their gradient.
    """
    if q.dtype != kv.dtype:
        raise BadInput(f"Queries are {q.dtype} and keys {kv.dtype}; convert them to one type.")
    if q.ndim != 4 or kv.ndim != 5 or (kv.shape[0], *kv.shape[2:]) != (q.shape[0], 2, *q.shape[2:]):
        shapes = f"{tuple(q.shape)} and {tuple(kv.shape)}"
        raise BadInput(f"Queries must be [s, i, h, c], keys and values one tensor [s, j, 2, h, c]; given: {shapes}.")
    if q.is_cuda and HAS_TRITON and fast() and _fits(kv):
        return _memory_attention(q, kv)
    return reference(q, kv)


def _fits(kv: Tensor) -> bool:
    return 0 < kv.shape[1] <= MAX_SLOTS and kv.shape[-1] in WIDTHS and kv.dtype in (torch.bfloat16, torch.float32)


# operations of their own, so that torch.compile takes each as one node without looking inside; triton is imported by
# the first that runs, as the package must do without it
@torch.library.custom_op("remem::memory_attention", mutates_args=())
def _memory_attention(q: Tensor, kv: Tensor) -> Tensor:
    from remem.ops.memory_attention.triton import forward

    return forward(q, kv)


@_memory_attention.register_fake
def _(q: Tensor, kv: Tensor) -> Tensor:
    return q.new_empty(q.shape)


@torch.library.custom_op("remem::memory_attention_backward", mutates_args=())
def _memory_attention_backward(grad: Tensor, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
    from remem.ops.memory_attention.triton import backward

    return backward(grad, q, kv)


@_memory_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), kv.new_empty(kv.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    return _memory_attention_backward(grad, *ctx.saved_tensors)


_memory_attention.register_autograd(_gradients, setup_context=_keep)
