"""The write scan (Eq. 1 and 2 over a whole stream): the one sequential part of rehearsal memory.

`write_scan` takes the fastest way there is for its inputs; `reference.write_scan` is what all of them must equal.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from remem.ops.paths import HAS_TRITON, fast, reference_only
from remem.ops.write_scan import native, reference
from remem.ops.write_scan.cpu import CpuScan
from remem.ops.write_scan.reference import Scanned, ScanWeights

__all__ = ["ScanWeights", "Scanned", "prepare", "reference_only", "write_scan"]


class Prepared(NamedTuple):
    """What is computed before a fast scan, with columns [score side | reset | keep | new]."""

    items: Float[Tensor, "s n c"]
    weight: Float[Tensor, "c d"]
    bias: Float[Tensor, "k c"]


def prepare(
    features: Float[Tensor, "s n d"], item_mask: Bool[Tensor, "s n"], weights: ScanWeights, gain: float, num_slots: int
) -> Prepared:
    """All that needs no memory.

    The gates are linear in the aligned features, and those in the items: W sum_n a_kn f_n = sum_n a_kn W f_n. So W f_n
    is computed for all items at once, before the scan, and half of the scan's arithmetic is gone.
    """
    d = features.shape[2]
    # a padded item may hold anything, and NaN times a gradient of zero is NaN
    real = features.masked_fill(~item_mask[..., None], 0.0)
    items = F.linear(real, torch.cat([weights.item_side, gain * weights.items_to_gates]))
    # inside the tanh a bias of the items is as good as one of the slots, whose gradient is there already
    side_bias = weights.item_side_bias.expand(num_slots, -1)
    if weights.identity is not None:
        side_bias = weights.identity + side_bias
    # reset and keep add both their biases at once; that of new stays inside its gate on the slots' side
    gates_bias = weights.slots_bias + F.pad(weights.items_bias[: 2 * d], (0, d))
    bias = torch.cat([side_bias, gates_bias.expand(num_slots, -1)], dim=1)
    return Prepared(items, torch.cat([weights.slot_side, weights.slots_to_gates]), bias)


def fused(
    slots: Float[Tensor, "b k d"],
    features: Float[Tensor, "s n d"],
    item_mask: Bool[Tensor, "s n"],
    weights: ScanWeights,
    gain: float,
    prepare: Callable[..., Prepared] = prepare,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Slots, items, weight, bias, new_bias and score of the fast scans."""
    new_bias = weights.items_bias[2 * slots.shape[2] :]
    return slots, *prepare(features, item_mask, weights, gain, slots.shape[1]), new_bias, weights.score


def write_scan(
    slots: Float[Tensor, "b k d"],
    features: Float[Tensor, "s n d"],
    item_mask: Bool[Tensor, "s n"],
    order: Int[Tensor, "b t"],
    segment_mask: Bool[Tensor, "b t"],
    weights: ScanWeights,
    gain: float,
    *,
    in_turn: bool = False,
    prepare: Callable[..., Prepared] = prepare,
) -> Scanned:
    """The memory along every stream. Under autocast the products are in 16 bits; slots and sums never are.

    `in_turn` promises that `order` counts from 0 to b t - 1: then no gradient has to be added up by segment.
    `prepare` may be the function of that name compiled.
    """
    if not fast() or not order.numel() or not _has_fast_path(slots, features):
        if fast() and slots.is_cuda and order.numel():
            _tell_of_the_loop(slots.shape[1], *features.shape[1:], features.dtype)
        return reference.write_scan(slots, features, item_mask, order, segment_mask, weights, gain)
    real = item_mask[order] & segment_mask[..., None]
    scan = fused(slots, features, item_mask, weights, gain, prepare)
    if not slots.is_cuda and _trains(*scan) and native.available():
        return Scanned(*native.NativeScan.apply(*scan[:2], real, order, *scan[2:], in_turn))  # type: ignore[no-untyped-call]
    if not slots.is_cuda:
        return Scanned(*CpuScan.apply(*scan[:2], real, order, *scan[2:]))  # type: ignore[no-untyped-call]
    with torch.autocast("cuda", enabled=False):
        memories, entropy, _, _ = _write_scan(*scan[:2], real, order, *scan[2:], in_turn)
    return Scanned(memories, entropy)


def _has_fast_path(slots: Tensor, features: Tensor) -> bool:
    if slots.dtype != torch.float32 or features.dtype not in (torch.float32, torch.bfloat16):
        return False
    if not slots.is_cuda:
        return not torch.is_autocast_enabled("cpu") and features.dtype == torch.float32
    low = torch.is_autocast_enabled("cuda") or features.dtype == torch.bfloat16
    n, d = features.shape[1:]
    if not HAS_TRITON or d > (256 if low else 128) or max(n, slots.shape[1]) > 64:
        return False
    return d <= 128 or _has_room(slots.shape[1], n, d, torch.bfloat16 if low else torch.float32, slots.device)


@cache
def _tell_of_the_loop(k: int, n: int, d: int, dtype: torch.dtype) -> None:
    """Once for each kind of input: a loop in place of a kernel goes unnoticed but for the time it takes."""
    warnings.warn(
        f"The write scan takes the plain loop on this GPU, which is several times slower: {k} slots of {d} numbers, "
        f"segments of {n} items, {str(dtype).removeprefix('torch.')} features. Its kernels take float32 or bfloat16, "
        "up to 64 slots and items, and up to 256 numbers (128 in float32); docs/performance.md says more.",
        RuntimeWarning,
        stacklevel=2,
    )


@cache
def _has_room(k: int, n: int, d: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this GPU has the shared memory that the kernels take when slots are wide: tried once, on one segment."""
    from triton.runtime.errors import OutOfResources

    from remem.ops.write_scan.triton import backward, forward

    slots, items = torch.zeros(1, k, d, device=device), torch.zeros(1, n, 4 * d, device=device, dtype=dtype)
    real = torch.ones(1, 1, n, dtype=torch.bool, device=device)
    order = torch.zeros(1, 1, dtype=torch.long, device=device)
    weight, bias, row = (torch.zeros(shape, device=device) for shape in ((4 * d, d), (k, 4 * d), (d,)))
    try:
        kept = forward(slots, items, real, order, weight, bias, row, row)
        backward(torch.zeros_like(kept.memories), items, real, order, weight, bias, row, kept.memories, *kept[2:], True)
    except OutOfResources:
        return False
    return True


def _trains(*tensors: Tensor) -> bool:
    """Whether gradients are wanted: a memory that is served must not depend on whether there is a compiler."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


# Operations of their own, so that torch.compile takes each as one node without looking inside; Triton is imported by
# the first that runs, as the package must do without it.
@torch.library.custom_op("remem::write_scan", mutates_args=())
def _write_scan(
    slots: Tensor, items: Tensor, real: Tensor, order: Tensor,
    weight: Tensor, bias: Tensor, new_bias: Tensor, score: Tensor, in_turn: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from remem.ops.write_scan.triton import forward

    memories, entropy, shares, gates = forward(slots, items, real, order, weight, bias, new_bias, score)
    return memories, entropy, shares, gates


@_write_scan.register_fake
def _(
    slots: Tensor, items: Tensor, real: Tensor, order: Tensor,
    weight: Tensor, bias: Tensor, new_bias: Tensor, score: Tensor, in_turn: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (b, k, d), (_, t, n) = slots.shape, real.shape
    gates = items.new_empty(b, t, k, 4 * d)
    return slots.new_empty(b, t + 1, k, d), slots.new_empty(b, t), slots.new_empty(b, t, k, n), gates


@torch.library.custom_op("remem::write_scan_backward", mutates_args=())
def _write_scan_backward(
    grad_memories: Tensor, items: Tensor, real: Tensor, order: Tensor,
    weight: Tensor, bias: Tensor, score: Tensor, memories: Tensor, shares: Tensor, gates: Tensor,
    in_turn: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from remem.ops.write_scan.triton import backward

    return backward(grad_memories, items, real, order, weight, bias, score, memories, shares, gates, in_turn)


@_write_scan_backward.register_fake
def _(
    grad_memories: Tensor, items: Tensor, real: Tensor, order: Tensor,
    weight: Tensor, bias: Tensor, score: Tensor, memories: Tensor, shares: Tensor, gates: Tensor,
    in_turn: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    b, _, k, d = memories.shape
    new_bias = weight.new_empty(d)
    return (
        memories.new_empty(b, k, d), items.new_empty(items.shape), weight.new_empty(weight.shape),
        bias.new_empty(bias.shape), new_bias, score.new_empty(score.shape),
    )  # fmt: skip


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, items, real, order, weight, bias, _, score, ctx.in_turn = inputs
    memories, _, shares, gates = output
    ctx.save_for_backward(items, real, order, weight, bias, score, memories, shares, gates)
    ctx.set_materialize_grads(False)  # no one has a gradient for what is kept; zeros in its place would be large


def _gradients(ctx: Any, grad_memories: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if grad_memories is None:
        return (None,) * 9
    slots, items, weight, bias, new_bias, score = _write_scan_backward(grad_memories, *ctx.saved_tensors, ctx.in_turn)
    return slots, items, None, None, weight, bias, new_bias, score, None


_write_scan.register_autograd(_gradients, setup_context=_keep)
