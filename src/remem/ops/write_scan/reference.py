"""The write scan in plain PyTorch: Eq. 1 and 2 (Sec. 3.2), one function each, and the loop over segments.

Shape letters: b streams, t segments, s distinct segments, n items, k slots, d item dim, m model dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from remem.ops.precision import at_least_float32


class ScanWeights(NamedTuple):
    """All that writing learns."""

    slot_side: Float[Tensor, "m d"]  # W_1
    item_side: Float[Tensor, "m d"]  # W_2
    item_side_bias: Float[Tensor, " m"]  # b
    identity: Float[Tensor, "k m"] | None  # a vector per slot inside the tanh; not in the paper
    score: Float[Tensor, " m"]  # w
    items_to_gates: Float[Tensor, "3d d"]  # the GRU's input side: reset, keep, new
    slots_to_gates: Float[Tensor, "3d d"]
    items_bias: Float[Tensor, " 3d"]
    slots_bias: Float[Tensor, " 3d"]


class Scanned(NamedTuple):
    """The memory before the first and after every segment, and the entropy of every segment's assignment in nats."""

    memories: Float[Tensor, "b t+1 k d"]
    entropy: Float[Tensor, "b t"]


def project(features: Float[Tensor, "*s n d"], weights: ScanWeights) -> Float[Tensor, "*s n m"]:
    """W_2 f_n + b: the item side of the scores, which needs no memory and so no waiting for it."""
    return F.linear(features, weights.item_side, weights.item_side_bias)


def assign(
    slots: Float[Tensor, "b k d"],
    item_side: Float[Tensor, "b n m"],
    item_mask: Bool[Tensor, "b n"],
    weights: ScanWeights,
    bonus: Float[Tensor, "b k"] | None = None,
) -> Float[Tensor, "b k n"]:
    """alpha-hat of Eq. 1: how each item is shared out among the slots; nothing of a padded item.

    alpha_kn = w^T tanh(W_1 m_k + W_2 f_n + b), softmax over k; `item_side` is W_2 f_n + b, and a `bonus` is added.
    """
    slot_side = F.linear(slots, weights.slot_side)
    if weights.identity is not None:
        slot_side = slot_side + weights.identity
    # a padded item may hold anything, and NaN times a gradient of zero is NaN
    real_side = item_side.masked_fill(~item_mask[..., None], 0.0)
    scores = F.linear(torch.tanh(slot_side[:, :, None] + real_side[:, None]), weights.score[None]).squeeze(-1)
    if bonus is not None:
        scores = scores + bonus[..., None]
    return at_least_float32(scores).softmax(dim=1).masked_fill(~item_mask[:, None], 0.0)


def align(
    assignment: Float[Tensor, "b k n"], features: Float[Tensor, "b n d"], item_mask: Bool[Tensor, "b n"], gain: float
) -> Float[Tensor, "b k d"]:
    """l_k = gain * sum_n alpha-hat_kn f_n of Eq. 1 (the paper's gain is one).

    A padded item may hold anything, so it is left out rather than multiplied by zero.
    """
    real = features.masked_fill(~item_mask[..., None], 0.0)
    return gain * (assignment.to(real.dtype) @ real)


def update(
    slots: Float[Tensor, "b k d"], aligned: Float[Tensor, "b k d"], weights: ScanWeights
) -> Float[Tensor, "b k d"]:
    """m' = GRU(m, l) of Eq. 2, where torch's cell takes (input, hidden) and the paper (hidden, input).

    Written out because a cell under autocast would round the slots to 16 bits at every step of the stream.
    """
    from_items = at_least_float32(F.linear(aligned, weights.items_to_gates, weights.items_bias))
    from_slots = at_least_float32(F.linear(slots, weights.slots_to_gates, weights.slots_bias))
    reset_i, keep_i, new_i = from_items.chunk(3, dim=-1)
    reset_s, keep_s, new_s = from_slots.chunk(3, dim=-1)
    reset, keep = torch.sigmoid(reset_i + reset_s), torch.sigmoid(keep_i + keep_s)
    new = torch.tanh(new_i + reset * new_s)
    return torch.lerp(new, slots.to(new.dtype), keep)


def write_segment(
    slots: Float[Tensor, "b k d"],
    features: Float[Tensor, "b n d"],
    item_side: Float[Tensor, "b n m"],
    item_mask: Bool[Tensor, "b n"],
    weights: ScanWeights,
    gain: float,
    bonus: Float[Tensor, "b k"] | None = None,
) -> tuple[Float[Tensor, "b k d"], Float[Tensor, "b k n"]]:
    """The slots after one segment, and how its items were shared out."""
    assignment = assign(slots, item_side, item_mask, weights, bonus)
    written = update(slots, align(assignment, features, item_mask, gain), weights)
    # rows whose segment is all padding have received nothing
    return torch.where(item_mask.any(dim=-1)[:, None, None], written, slots), assignment


def write_scan(
    slots: Float[Tensor, "b k d"],
    features: Float[Tensor, "s n d"],
    item_mask: Bool[Tensor, "s n"],
    order: Int[Tensor, "b t"],
    segment_mask: Bool[Tensor, "b t"],
    weights: ScanWeights,
    gain: float,
) -> Scanned:
    """Every segment of every stream in turn. Streams point by `order` into the table of encoded segments."""
    real = item_mask[order] & segment_mask[..., None]  # [b, t, n]
    item_side = project(features, weights)
    memories, entropy = [slots], [slots.new_zeros(len(slots), 0)]
    for t in range(order.shape[1]):
        index = order[:, t]
        written, assignment = write_segment(memories[-1], features[index], item_side[index], real[:, t], weights, gain)
        memories.append(written)
        entropy.append(torch.special.entr(assignment.detach()).sum(dim=(1, 2))[:, None])
    return Scanned(torch.stack(memories, dim=1), torch.cat(entropy, dim=1))
