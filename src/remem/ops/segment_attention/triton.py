"""The kernels, forward and backward (the equations are in README.md), and their launch.

A program takes G pairs (segment, head) as one batched tile [g, n, c], since a pair alone is a kilobyte or two and
hardly worth the start of a program. The backward pass computes the weights again from q and k: at these lengths that is
cheaper than to have stored them.

Only what could carry a NaN from a hidden key onwards is masked: forward the values, as 0 * NaN is NaN, backward the
keys; scores and their gradients are replaced where a key is hidden, whatever they are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

# kernels run as Python, for tests without a GPU
INTERPRETED = triton.knobs.runtime.interpret


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    """a b for each pair of the tile, summed in float32."""
    if PRECISION == "ieee":  # bfloat16 comes here when interpreted, which knows no 16-bit products
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _tile(
    pairs, stride_s, stride_n, stride_h,
    N: tl.constexpr, H: tl.constexpr, C: tl.constexpr, NP: tl.constexpr, G: tl.constexpr
):  # fmt: skip
    """Where this program's tile [g, n, c] lies in a tensor [s, n, h, c], and which of its rows exist."""
    # 64 bits before any product: a view into a large tensor can reach beyond 2^31 elements
    pair = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None, None]
    row = tl.arange(0, NP).to(tl.int64)[None, :, None]
    places = pair // H * stride_s + pair % H * stride_h + row * stride_n + tl.arange(0, C)[None, None, :]
    return places, (pair < pairs) & (row < N)


@triton.jit
def _keys(
    mask_ptr, pairs, stride_s, stride_n, N: tl.constexpr, H: tl.constexpr, NP: tl.constexpr, G: tl.constexpr
):  # fmt: skip
    """Which items may be attended, [g, n]."""
    pair = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None]
    row = tl.arange(0, NP).to(tl.int64)[None, :]
    return tl.load(mask_ptr + pair // H * stride_s + row * stride_n, mask=(pair < pairs) & (row < N), other=0) != 0


@triton.jit
def _weights(q, k, keys, scale, PRECISION: tl.constexpr):
    """P_ij = softmax_j(q_i . k_j scale) in float32, [g, i, j]; zeros in a row that may attend nothing."""
    scores = _dot(q, tl.permute(k, (0, 2, 1)), PRECISION)
    # powers of two, which the hardware has: e^x = 2^(x log2 e)
    scores = tl.where(keys[:, None, :], scores * (scale * 1.4426950408889634), float("-inf"))
    top = tl.max(scores, axis=2)
    # a row without a key is all -inf, and -inf - -inf would be NaN
    top = tl.where(top == float("-inf"), 0.0, top)
    powers = tl.exp2(scores - top[:, :, None])
    total = tl.sum(powers, axis=2)
    return powers * (1.0 / tl.where(total == 0.0, 1.0, total))[:, :, None]


# the number of pairs changes from batch to batch and must not make a new kernel each time
@triton.jit(do_not_specialize=["pairs"])
def _forward(
    q_ptr, k_ptr, v_ptr, mask_ptr, out_ptr, pairs, scale,
    q_s, q_n, q_h, k_s, k_n, k_h, v_s, v_n, v_h, mask_s, mask_n,
    N: tl.constexpr, H: tl.constexpr, C: tl.constexpr, NP: tl.constexpr, G: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    q_at, exists = _tile(pairs, q_s, q_n, q_h, N, H, C, NP, G)
    k_at, _ = _tile(pairs, k_s, k_n, k_h, N, H, C, NP, G)
    v_at, _ = _tile(pairs, v_s, v_n, v_h, N, H, C, NP, G)
    out_at, _ = _tile(pairs, N * H * C, H * C, C, N, H, C, NP, G)
    keys = _keys(mask_ptr, pairs, mask_s, mask_n, N, H, NP, G)

    q = tl.load(q_ptr + q_at, mask=exists, other=0.0)
    k = tl.load(k_ptr + k_at, mask=exists, other=0.0)
    v = tl.load(v_ptr + v_at, mask=exists & keys[:, :, None], other=0.0)
    weights = _weights(q, k, keys, scale, PRECISION)
    out = _dot(weights.to(v.dtype), v, PRECISION)
    tl.store(out_ptr + out_at, out.to(v.dtype), mask=exists)


@triton.jit(do_not_specialize=["pairs"])
def _backward(
    grad_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, dq_ptr, dk_ptr, dv_ptr, pairs, scale,
    grad_s, grad_n, grad_h, q_s, q_n, q_h, k_s, k_n, k_h, v_s, v_n, v_h, mask_s, mask_n,
    N: tl.constexpr, H: tl.constexpr, C: tl.constexpr, NP: tl.constexpr, G: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    grad_at, exists = _tile(pairs, grad_s, grad_n, grad_h, N, H, C, NP, G)
    q_at, _ = _tile(pairs, q_s, q_n, q_h, N, H, C, NP, G)
    k_at, _ = _tile(pairs, k_s, k_n, k_h, N, H, C, NP, G)
    v_at, _ = _tile(pairs, v_s, v_n, v_h, N, H, C, NP, G)
    out_at, _ = _tile(pairs, 3 * N * H * C, 3 * H * C, C, N, H, C, NP, G)  # side by side, as q, k and v are
    keys = _keys(mask_ptr, pairs, mask_s, mask_n, N, H, NP, G)

    grad = tl.load(grad_ptr + grad_at, mask=exists, other=0.0)
    q = tl.load(q_ptr + q_at, mask=exists, other=0.0)
    v = tl.load(v_ptr + v_at, mask=exists, other=0.0)
    k = tl.load(k_ptr + k_at, mask=exists & keys[:, :, None], other=0.0)
    weights = _weights(q, k, keys, scale, PRECISION)

    # dV = P^T dO
    dv = _dot(tl.permute(weights, (0, 2, 1)).to(v.dtype), grad, PRECISION)
    tl.store(dv_ptr + out_at, dv.to(v.dtype), mask=exists)
    # dP = dO V^T,  dS = P (dP - sum_j P dP) / sqrt(c)
    dweights = tl.where(keys[:, None, :], _dot(grad, tl.permute(v, (0, 2, 1)), PRECISION), 0.0)
    mean = tl.sum(weights * dweights, axis=2)
    dscores = weights * (dweights - mean[:, :, None]) * scale
    # dQ = dS K,  dK = dS^T Q
    dq = _dot(dscores.to(k.dtype), k, PRECISION)
    tl.store(dq_ptr + out_at, dq.to(q.dtype), mask=exists)
    dk = _dot(tl.permute(dscores, (0, 2, 1)).to(q.dtype), q, PRECISION)
    tl.store(dk_ptr + out_at, dk.to(k.dtype), mask=exists)


def forward(qkv: Float[Tensor, "s n 3 h c"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, "s n h c"]:
    """The attention of each segment's items to one another, contiguous."""
    s, n, _, h, c = qkv.shape
    out = torch.empty((s, n, h, c), dtype=qkv.dtype, device=qkv.device)
    _launch(_forward, qkv.unbind(2), mask, (out,))
    return out


def backward(
    grad: Float[Tensor, "s n h c"], qkv: Float[Tensor, "s n 3 h c"], mask: Bool[Tensor, "s n"]
) -> Float[Tensor, "s n 3 h c"]:
    """The gradients of q, k and v from that of the output, contiguous as one tensor."""
    grads = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    _launch(_backward, (grad, *qkv.unbind(2)), mask, grads.unbind(2))
    return grads


def _launch(kernel: Any, inputs: tuple[Tensor, ...], mask: Tensor, outputs: tuple[Tensor, ...]) -> None:
    segments, n, heads, width = outputs[0].shape
    pairs = segments * heads
    if not pairs * n:
        return  # a grid of no programs is an error
    # views are read as they lie; only a split last dimension, as in the gradient of a sum, is copied
    inputs = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in inputs)
    strides = [stride for x in inputs for stride in x.stride()[:3]]
    sizes = {"N": n, "H": heads, "C": width, **_shape_of_program(n, width, outputs[0].dtype)}
    # a kernel starts on the current device, whatever its arguments lie on
    with torch.cuda.device_of(mask):
        kernel[(triton.cdiv(pairs, sizes["G"]),)](
            *inputs, mask, *outputs, pairs, 1 / math.sqrt(width), *strides, *mask.stride(), **sizes
        )


def _shape_of_program(n: int, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Rows padded to what matrix units take; pairs and warps per program, chosen to keep registers from spilling."""
    rows = max(16, triton.next_power_of_2(n))
    tile = rows * width
    if dtype == torch.float32:
        # without matrix units (a tf32 product keeps three digits), so the threads of several warps share one pair
        return {"NP": rows, "G": 1, "num_warps": min(8, max(1, tile // 256)), "PRECISION": "ieee"}
    # a batched product gives whole matrices to each warp; tf32 is a mere default here, it means nothing to 16 bits
    pairs = min(4, max(1, 4096 // tile))
    return {"NP": rows, "G": pairs, "num_warps": pairs, "PRECISION": "ieee" if INTERPRETED else "tf32"}
