"""Masked positive and negative history fragments H+ and H- (Sec. 3.3.1)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from remem.data.batch import StreamBatch
from remem.errors import BadInput
from remem.model.interface import gather_rows

_HALF = 0.5 + 1e-9  # 45 times 0.7 is 31.5, but a little less in binary


class Fragments(NamedTuple):
    """B segments of each stream with half of their items masked, and their negatives' items."""

    items: Int[Tensor, "b f n"] | Float[Tensor, "b f n e"]  # the true items, which recollection must recall
    negative_items: (
        Int[Tensor, "b f n"] | Float[Tensor, "b f n e"]
    )  # the same, with some unmasked ones taken from other streams
    item_mask: Bool[Tensor, "b f n"]  # real items
    masked: Bool[Tensor, "b f n"]  # hidden from the decoder, in positives and negatives alike
    mask: Bool[Tensor, "b f"]  # real fragments: a short stream may have fewer than B
    places: Int[Tensor, "b f p"]  # where the masked items are, in turn: as many as a fragment can have
    place_mask: Bool[Tensor, "b f p"]  # a short fragment has fewer, and then a place means nothing

    def at_places(self, values: Tensor) -> Tensor:
        """Of something that every item has, that of the masked ones: [b, f, n, ...] -> [b, f, p, ...]."""
        return gather_rows(values.flatten(0, 1), self.places.flatten(0, 1)).unflatten(0, self.places.shape[:2])


def make_fragments(
    stream: StreamBatch,
    chosen: Int[Tensor, "b f"],
    chosen_mask: Bool[Tensor, "b f"],
    *,
    mask_ratio: float,
    replace_ratio: float,
) -> Fragments:
    """Mask and replace items of the chosen segments, at random."""
    segments = gather_rows(stream.order, chosen)
    items, item_mask = stream.items[segments], stream.item_mask[segments] & chosen_mask[..., None]
    masked = choose_share(item_mask, mask_ratio)
    replaced = choose_share(item_mask & ~masked, replace_ratio, least=1)  # or nothing tells the negative apart
    others = items_of_others(stream, item_mask.shape)
    negative_items = torch.where(replaced.view(*replaced.shape, *(1,) * (items.ndim - 3)), others, items)
    most = share_of(item_mask.shape[-1], mask_ratio)
    return Fragments(items, negative_items, item_mask, masked, chosen_mask, *true_places(masked, most))


def true_places(mask: Bool[Tensor, "*b n"], most: int) -> tuple[Int[Tensor, "*b p"], Bool[Tensor, "*b p"]]:
    """Where each row is true, from left to right, in a table `most` wide; and which entries of that are meant."""
    turn = torch.arange(1, most + 1, device=mask.device)[:, None]
    found = mask[..., None, :] & (mask.cumsum(dim=-1)[..., None, :] == turn)  # [*b, p, n]
    return found.int().argmax(dim=-1), found.any(dim=-1)


def share_of(count: int, ratio: float) -> int:
    """Ratio times count, halves rounded up: how many of a full row are chosen."""
    return math.floor(count * ratio + _HALF)


def choose_share(candidates: Bool[Tensor, "*b n"], ratio: float, *, least: int = 0) -> Bool[Tensor, "*b n"]:
    """A random share of each row's candidates, of exact size: ratio times their number, halves rounded up.

    `least` of them are chosen where there are as many.
    """
    count = (candidates.sum(dim=-1, keepdim=True).double() * ratio + _HALF).floor().clamp(min=least)
    noise = torch.rand(candidates.shape, device=candidates.device).masked_fill(~candidates, 2.0)
    # the rank of each by comparing all pairs: rows are short, and a sort takes a GPU many times as long
    place = torch.arange(noise.shape[-1], device=noise.device)
    mine, other = noise[..., :, None], noise[..., None, :]
    rank = ((other < mine) | ((other == mine) & (place < place[:, None]))).sum(dim=-1)
    return candidates & (rank < count)


def items_of_others(stream: StreamBatch, shape: torch.Size) -> Int[Tensor, "b f n"] | Float[Tensor, "b f n e"]:
    """Random real items of other streams in the batch."""
    b, wanted = shape[0], shape[1:].numel()
    if b < 2:
        raise BadInput("A negative fragment takes items from other streams; a batch of one stream has none.")
    device = stream.order.device
    other = (torch.arange(b, device=device)[:, None] + torch.randint(1, b, (b, wanted), device=device)) % b
    return random_items(stream, other).unflatten(1, shape[1:])


def random_items(stream: StreamBatch, rows: Int[Tensor, "b j"]) -> Int[Tensor, "b j"] | Float[Tensor, "b j e"]:
    """A random real item of each of the streams named: a random segment of it, then an item of that."""
    segment = stream.order[rows, random_below(stream.segment_mask.sum(dim=1)[rows])]
    return stream.items[segment, random_below(stream.item_mask.sum(dim=1)[segment])]


def random_below(limit: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
    """A random index of each real prefix: padding always comes last."""
    return (torch.rand(limit.shape, device=limit.device) * limit).long()
