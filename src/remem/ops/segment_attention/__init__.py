"""Attention inside very many very short segments, where general attention kernels wait more than they work."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from remem.errors import BadInput
from remem.ops.paths import HAS_TRITON
from remem.ops.segment_attention.reference import reference

MAX_ITEMS = 32
WIDTHS = (16, 32, 64, 128)


def segment_attention(qkv: Float[Tensor, "s n 3 h c"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, "s n h c"]:
    """out_i = sum_j softmax_j(q_i . k_j / sqrt(c)) v_j inside each segment, over the items j that the mask allows.

    q, k and v come as the one projection that they are parts of, and so does their gradient: nothing is put together.
    Whatever lies in k and v at a hidden item, NaN included, has no influence and gets a gradient of zero. A hidden item
    still asks as a query. A segment with no item to attend gives zeros.
    """
    if qkv.ndim != 5 or qkv.shape[2] != 3 or mask.shape != qkv.shape[:2]:
        shapes = f"{tuple(qkv.shape)} and {tuple(mask.shape)}"
        raise BadInput(f"q, k and v must be one tensor [s, n, 3, h, c] and the mask [s, n]; given: {shapes}.")
    if qkv.is_cuda and HAS_TRITON and _fits(qkv):
        return _segment_attention(qkv, mask)
    return reference(qkv, mask)


def _fits(qkv: Tensor) -> bool:
    return qkv.shape[1] <= MAX_ITEMS and qkv.shape[-1] in WIDTHS and qkv.dtype in (torch.bfloat16, torch.float32)


# operations of their own, so that torch.compile takes each as one node without looking inside; triton is imported by
# the first that runs, as the package must do without it
@torch.library.custom_op("remem::segment_attention", mutates_args=())
def _segment_attention(qkv: Tensor, mask: Tensor) -> Tensor:
    from remem.ops.segment_attention.triton import forward

    return forward(qkv, mask)


@_segment_attention.register_fake
def _(qkv: Tensor, mask: Tensor) -> Tensor:
    s, n, _, h, c = qkv.shape
    return qkv.new_empty(s, n, h, c)


@torch.library.custom_op("remem::segment_attention_backward", mutates_args=())
def _segment_attention_backward(grad: Tensor, qkv: Tensor, mask: Tensor) -> Tensor:
    from remem.ops.segment_attention.triton import backward

    return backward(grad, qkv, mask)


@_segment_attention_backward.register_fake
def _(grad: Tensor, qkv: Tensor, mask: Tensor) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _segment_attention_backward(grad, *ctx.saved_tensors), None


_segment_attention.register_autograd(_gradients, setup_context=_keep)
