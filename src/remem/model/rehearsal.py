"""Rehearsal decoder H, and the two losses that teach the memory to keep its history (Eq. 3 and 4, Sec. 3.3.1)."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.data.batch import StreamBatch
from remem.model.embed import ItemEmbedding, VectorEmbedding
from remem.model.fragments import Fragments, random_items
from remem.model.interface import gather_rows
from remem.model.transformer import DecoderLayer, PositionCode, final_norm, scale_of
from remem.ops.paths import fast


class Rehearsed(NamedTuple):
    """What the decoder makes of the fragments."""

    recalled: Float[Tensor, "b f p d"]  # r_[m_i] of the positives, at the fragments' places
    familiarity_logit: Float[Tensor, "2 b f"]  # s+ and s- before the sigmoid


class RehearsalDecoder(nn.Module):
    """Bi-directional Transformer decoder over [cls] and the fragment, with the memory as keys and values."""

    def __init__(
        self,
        *,
        position: PositionCode,
        item_dim: int,
        num_layers: int,
        num_heads: int,
        dropout: float,
        scaled_recall: bool = False,
        pre_norm: bool = False,
        read_norm: bool = False,
    ) -> None:
        super().__init__()
        self.position = position
        self.cls = nn.Parameter(torch.randn(item_dim))
        self.mask_item = nn.Parameter(torch.randn(item_dim))
        self.layers = nn.ModuleList(
            DecoderLayer(dim=item_dim, num_heads=num_heads, dropout=dropout, pre_norm=pre_norm)
            for _ in range(num_layers)
        )
        self.norm = final_norm(item_dim, pre_norm)
        self.read_norm = nn.LayerNorm(item_dim) if read_norm else nn.Identity()
        self.familiarity = nn.Linear(item_dim, 1)
        self.recall_scale = scale_of(item_dim) if scaled_recall else 1.0

    def forward(
        self, fragments: Fragments, embed: ItemEmbedding | VectorEmbedding, memory: Float[Tensor, "b k d"]
    ) -> Rehearsed:
        """Positives and negatives in one pass.

        Only [cls] and, of positives, the masked places are read, so the last layer need not go on with others.
        """
        both = torch.cat([fragments.items, fragments.negative_items], dim=1)  # [b, 2f, n] or [b, 2f, n, e]
        hidden = fragments.masked.repeat(1, 2, 1)[..., None]
        items = torch.where(hidden, self.mask_item, embed(both))
        cls = self.cls.expand(*both.shape[:2], 1, -1)
        features = self.position(torch.cat([cls.to(items.dtype), items], dim=2))  # [b, 2f, 1+n, d]
        # [cls] is always there, so no fragment is without a place to attend to
        mask = F.pad(fragments.item_mask.repeat(1, 2, 1), (1, 0), value=True)
        memory = self.read_norm(memory)
        (b, f), place = fragments.mask.shape, fragments.places + 1  # after [cls]
        first = torch.arange(2 * f, device=place.device) * features.shape[2]  # where each [cls] is in its stream
        wanted = torch.cat([first.expand(b, -1), (first[:f, None] + place).flatten(1)], dim=1)  # [b, 2f + fp]
        *layers, last = self.layers
        for layer in layers:
            features = layer(features, mask, memory)
        if fast():
            features = cast(DecoderLayer, last).at(features, mask, memory, wanted)
        else:
            features = gather_rows(last(features, mask, memory).flatten(1, 2), wanted)
        cls_features, recalled = self.norm(features).tensor_split([2 * f], dim=1)
        logits = self.familiarity(cls_features).view(b, 2, f).transpose(0, 1)
        return Rehearsed(recalled.unflatten(1, place.shape[1:]), logits)


def recollection_loss(
    rehearsed: Rehearsed,
    fragments: Fragments,
    embed: ItemEmbedding | VectorEmbedding,
    *,
    scale: float = 1.0,
    distractors: Int[Tensor, "b f j"] | Float[Tensor, "b f j e"] | None = None,
) -> Float[Tensor, ""]:
    """-log of the true item's share (Eq. 3), against all items or the given distractors; mean over masked items.

    L_i = log exp(r_i . y_i) / (exp(r_i . y_i) + sum_j exp(r_i . y_j))     L_rec = -(2 / N) sum_i L_i
    """
    items = fragments.at_places(fragments.items)
    if distractors is None:
        assert isinstance(embed, ItemEmbedding), "vectors have no vocabulary to contrast with"
        logits = scale * F.linear(rehearsed.recalled, embed.table.weight).float()  # [b, f, p, items]
        loss = F.cross_entropy(logits.flatten(0, 2), items.flatten(), reduction="none").view_as(items)
    else:
        true = (rehearsed.recalled * embed(items)).sum(dim=-1, keepdim=True)
        wrong = rehearsed.recalled @ embed(distractors).mT  # [b, f, p, j]
        # a distractor that is the true item itself would be counted on both sides
        same = item_keys(distractors)[:, :, None] == item_keys(items)[..., None]
        logits = scale * torch.cat([true, wrong.masked_fill(same, -torch.inf)], dim=-1).float()
        loss = -logits.log_softmax(dim=-1)[..., 0]
    return _mean_over(loss, fragments.place_mask)


def familiarity_loss(rehearsed: Rehearsed, fragments: Fragments) -> Float[Tensor, ""]:
    """-log s+ - log(1 - s-) (Eq. 4, with the sign that is bounded below), from logits; mean over fragments.

    A fragment of one item has it masked and nothing left to replace: its negative equals it, so it is left out.
    """
    positive, negative = rehearsed.familiarity_logit.float()
    distinguishable = fragments.mask & (fragments.item_mask & ~fragments.masked).any(dim=-1)
    return _mean_over(F.softplus(-positive) + F.softplus(negative), distinguishable)


def item_set_distractors(fragments: Fragments, num_items: int, count: int) -> Int[Tensor, "b f j"]:
    """J random items of the whole item set (200 in the recommendation task)."""
    return torch.randint(num_items, (*fragments.items.shape[:2], count), device=fragments.items.device)


def stream_distractors(
    stream: StreamBatch, fragments: Fragments, count: int
) -> Int[Tensor, "b f j"] | Float[Tensor, "b f j e"]:
    """J random items of the same stream (30 frames of the same video), drawn with replacement."""
    b, f = fragments.items.shape[:2]
    rows = torch.arange(b, device=stream.order.device)[:, None].expand(-1, f * count)
    return random_items(stream, rows).unflatten(1, (f, count))


def item_keys(items: Tensor) -> Int[Tensor, "b f n"]:
    """A number for each item, the same for equal items: its own number, or a hash of all the bits of a vector.

    The next frames of a video may be equal, and comparing every pair of vectors would take a hundred times the memory.
    """
    if not items.is_floating_point():
        return items
    bits = items.float().contiguous().view(torch.int32)
    # each product stays within 63 bits: compiled to C++, one of the loop's counter that does not is undefined
    place = (torch.arange(1, items.shape[-1] + 1, device=items.device) * 0x9E3779B1 & 0x7FFFFFFF) | 1
    return ((bits ^ (bits >> 15)) * place & 0x3FFFFFFFFFFF).sum(dim=-1)


def _mean_over(values: Tensor, mask: Tensor) -> Tensor:
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)
