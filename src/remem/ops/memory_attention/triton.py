"""The kernels, forward and backward (the equations are in README.md), and their launch.

A program takes one pair (stream, head): its keys and values stay on the chip while the rows that ask pass by in blocks.
So the gradients of keys and values are sums inside one program, and the weights, computed again, are never stored.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

# kernels run as Python, for tests without a GPU
INTERPRETED = triton.knobs.runtime.interpret


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    """a b, summed in float32."""
    if PRECISION == "ieee":  # bfloat16 comes here when interpreted, which knows no 16-bit products
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _corner(stride_s, stride_h, H: tl.constexpr):
    """Where this program's pair begins."""
    # 64 bits before any product: a view into a large tensor can reach beyond 2^31 elements
    pair = tl.program_id(0).to(tl.int64)
    return pair // H * stride_s + pair % H * stride_h


@triton.jit
def _places(first, stride, ROWS: tl.constexpr, C: tl.constexpr):
    """ROWS rows from the given one on, [rows, c]."""
    return (first + tl.arange(0, ROWS).to(tl.int64))[:, None] * stride + tl.arange(0, C)[None, :]


@triton.jit
def _weights(q, k, scale, J: tl.constexpr, JP: tl.constexpr, PRECISION: tl.constexpr):
    """P_ij = softmax_j(q_i . k_j scale) in float32, [i, j]."""
    # powers of two, which the hardware has: e^x = 2^(x log2 e)
    scores = _dot(q, tl.trans(k), PRECISION) * (scale * 1.4426950408889634)
    scores = tl.where((tl.arange(0, JP) < J)[None, :], scores, float("-inf"))
    powers = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    return powers * (1.0 / tl.sum(powers, axis=1))[:, None]


# the number of rows changes from batch to batch and must not make a new kernel each time
@triton.jit(do_not_specialize=["rows"])
def _memory_forward(
    q_ptr, k_ptr, v_ptr, out_ptr, rows, scale, q_s, q_i, q_h, kv_s, kv_j, kv_h,
    J: tl.constexpr, H: tl.constexpr, C: tl.constexpr, JP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    slots = _corner(kv_s, kv_h, H) + _places(0, kv_j, JP, C)
    is_slot = (tl.arange(0, JP) < J)[:, None]
    k = tl.load(k_ptr + slots, mask=is_slot, other=0.0)
    v = tl.load(v_ptr + slots, mask=is_slot, other=0.0)
    q_ptr += _corner(q_s, q_h, H)
    out_ptr += _corner(rows * H * C, C, H)
    for first in range(0, rows, BLOCK):
        exists = (first + tl.arange(0, BLOCK) < rows)[:, None]
        q = tl.load(q_ptr + _places(first, q_i, BLOCK, C), mask=exists, other=0.0)
        out = _dot(_weights(q, k, scale, J, JP, PRECISION).to(v.dtype), v, PRECISION)
        tl.store(out_ptr + _places(first, H * C, BLOCK, C), out.to(v.dtype), mask=exists)


@triton.jit(do_not_specialize=["rows"])
def _memory_backward(
    grad_ptr, q_ptr, k_ptr, v_ptr, dq_ptr, dk_ptr, dv_ptr, rows, scale,
    grad_s, grad_i, grad_h, q_s, q_i, q_h, kv_s, kv_j, kv_h,
    J: tl.constexpr, H: tl.constexpr, C: tl.constexpr, JP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    slots = _corner(kv_s, kv_h, H) + _places(0, kv_j, JP, C)
    is_slot = (tl.arange(0, JP) < J)[:, None]
    k = tl.load(k_ptr + slots, mask=is_slot, other=0.0)
    v = tl.load(v_ptr + slots, mask=is_slot, other=0.0)
    grad_ptr += _corner(grad_s, grad_h, H)
    q_ptr += _corner(q_s, q_h, H)
    dq_ptr += _corner(rows * H * C, C, H)
    dk = tl.zeros([JP, C], dtype=tl.float32)
    dv = tl.zeros([JP, C], dtype=tl.float32)
    for first in range(0, rows, BLOCK):
        # a row beyond the last has a gradient of zero and so adds nothing
        exists = (first + tl.arange(0, BLOCK) < rows)[:, None]
        grad = tl.load(grad_ptr + _places(first, grad_i, BLOCK, C), mask=exists, other=0.0)
        q = tl.load(q_ptr + _places(first, q_i, BLOCK, C), mask=exists, other=0.0)
        weights = _weights(q, k, scale, J, JP, PRECISION)
        # dV = P^T dO
        dv += _dot(tl.trans(weights.to(v.dtype)), grad, PRECISION)
        # dP = dO V^T,  dS = P (dP - sum_j P dP) / sqrt(c)
        dweights = _dot(grad, tl.trans(v), PRECISION)
        mean = tl.sum(weights * dweights, axis=1)
        dscores = (weights * (dweights - mean[:, None]) * scale).to(k.dtype)
        # dQ = dS K,  dK = dS^T Q
        dq = _dot(dscores, k, PRECISION)
        tl.store(dq_ptr + _places(first, H * C, BLOCK, C), dq.to(q.dtype), mask=exists)
        dk += _dot(tl.trans(dscores), q, PRECISION)
    at = _corner(J * 2 * H * C, C, H) + _places(0, 2 * H * C, JP, C)  # side by side, as keys and values are
    tl.store(dk_ptr + at, dk.to(k.dtype), mask=is_slot)
    tl.store(dv_ptr + at, dv.to(v.dtype), mask=is_slot)


def forward(q: Float[Tensor, "s i h c"], kv: Float[Tensor, "s j 2 h c"]) -> Float[Tensor, "s i h c"]:
    """What each row takes from its stream's memory, contiguous."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _launch(_memory_forward, (q,), kv, (out,))
    return out


def backward(
    grad: Float[Tensor, "s i h c"], q: Float[Tensor, "s i h c"], kv: Float[Tensor, "s j 2 h c"]
) -> tuple[Float[Tensor, "s i h c"], Float[Tensor, "s j 2 h c"]]:
    """The gradients of the queries, and of keys and values as one tensor, both contiguous."""
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dkv = torch.empty(kv.shape, dtype=kv.dtype, device=kv.device)
    _launch(_memory_backward, (grad, q), kv, (dq, *dkv.unbind(2)))
    return dq, dkv


def _launch(kernel: Any, rows: tuple[Tensor, ...], kv: Tensor, outputs: tuple[Tensor, ...]) -> None:
    streams, slots, _, heads, width = kv.shape
    if not streams * heads:
        return  # a grid of no programs is an error
    # views are read as they lie; only a split last dimension, as in the gradient of a sum, is copied
    *rows, kv = (x if x.stride(-1) == 1 else x.contiguous() for x in (*rows, kv))
    keys, values = kv.unbind(2)
    strides = [stride for x in (*rows, keys) for stride in x.stride()[:3]]
    sizes = {"J": slots, "H": heads, "C": width, **_shape_of_program(slots, width, kv.dtype)}
    # a kernel starts on the current device, whatever its arguments lie on
    with torch.cuda.device_of(kv):
        kernel[(streams * heads,)](
            *rows, keys, values, *outputs, outputs[0].shape[1], 1 / math.sqrt(width), *strides, **sizes
        )


def _shape_of_program(slots: int, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Slots padded to what matrix units take; rows and warps per program, so that eight programs share a processor."""
    padded = max(16, triton.next_power_of_2(slots))
    if dtype == torch.float32:
        # without matrix units: a tf32 product keeps three digits
        return {"JP": padded, "BLOCK": 16, "num_warps": 4, "num_stages": 2, "PRECISION": "ieee"}
    # tf32 is a mere default here, it means nothing to 16 bits
    precision = "ieee" if INTERPRETED else "tf32"
    warps = 2 if width <= 32 else 4
    return {"JP": padded, "BLOCK": 32, "num_warps": warps, "num_stages": 2, "PRECISION": precision}
