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


def segment_attention(
    q: Float[Tensor, "s n h c"], k: Float[Tensor, "s n h c"], v: Float[Tensor, "s n h c"], mask: Bool[Tensor, "s n"]
) -> Float[Tensor, "s n h c"]:
    """out_i = sum_j softmax_j(q_i . k_j / sqrt(c)) v_j inside each segment, over the items j that the mask allows.

    Whatever lies in k and v at a hidden item, NaN included, has no influence and gets a gradient of zero. A hidden item
    still asks as a query. A segment with no item to attend gives zeros.
    """
    if not q.dtype == k.dtype == v.dtype:
        raise BadInput(f"q, k and v have the types {q.dtype}, {k.dtype} and {v.dtype}; convert them to one.")
    if not (q.shape == k.shape == v.shape and mask.shape == q.shape[:2]):
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v, mask))
        raise BadInput(f"q, k and v must share the shape [s, n, h, c] and the mask be [s, n]; given: {shapes}.")
    if q.is_cuda and HAS_TRITON and _fits(q):
        return _segment_attention(q, k, v, mask)
    return reference(q, k, v, mask)


def _fits(q: Tensor) -> bool:
    return q.shape[1] <= MAX_ITEMS and q.shape[3] in WIDTHS and q.dtype in (torch.bfloat16, torch.float32)


# operations of their own, so that torch.compile takes each as one node without looking inside; triton is imported by
# the first that runs, as the package must do without it
@torch.library.custom_op("remem::segment_attention", mutates_args=())
def _segment_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    from remem.ops.segment_attention.triton import forward

    return forward(q, k, v, mask)


@_segment_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return q.new_empty(q.shape)


@torch.library.custom_op("remem::segment_attention_backward", mutates_args=())
def _segment_attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    from remem.ops.segment_attention.triton import backward

    return backward(grad, q, k, v, mask)


@_segment_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return q.new_empty((3, *q.shape))


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    dq, dk, dv = _segment_attention_backward(grad, *ctx.saved_tensors).unbind(0)
    return dq, dk, dv, None


_segment_attention.register_autograd(_gradients, setup_context=_keep)
