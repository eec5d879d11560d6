"""The write scan on a CPU: the scores of a few streams at a time, so that they never leave the cache.

The plain loop makes fresh tensors of [b, k, n, m] several times a segment and keeps them for the way back. Here one
buffer of two megabytes is used over and over, and the backward pass computes the tanh again instead of keeping it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CACHED_FLOATS = 2**19  # of the buffer: 2 MiB, about the second-level cache of a core


class CpuScan(torch.autograd.Function):
    """Forward and backward written out."""

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
    ) -> tuple[Tensor, Tensor]:
        (b, t, n), k, d, m = real.shape, slots.shape[1], slots.shape[2], len(score)
        written = real.any(dim=-1)[..., None, None]  # [b, t, 1, 1]
        memories, entropy = slots.new_empty(t + 1, b, k, d), slots.new_empty(t, b)
        shares = slots.new_empty(t, b, k, n)
        products, gates = slots.new_empty(t, b, k, m + 3 * d), slots.new_empty(t, b, k, 3 * d)
        memories[0] = slots
        for i in range(t):
            index, slot = order[:, i], memories[i]
            torch.mm(slot.view(-1, d), weight.mT, out=products[i].view(-1, m + 3 * d))
            old = products[i].add_(bias)
            scores, (side, given) = slots.new_empty(b, k, n), items[index].split([m, 3 * d], dim=-1)
            for rows, x in _cached(b, k, n, m, slots):
                torch.add(old[rows, :, None, :m], side[rows, None], out=x).tanh_()
                torch.mv(x.view(-1, m), score, out=scores[rows].view(-1))
            share = torch.softmax(scores, dim=1).mul_(real[:, i, None])
            torch.sum(torch.special.entr(share), dim=(1, 2), out=entropy[i])
            now = torch.bmm(share, given)
            gate = gates[i]
            torch.add(now[..., : 2 * d], old[..., m : m + 2 * d], out=gate[..., : 2 * d]).sigmoid_()
            reset, keep, new = gate.chunk(3, dim=-1)
            torch.addcmul(now[..., 2 * d :].add_(new_bias), reset, old[..., m + 2 * d :], out=new).tanh_()
            torch.where(written[:, i], torch.lerp(new, slot, keep), slot, out=memories[i + 1])
            shares[i] = share
        ctx.save_for_backward(items, order, written, memories, shares, products, gates, weight, score)
        entropy = entropy.mT
        ctx.mark_non_differentiable(entropy)
        return memories.transpose(0, 1), entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_memories: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        items, order, written, memories, shares, products, gates, weight, score = ctx.saved_tensors
        (t, b, k, n), d, m = shares.shape, memories.shape[-1], len(score)
        ahead = memories.new_empty(t, b, k, m + 3 * d)  # gradients of weight's products
        grad_items = torch.zeros_like(items)
        grad_score, grad_new = torch.zeros_like(score), memories.new_zeros(d)
        grad = grad_memories[:, t].clone()
        on_now, uses = memories.new_empty(b, k, 3 * d), memories.new_empty(b, n, m + 3 * d)
        for i in reversed(range(t)):
            index, slot, share, to = order[:, i], memories[i], shares[i], ahead[i]
            reset, keep, new = gates[i].chunk(3, dim=-1)
            side, aside = products[i, ..., :m], products[i, ..., m + 2 * d :]
            through = grad * written[:, i]
            on_reset, on_keep, on_new = on_now.chunk(3, dim=-1)
            torch.mul(through * (1 - keep), 1 - new * new, out=on_new)
            torch.mul(on_new * aside, reset * (1 - reset), out=on_reset)
            torch.mul(through * (slot - new), keep * (1 - keep), out=on_keep)
            to[..., m : m + 2 * d] = on_now[..., : 2 * d]
            torch.mul(on_new, reset, out=to[..., m + 2 * d :])
            grad_new += on_new.sum(dim=(0, 1))
            item_side, given = items[index].split([m, 3 * d], dim=-1)
            uses[..., m:] = torch.bmm(share.mT, on_now)
            on_share = torch.bmm(on_now, given.mT)
            on_scores = share * (on_share - (share * on_share).sum(dim=1, keepdim=True))
            for rows, x in _cached(b, k, n, m, slot):
                on_score = on_scores[rows]
                torch.add(side[rows, :, None], item_side[rows, None], out=x).tanh_()
                grad_score += on_score.flatten() @ x.view(-1, m)
                # what goes through tanh is on_score (1 - x^2), summed over items and over slots
                x.square_().mul_(on_score[..., None])
                torch.sum(x, dim=2, out=to[rows, :, :m])
                torch.sum(x, dim=1, out=uses[rows, :, :m])
            to[..., :m].sub_(on_scores.sum(dim=2, keepdim=True)).mul_(-score)
            uses[..., :m].sub_(on_scores.sum(dim=1)[..., None]).mul_(-score)
            grad_items.index_add_(0, index, uses)
            grad = torch.where(written[:, i], grad * keep, grad) + (to.view(-1, m + 3 * d) @ weight).view(b, k, d)
            grad += grad_memories[:, i]
        return (
            grad,
            grad_items,
            None,
            None,
            ahead.view(-1, m + 3 * d).mT @ memories[:-1].view(-1, d),
            ahead.sum(dim=(0, 1)),
            grad_new,
            grad_score,
        )


def _cached(b: int, k: int, n: int, m: int, like: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of streams, each with the same piece of memory for its [k, n, m]."""
    size = max(1, CACHED_FLOATS // (k * n * m))
    buffer = like.new_empty(min(size, b), k, n, m)
    for first in range(0, b, size):
        rows = slice(first, min(first + size, b))
        yield rows, buffer[: rows.stop - rows.start]
