"""The real items of each stream one after the other: what reads item by item spends no step on padding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Packed(NamedTuple):
    """Where each stream's items stand in the flattened table of segments."""

    rows: Int[Tensor, "b l"]
    real: Bool[Tensor, "b l"]
    read: Int[Tensor, "b t+1"]
    """Items read before the first segment and after each."""


def pack(
    item_mask: Bool[Tensor, "s n"],
    order: Int[Tensor, "b t"],
    segment_mask: Bool[Tensor, "b t"],
    most_items: int | None = None,
) -> Packed:
    """Shapes depend on shapes alone, and on `most_items`, which the host knows: nothing waits for the device."""
    (b, t), n = order.shape, item_mask.shape[1]
    real = item_mask[order] & segment_mask[..., None]  # [b, t, n]
    place = real.flatten(1).cumsum(dim=1)  # of a real item, counted from one
    # one step of padding changes nothing, so there may always be one
    length = max(1, t * n if most_items is None else min(most_items, t * n))
    rows = (order[..., None] * n + torch.arange(n, device=order.device)).flatten(1)
    # whatever is padding goes to a column of its own, which is then dropped
    target = torch.where(real.flatten(1), place - 1, length).clamp(max=length)
    packed = torch.zeros(b, length + 1, dtype=rows.dtype, device=rows.device).scatter(1, target, rows)[:, :length]
    read = torch.nn.functional.pad(place[:, n - 1 :: n], (1, 0))
    return Packed(packed, torch.arange(length, device=order.device) < read[:, -1:], read)


def without_padding(items: Float[Tensor, "*s n d"], mask: Bool[Tensor, "*s n"]) -> Float[Tensor, "*s n d"]:
    """What stands at a padded item may be NaN, and NaN times a weight or a gradient of zero is NaN."""
    return items.masked_fill(~mask[..., None], 0.0)
