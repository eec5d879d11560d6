"""The write scan on a CPU with its segments in C; matrix products stay Torch's."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remem.ops.native import address, library, sizes, there

SOURCE = Path(__file__).with_name("cpu.c")


class NativeScan(torch.autograd.Function):
    """What `cpu.CpuScan` computes; `in_turn` as in `write_scan`."""

    @staticmethod
    def forward(
        ctx: Any,
        slots: Tensor,
        items: Tensor,
        real: Tensor,
        order: Tensor,
        weight: Tensor,
        bias: Tensor,
        new_bias: Tensor,
        score: Tensor,
        in_turn: bool,
    ) -> tuple[Tensor, Tensor]:
        (b, t, n), k, d, m = real.shape, slots.shape[1], slots.shape[2], len(score)
        items, bias, new_bias, score = (x.contiguous() for x in (items, bias, new_bias, score))
        real, order = real.contiguous(), order.contiguous()
        memories, entropy = slots.new_empty(t + 1, b, k, d), slots.new_empty(t, b)
        shares, products = slots.new_empty(t, b, k, n), slots.new_empty(b * k, m + 3 * d)
        # a tensor a segment: the allocator hands out large ones page by page, each to be cleared first
        kept = [slots.new_empty(b, k, m + 4 * d) for _ in range(t)]
        memories[0] = slots
        for i in range(t):
            torch.mm(memories[i].view(-1, d), weight.mT, out=products)
            _kernels().write_segment(
                *sizes(b, k, n, m, d), *_at(memories[i], products, bias, new_bias, score, items),
                *_strided(order[:, i]), *_strided(real[:, i]), *_at(memories[i + 1], shares[i], kept[i], entropy[i]),
            )  # fmt: skip
        ctx.save_for_backward(items, real, order, memories, shares, weight, score, *kept)
        ctx.in_turn = in_turn
        entropy = entropy.mT
        ctx.mark_non_differentiable(entropy)
        return memories.transpose(0, 1), entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_memories: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        items, real, order, memories, shares, weight, score, *kept = ctx.saved_tensors
        (t, b, k, n), d, m = shares.shape, memories.shape[-1], len(score)
        # gradients of weight's products, one segment's at a time: what stays in the cache is not written out
        to = memories.new_empty(b, k, m + 3 * d)
        on_weight, on_bias = torch.zeros_like(weight), memories.new_zeros(k, m + 3 * d)
        on_score, on_new = memories.new_zeros(b, m), memories.new_zeros(b, d)
        # the items of streams in turn get their gradient at once; others wait to be added up
        grad_items = torch.empty_like(items) if ctx.in_turn else torch.zeros_like(items)
        used = None if ctx.in_turn else memories.new_empty(b, n, m + 3 * d)
        grad = grad_memories[:, t].clone(memory_format=torch.contiguous_format)
        for i in reversed(range(t)):
            uses = grad_items.view(b, t, n, -1)[:, i] if used is None else used
            failed = _kernels().write_segment_backward(
                *sizes(b, k, n, m, d), *_at(memories[i], kept[i], score, items),
                *_strided(order[:, i]), *_strided(real[:, i]), *_at(shares[i], grad, to),
                *_strided(uses), *_at(on_score, on_new),
            )  # fmt: skip
            if failed:
                raise MemoryError("There is no memory left for the write scan's gradients.")
            if used is not None:
                grad_items.index_add_(0, order[:, i], used)
            rows = to.view(b * k, -1)
            on_weight.addmm_(rows.mT, memories[i].view(-1, d))
            on_bias += to.sum(dim=0)
            grad.view(-1, d).addmm_(rows, weight)
            grad += grad_memories[:, i]
        return grad, grad_items, None, None, on_weight, on_bias, on_new.sum(dim=0), on_score.sum(dim=0), None


def available() -> bool:
    """Whether the kernels could be compiled here."""
    return there(SOURCE)


def _kernels() -> ctypes.CDLL:
    kernels = library(SOURCE)
    assert kernels is not None
    return kernels


def _at(*tensors: Tensor) -> list[ctypes.c_void_p]:
    assert all(tensor.is_contiguous() for tensor in tensors)
    return [address(tensor) for tensor in tensors]


def _strided(tensor: Tensor) -> tuple[ctypes.c_void_p, ctypes.c_long]:
    """A tensor whose first dimension alone may have a stride of its own."""
    return address(tensor), ctypes.c_long(tensor.stride(0))
