"""The write scan as two Triton kernels: one program carries one stream's slots through all its segments.

The slots stay in registers from segment to segment; the weights come from the L2 cache. README.md has the derivation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MULTIPROCESSORS = 132  # of the GPU this was tuned on


@triton.jit
def _tanh(x, FAST: tl.constexpr):
    if FAST:  # one instruction, within 2^-11: better than the 16-bit inputs
        y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = 2 * tl.sigmoid(2 * x) - 1
    return y


@triton.jit
def _dot(a, b, total, FAST: tl.constexpr):
    """total + a b: in 16 bits on tensor cores, else in float32 (the interpreter knows no 16-bit products)."""
    if FAST:
        total = tl.dot(a, b, total)
    else:
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return total


@triton.jit
def _inside(rows, columns, num_rows: tl.constexpr, num_columns: tl.constexpr):
    """Which places of a padded tile exist; a dimension that needs no padding costs nothing."""
    if num_columns == columns.shape[0]:
        inside = (rows < num_rows)[:, None]
    elif num_rows == rows.shape[0]:
        inside = (columns < num_columns)[None, :]
    else:
        inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    return inside


@triton.jit
def _tile(pointer, rows, columns, stride: tl.constexpr, num_rows: tl.constexpr, num_columns: tl.constexpr):
    """A tile of a matrix, zeros where it is padded."""
    place = pointer + rows[:, None] * stride + columns[None, :]
    if num_rows == rows.shape[0] and num_columns == columns.shape[0]:
        tile = tl.load(place)
    else:
        tile = tl.load(place, mask=_inside(rows, columns, num_rows, num_columns), other=0.0)
    return tile


@triton.jit
def _turned(pointer, rows, columns, stride: tl.constexpr, num_rows: tl.constexpr, num_columns: tl.constexpr):
    """The transpose of `_tile`, as [columns, rows]."""
    place = pointer + rows[None, :] * stride + columns[:, None]
    if num_rows == rows.shape[0] and num_columns == columns.shape[0]:
        tile = tl.load(place)
    else:
        tile = tl.load(place, mask=_inside(columns, rows, num_columns, num_rows), other=0.0)
    return tile


@triton.jit
def _put(pointer, values, rows, columns, stride: tl.constexpr, num_rows: tl.constexpr, num_columns: tl.constexpr):
    place = pointer + rows[:, None] * stride + columns[None, :]
    if num_rows == rows.shape[0] and num_columns == columns.shape[0]:
        tl.store(place, values)
    else:
        tl.store(place, values, mask=_inside(rows, columns, num_rows, num_columns))


@triton.jit
def _product(
    total, left, left_stride: tl.constexpr, k, K: tl.constexpr,
    right, right_stride: tl.constexpr, columns, num_columns: tl.constexpr,
    INNER: tl.constexpr, PADDED: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """total + the matrix at `left` [k, inner] times the transpose of that at `right` [columns, inner].

    Both are read in pieces: the weights for slots of 256 numbers would take half of the shared memory there is.
    """
    PIECE: tl.constexpr = PADDED if PADDED <= 128 else 128
    for start in tl.static_range(0, PADDED, PIECE):
        inner = start + tl.arange(0, PIECE)
        weights = _turned(right, columns, inner, right_stride, num_columns, INNER)
        total = _dot(_tile(left, k, inner, left_stride, K, INNER).to(weights.dtype), weights, total, FAST)
    return total


@triton.jit
def _forward(
    slots, items, real, count, order, weight, bias, new_bias, score,
    memories, entropy, shares, gates,
    T,
    K: tl.constexpr, N: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    KP: tl.constexpr, NP: tl.constexpr, DP: tl.constexpr, MP: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Eq. 1 and 2 for one stream. Rows of `items`, `weight` and `bias` hold [score side | reset | keep | new]."""
    b = tl.program_id(0).to(tl.int64)
    k, n, d, m = tl.arange(0, KP), tl.arange(0, NP), tl.arange(0, DP), tl.arange(0, MP)
    dtype = items.dtype.element_ty
    C: tl.constexpr = M + 3 * D
    w = tl.load(score + m, mask=m < M, other=0.0).to(tl.float32)
    b_new = tl.load(new_bias + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    slot = _tile(slots + b * K * D, k, d, D, K, D)
    _put(memories + b * (T + 1) * K * D, slot, k, d, D, K, D)
    for t in range(T):
        step = b * T + t
        length = tl.load(count + step)
        if length > 0:
            segment = items + tl.load(order + step) * N * C
            item = tl.load(segment + m, mask=m < M, other=0.0)
            low = slot.to(dtype)
            side = _dot(low, _turned(weight, m, d, D, M, D), _tile(bias, k, m, C, K, M), FAST)
            # scores item by item, so that no [k, n, m] tensor is ever made
            scores = tl.zeros([KP, NP], dtype=tl.float32)
            for i in range(length):
                x = side + item.to(tl.float32)[None, :]
                # on its way while this one is worked on
                item = tl.load(segment + (i + 1) * C + m, mask=(m < M) & (i + 1 < length), other=0.0)
                column = tl.sum(_tanh(x, FAST) * w[None, :], axis=1)
                scores = tl.where(n[None, :] == i, column[:, None], scores)
            scores = tl.where((k < K)[:, None], scores, float("-inf"))
            share = tl.exp(scores - tl.max(scores, axis=0)[None, :])
            share = share / tl.sum(share, axis=0)[None, :]
            is_real = tl.load(real + step * N + n, mask=n < N, other=0) != 0
            share = tl.where(is_real[None, :], share, 0.0)
            tl.store(entropy + step, -tl.sum(tl.sum(share * tl.log(tl.maximum(share, 1e-30)), axis=1), axis=0))
            _put(shares + step * K * N, share, k, n, N, K, N)
            given = share.to(dtype)
            inside = is_real[:, None] & (d < D)[None, :]
            place = segment + M + n[:, None] * C + d[None, :]
            reset = _dot(low, _turned(weight + M * D, d, d, D, D, D), _tile(bias + M, k, d, C, K, D), FAST)
            reset = tl.sigmoid(_dot(given, tl.load(place, mask=inside, other=0.0), reset, FAST))
            keep = _dot(low, _turned(weight + (M + D) * D, d, d, D, D, D), _tile(bias + M + D, k, d, C, K, D), FAST)
            keep = tl.sigmoid(_dot(given, tl.load(place + D, mask=inside, other=0.0), keep, FAST))
            old = _tile(bias + M + 2 * D, k, d, C, K, D)
            old = _dot(low, _turned(weight + (M + 2 * D) * D, d, d, D, D, D), old, FAST)
            new = _dot(given, tl.load(place + 2 * D, mask=inside, other=0.0), reset * old + b_new, FAST)
            new = _tanh(new, FAST)
            slot = new + keep * (slot - new)
            saved = gates + step * K * 4 * D
            _put(saved, reset.to(dtype), k, d, 4 * D, K, D)
            _put(saved + D, keep.to(dtype), k, d, 4 * D, K, D)
            _put(saved + 2 * D, new.to(dtype), k, d, 4 * D, K, D)
            _put(saved + 3 * D, old.to(dtype), k, d, 4 * D, K, D)
        else:
            tl.store(entropy + step, 0.0)
        _put(memories + (b * (T + 1) + t + 1) * K * D, slot, k, d, D, K, D)


@triton.jit
def _backward(
    items, real, count, order, weight, turned_weight, bias, score, memories, shares, gates, grad_memories,
    grad_slots, grad_items, grad_products, grad_score, low_slots,
    T,
    K: tl.constexpr, N: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    KP: tl.constexpr, NP: tl.constexpr, DP: tl.constexpr, MP: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """The same backwards: the gradients of the slots' products with the weights, and of every use of an item."""
    b = tl.program_id(0).to(tl.int64)
    k, n, d, m = tl.arange(0, KP), tl.arange(0, NP), tl.arange(0, DP), tl.arange(0, MP)
    dtype = items.dtype.element_ty
    C: tl.constexpr = M + 3 * D
    R: tl.constexpr = M + 4 * D  # of a product: [score side | reset | keep | the slots' part of new | new]
    w = tl.load(score + m, mask=m < M, other=0.0).to(tl.float32)
    grad_w = tl.zeros([MP], dtype=tl.float32)
    grad = tl.zeros([KP, DP], dtype=tl.float32)  # of the slots after segment t
    for back in range(T):
        t = T - 1 - back
        step = b * T + t
        grad += _tile(grad_memories + (b * (T + 1) + t + 1) * K * D, k, d, D, K, D)
        length = tl.load(count + step)
        products, uses = grad_products + step * K * R, grad_items + step * N * C
        if length > 0:
            segment = items + tl.load(order + step) * N * C
            before = memories + (b * (T + 1) + t) * K * D
            slot = _tile(before, k, d, D, K, D)
            saved = gates + step * K * 4 * D
            reset = _tile(saved, k, d, 4 * D, K, D).to(tl.float32)
            keep = _tile(saved + D, k, d, 4 * D, K, D).to(tl.float32)
            new = _tile(saved + 2 * D, k, d, 4 * D, K, D).to(tl.float32)
            old = _tile(saved + 3 * D, k, d, 4 * D, K, D).to(tl.float32)
            share = _tile(shares + step * K * N, k, n, N, K, N)
            turned = _turned(shares + step * K * N, k, n, N, K, N).to(dtype)
            is_real = tl.load(real + step * N + n, mask=n < N, other=0) != 0
            inside = is_real[None, :] & (d < D)[:, None]
            place = segment + M + n[None, :] * C + d[:, None]  # [d, n]
            none = tl.zeros([NP, DP], dtype=tl.float32)
            # Eq. 2: ahead of each activation, then what of it goes to the slots and what to the items
            on_new = grad * (1 - keep) * (1 - new * new)
            _put(products + M, (on_new * old * reset * (1 - reset)).to(dtype), k, d, R, K, D)
            _put(products + M + D, (grad * (slot - new) * keep * (1 - keep)).to(dtype), k, d, R, K, D)
            _put(products + M + 2 * D, (on_new * reset).to(dtype), k, d, R, K, D)
            _put(products + M + 3 * D, on_new.to(dtype), k, d, R, K, D)
            # Read back rather than used at once: the compiler would do all the arithmetic behind a product's operand in
            # that operand's layout, which every warp holds in full, and run out of registers.
            tl.debug_barrier()
            on_reset = _tile(products + M, k, d, R, K, D)
            on_keep = _tile(products + M + D, k, d, R, K, D)
            low_new = _tile(products + M + 3 * D, k, d, R, K, D)
            grad = _product(grad * keep, products + M, R, k, K, turned_weight + M, C, d, D, D, DP, FAST)
            grad = _product(grad, products + M + D, R, k, K, turned_weight + M + D, C, d, D, D, DP, FAST)
            grad = _product(grad, products + M + 2 * D, R, k, K, turned_weight + M + 2 * D, C, d, D, D, DP, FAST)
            on_share = tl.zeros([KP, NP], dtype=tl.float32)
            on_share = _dot(on_reset, tl.load(place, mask=inside, other=0.0), on_share, FAST)
            on_share = _dot(on_keep, tl.load(place + D, mask=inside, other=0.0), on_share, FAST)
            on_share = _dot(low_new, tl.load(place + 2 * D, mask=inside, other=0.0), on_share, FAST)
            _put(uses + M, _dot(turned, on_reset, none, FAST).to(dtype), n, d, C, N, D)
            _put(uses + M + D, _dot(turned, on_keep, none, FAST).to(dtype), n, d, C, N, D)
            _put(uses + M + 2 * D, _dot(turned, low_new, none, FAST).to(dtype), n, d, C, N, D)
            item = tl.load(segment + m, mask=m < M, other=0.0)
            # Eq. 1: the softmax over slots, then the scores item by item
            on_scores = share * (on_share - tl.sum(share * on_share, axis=0)[None, :])
            _put(low_slots + step * K * D, slot.to(dtype), k, d, D, K, D)
            side = _product(_tile(bias, k, m, C, K, M), before, D, k, K, weight, D, m, M, D, DP, FAST)
            on_side = tl.zeros([KP, MP], dtype=tl.float32)
            for i in range(length):
                here = tl.sum(tl.where((n == i) & is_real, 1, 0), axis=0) > 0
                x = side + tl.where(here, item.to(tl.float32), 0.0)[None, :]
                item = tl.load(segment + (i + 1) * C + m, mask=(m < M) & (i + 1 < length), other=0.0)
                x = _tanh(x, FAST)
                on_score = tl.sum(tl.where(n[None, :] == i, on_scores, 0.0), axis=1)[:, None]
                grad_w += tl.sum(on_score * x, axis=0)
                through = on_score * (1 - x * x) * w[None, :]
                on_side += through
                tl.store(uses + i * C + m, tl.sum(through, axis=0).to(dtype), mask=m < M)
            beyond = (n >= length)[:, None] & (n < N)[:, None] & (m < M)[None, :]
            tl.store(uses + n[:, None] * C + m[None, :], tl.zeros([NP, MP], dtype=dtype), mask=beyond)
            _put(products, on_side.to(dtype), k, m, R, K, M)
            tl.debug_barrier()
            grad = _product(grad, products, R, k, K, turned_weight, C, d, D, M, MP, FAST)
        else:
            blank = tl.zeros([KP, DP], dtype=dtype)
            _put(products, tl.zeros([KP, MP], dtype=dtype), k, m, R, K, M)
            _put(products + M, blank, k, d, R, K, D)
            _put(products + M + D, blank, k, d, R, K, D)
            _put(products + M + 2 * D, blank, k, d, R, K, D)
            _put(products + M + 3 * D, blank, k, d, R, K, D)
            _put(low_slots + step * K * D, blank, k, d, D, K, D)
            unused = tl.zeros([NP, DP], dtype=dtype)
            _put(uses, tl.zeros([NP, MP], dtype=dtype), n, m, C, N, M)
            _put(uses + M, unused, n, d, C, N, D)
            _put(uses + M + D, unused, n, d, C, N, D)
            _put(uses + M + 2 * D, unused, n, d, C, N, D)
    grad += _tile(grad_memories + b * (T + 1) * K * D, k, d, D, K, D)
    _put(grad_slots + b * K * D, grad, k, d, D, K, D)
    tl.store(grad_score + b * M + m, grad_w, mask=m < M)


class _Sizes(NamedTuple):
    b: int
    t: int
    k: int
    n: int
    d: int
    m: int

    def constants(self, dtype: torch.dtype, on_gpu: bool) -> dict[str, Any]:
        """What the kernels are compiled for: sizes, and the same padded to what tensor cores take."""
        exact = {name: getattr(self, name.lower()) for name in "KNDM"}
        padded = {f"{name}P": max(16, triton.next_power_of_2(size)) for name, size in exact.items()}
        return exact | padded | {"FAST": on_gpu and dtype == torch.bfloat16}


class Kept(NamedTuple):
    """What the forward kernel leaves: its results, and what the backward kernel needs of them."""

    memories: Tensor
    entropy: Tensor
    shares: Tensor
    gates: Tensor


def forward(
    slots: Tensor,
    items: Tensor,
    real: Tensor,
    order: Tensor,
    weight: Tensor,
    bias: Tensor,
    new_bias: Tensor,
    score: Tensor,
) -> Kept:
    """All segments of all streams; arithmetic in the type of `items`, sums and slots in float32."""
    sizes, count = _sizes(slots, real, score), _count(real)
    b, t, k, n, d, _ = sizes
    kept = Kept(
        memories=torch.empty(b, t + 1, k, d, device=slots.device),
        entropy=torch.empty(b, t, device=slots.device),
        shares=torch.empty(b, t, k, n, device=slots.device),
        gates=torch.empty(b, t, k, 4 * d, device=slots.device, dtype=items.dtype),
    )
    _forward[(b,)](
        slots.contiguous(), items.contiguous(), real.contiguous(), count, order.contiguous(),
        weight.to(items.dtype).contiguous(), bias.contiguous(), new_bias.contiguous(), score.contiguous(), *kept, t,
        **sizes.constants(items.dtype, slots.is_cuda), num_warps=_warps(b, d), num_stages=1,
    )  # fmt: skip
    return kept


def backward(
    grad_memories: Tensor,
    items: Tensor,
    real: Tensor,
    order: Tensor,
    weight: Tensor,
    bias: Tensor,
    score: Tensor,
    memories: Tensor,
    shares: Tensor,
    gates: Tensor,
    in_turn: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of slots, items, weight, bias, new_bias and score."""
    sizes, count = _sizes(memories[:, 0], real, score), _count(real)
    b, t, k, n, d, m = sizes
    dtype, device, columns = items.dtype, items.device, m + 3 * d
    low_weight = weight.to(dtype)
    grad_slots = torch.empty(b, k, d, device=device)
    grad_items = torch.empty(b, t, n, columns, device=device, dtype=dtype)
    grad_products = torch.empty(b, t, k, columns + d, device=device, dtype=dtype)
    grad_score = torch.empty(b, m, device=device)
    low_slots = torch.empty(b, t, k, d, device=device, dtype=dtype)  # before each segment; zeros if it is all padding
    _backward[(b,)](
        items.contiguous(), real.contiguous(), count, order.contiguous(),
        low_weight.contiguous(), low_weight.mT.contiguous(), bias.contiguous(), score.contiguous(),
        memories, shares, gates, grad_memories.contiguous(),
        grad_slots, grad_items, grad_products, grad_score, low_slots, t,
        **sizes.constants(dtype, items.is_cuda), num_warps=_warps(b, d), num_stages=1,
    )  # fmt: skip
    grad_bias = grad_products.sum(dim=(0, 1), dtype=torch.float32)
    table = grad_items.view(b * t, n, columns)
    if not in_turn:
        table = torch.zeros(items.shape, device=device).index_add_(0, order.flatten(), table.float()).to(dtype)
    return (
        grad_slots,
        table,
        (grad_products.view(b * t * k, columns + d)[:, :columns].mT @ low_slots.view(-1, d)).float(),
        grad_bias[:, :columns].contiguous(),
        grad_bias[:, columns:].sum(dim=0),
        grad_score.sum(dim=0),
    )


def _warps(streams: int, width: int) -> int:
    """Two small programs share a processor where there are enough of them; one that has it alone is better large.

    Slots of more than 128 numbers take a processor's shared memory and registers for themselves.
    """
    return 4 if streams > MULTIPROCESSORS and width <= 128 else 8


def _sizes(slots: Tensor, real: Tensor, score: Tensor) -> _Sizes:
    (b, k, d), (_, t, n) = slots.shape, real.shape
    return _Sizes(b, t, k, n, d, len(score))


def _count(real: Tensor) -> Tensor:
    """Up to the last real item of each segment; nothing beyond it is looked at."""
    place = torch.arange(1, real.shape[-1] + 1, device=real.device, dtype=torch.int32)
    return (place * real).amax(dim=-1)
