"""One segment of the Compressive Transformer: layers and queues (see `remem.baselines.compressive_transformer`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.errors import BadInput
from remem.model.interface import gather_rows
from remem.model.transformer import attendable, scale_of
from remem.ops.precision import at_least_float32


class QueueState(NamedTuple):
    """Both queues at every level. Rows without content are zero; those of the compressed queue come first."""

    short: Float[Tensor, "b levels rows d"]
    short_mask: Bool[Tensor, "b rows"]
    compressed: Float[Tensor, "b levels k d"]
    compressed_mask: Bool[Tensor, "b k"]


class Written(NamedTuple):
    """The state after a segment, and what the loss and the figures need of every layer, without gradient."""

    state: QueueState
    queries: Float[Tensor, "b layers heads rows e"]
    on_compressed: Float[Tensor, " b"]
    """Share of the attention that compressed rows get: mean over layers and heads, sum over real items."""


def lay_out(
    items: Float[Tensor, "s n d"], mask: Bool[Tensor, "s n"], *, rows: int, rate: int
) -> tuple[Float[Tensor, "s rows d"], Bool[Tensor, "s rows"]]:
    """The real items side by side in `rows` places, ending on a multiple of `rate`; zeros everywhere else."""
    count = mask.sum(dim=1, keepdim=True)
    start = -count % rate
    place = torch.arange(rows, device=mask.device)
    filled = (place >= start) & (place < start + count)
    # padded items go to a place past the end
    target = torch.where(mask, start + mask.cumsum(dim=1) - 1, rows)
    numbers = torch.arange(mask.shape[1], device=mask.device).expand_as(target)
    source = target.new_zeros(len(mask), rows + 1).scatter(1, target, numbers)[:, :rows]
    # filled rather than multiplied: a padded item may hold anything
    return gather_rows(items, source).masked_fill(~filled[..., None], 0.0), filled


def append(
    queue: Float[Tensor, "b levels k d"],
    mask: Bool[Tensor, "b k"],
    new: Float[Tensor, "b levels g d"],
    added: Int[Tensor, " b"],
) -> tuple[Float[Tensor, "b levels k d"], Bool[Tensor, "b k"]]:
    """The last k rows of [queue ; new_1 ... new_added]: first in, first out. With nothing added, the same bits."""
    b, levels, k, _ = queue.shape
    index = torch.arange(k, device=queue.device) + added[:, None]
    rows = torch.cat([queue, new], dim=2).flatten(0, 1)
    kept = gather_rows(rows, index[:, None].expand(-1, levels, -1).flatten(0, 1))
    open_mask = torch.cat([mask, mask.new_ones(b, new.shape[2])], dim=1)
    return kept.unflatten(0, (b, levels)), open_mask.gather(1, index)


class Compression(nn.Module):
    """c_g = b + sum_j W_j m_{g rate + j}: a convolution with kernel = stride = rate, with weights for each level."""

    def __init__(self, *, item_dim: int, rate: int, levels: int) -> None:
        super().__init__()
        self.rate = rate
        reach = scale_of(rate * item_dim)  # torch's own for a convolution
        self.weight = nn.Parameter(torch.empty(levels, rate * item_dim, item_dim).uniform_(-reach, reach))
        self.bias = nn.Parameter(torch.empty(levels, item_dim).uniform_(-reach, reach))

    def forward(self, rows: Float[Tensor, "b levels rows d"], levels: slice) -> Float[Tensor, "b levels g d"]:
        groups = rows.unflatten(2, (-1, self.rate)).flatten(3)  # [b, levels, g, rate d]
        compressed = torch.einsum("blgi,lid->blgd", groups, self.weight[levels])
        return at_least_float32(compressed) + self.bias[levels, None]

    def count(self, mask: Bool[Tensor, "b rows"]) -> Int[Tensor, " b"]:
        """How many of the compressed rows stand for a real item at least."""
        return mask.unflatten(1, (-1, self.rate)).any(dim=2).sum(dim=1)


class CompressiveLayer(nn.Module):
    """Attention of a segment to [compressed ; short ; itself], then feed-forward, with LayerNorm before each.

    score_ij = q_i (k_j + r_{i-j}) / sqrt(d/heads)     r_{i-j} = W_r sinusoid(i - j)

    Distances count rows of that sequence, so a compressed row counts as one.
    """

    def __init__(self, *, item_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if item_dim % num_heads:
            raise BadInput(f"A width of {item_dim} cannot be split into {num_heads} heads; choose a divisor.")
        self.num_heads, self.scale = num_heads, scale_of(item_dim // num_heads)
        self.norm, self.feed_norm = nn.LayerNorm(item_dim), nn.LayerNorm(item_dim)
        self.query, self.key_value = nn.Linear(item_dim, item_dim), nn.Linear(item_dim, 2 * item_dim)
        self.distance = nn.Linear(item_dim, item_dim, bias=False)  # W_r
        self.out = nn.Linear(item_dim, item_dim)
        self.feed_forward = nn.Sequential(
            nn.Linear(item_dim, 4 * item_dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * item_dim, item_dim)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        hidden: Float[Tensor, "b rows d"],
        rows: Float[Tensor, "b rows d"],
        sequence: Float[Tensor, "b j d"],
        open_rows: Bool[Tensor, "b j"],
        distances: Float[Tensor, "heads e p"],
    ) -> tuple[Float[Tensor, "b rows d"], Float[Tensor, "b heads rows e"], Float[Tensor, "b heads rows j"]]:
        """h^l from h^{l-1}; its queries; and the attention. `rows` is LayerNorm(h^{l-1}), the end of `sequence`."""
        (query,), (key, value) = self._heads(self.query(rows)), self._heads(self.key_value(sequence))
        content = at_least_float32(query @ key.transpose(2, 3))
        position = at_least_float32(torch.einsum("bhie,hep->bhip", query, distances))
        scores = (content + _shifted(position, sequence.shape[1])) * self.scale
        attention = scores.masked_fill(~open_rows[:, None, None], -torch.inf).softmax(dim=-1)
        mixed = (attention.to(value.dtype) @ value).transpose(1, 2).flatten(2)
        hidden = hidden + self.dropout(self.out(mixed))
        return hidden + self.dropout(self.feed_forward(self.feed_norm(hidden))), query.detach(), attention.detach()

    def reconstruct(
        self, query: Float[Tensor, "b heads rows e"], rows: Float[Tensor, "b j d"], mask: Bool[Tensor, "b j"]
    ) -> Float[Tensor, "b heads rows e"]:
        """attn(h, m) of the reconstruction loss: by content alone, with weights that this loss may not change."""
        key, value = self._heads(F.linear(rows, self.key_value.weight.detach(), self.key_value.bias.detach()))
        scores = at_least_float32(query @ key.transpose(2, 3)) * self.scale
        attention = scores.masked_fill(~attendable(mask)[:, None, None], -torch.inf).softmax(dim=-1)
        return at_least_float32(attention.to(value.dtype) @ value)

    def project_distances(self, table: Float[Tensor, "p d"]) -> Float[Tensor, "heads e p"]:
        """r of every distance, which no segment changes."""
        return self.distance(table).unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0)

    def _heads(self, projected: Tensor) -> tuple[Tensor, ...]:
        """Several projections side by side, each as [b, heads, rows, d/heads]."""
        parts = projected.unflatten(-1, (-1, self.num_heads, self.out.in_features // self.num_heads))
        return tuple(part.transpose(1, 2) for part in parts.unbind(-3))


def _shifted(scores: Float[Tensor, "b heads rows p"], width: int) -> Float[Tensor, "b heads rows j"]:
    """out[i, j] = scores[i, j - i + rows - 1]: from a score for each distance to one for each pair, by a view."""
    rows, distances = scores.shape[2:]
    flat = scores.flatten(2)[..., rows - 1 : rows - 1 + rows * (distances - 1)]
    return flat.unflatten(2, (rows, distances - 1))[..., :width]


class SegmentStep(nn.Module):
    """One segment through all layers and into the queues; the only part that waits for the segment before.

    short_l' = LayerNorm(h^l)     compressed_l' = the last K rows of [compressed_l ; conv_l(short_l)]
    """

    def __init__(self, *, item_dim: int, num_layers: int, num_heads: int, rate: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            CompressiveLayer(item_dim=item_dim, num_heads=num_heads, dropout=dropout) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(item_dim)
        self.compression = Compression(item_dim=item_dim, rate=rate, levels=num_layers + 1)

    @property
    def stack(self) -> Iterable[CompressiveLayer]:
        """The layers from the bottom up."""
        return cast(Iterable[CompressiveLayer], self.layers)

    def forward(
        self,
        state: QueueState,
        items: Float[Tensor, "b rows d"],
        mask: Bool[Tensor, "b rows"],
        distances: Float[Tensor, "layers heads e p"],
    ) -> Written:
        padded = ~mask[..., None]
        open_rows = torch.cat([state.compressed_mask, state.short_mask, attendable(mask)], dim=1)
        # unbind, since the gradient of a slice is as large as the whole
        queues = zip(state.compressed.unbind(1)[:-1], state.short.unbind(1)[:-1], distances.unbind(0), strict=True)
        hidden, levels, queries, share = items, [], [], items.new_zeros(mask.shape)
        for layer, (compressed, short, distance) in zip(self.stack, queues, strict=True):
            levels.append(layer.norm(hidden).masked_fill(padded, 0.0))
            sequence = torch.cat([compressed, short, levels[-1]], dim=1)
            hidden, query, attention = layer(hidden, levels[-1], sequence, open_rows, distance)
            queries.append(query)
            share = share + attention[..., : compressed.shape[1]].sum(dim=-1).mean(dim=1)
        levels.append(self.norm(hidden).masked_fill(padded, 0.0))
        on_compressed = share.masked_fill(~mask, 0.0).sum(dim=1) / len(queries)
        real = mask.any(dim=1)
        added = self.compression.count(state.short_mask).masked_fill(~real, 0)
        new = self.compression(state.short, slice(None))
        queue, queue_mask = append(state.compressed, state.compressed_mask, new, added)
        # a stream that brings nothing keeps its last segment
        latest = torch.where(real[:, None, None, None], torch.stack(levels, dim=1), state.short)
        latest_mask = torch.where(real[:, None], mask, state.short_mask)
        return Written(QueueState(latest, latest_mask, queue, queue_mask), torch.stack(queries, dim=1), on_compressed)
