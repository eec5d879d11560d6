"""Compressive Transformer: Jack W. Rae, Anna Potapenko, Siddhant M. Jayakumar, Chloe Hillier, Timothy P. Lillicrap,
"Compressive Transformers for Long-Range Sequence Modelling", ICLR 2020. Positions are those of Transformer-XL: Zihang
Dai et al., "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", ACL 2019.

A Transformer reads segment after segment. At each of its levels the last segment's rows wait in a short queue; when the
next segment comes they are compressed, `rate` rows into one, and pass into a second queue of K rows, whose oldest rows
drop out. Attention sees both queues and the segment itself.

A layer reads the queues of its own level and gives rows of the next, so whatever is passed on from segment to segment
rises a level each time: a memory can know of the last (layers + 1) (K rate + N) items at most.

Changed for the shared harness:

1. Attention within a segment looks both ways, since nothing is predicted from left to right.
2. The gradient flows through both queues. A language model cuts it between segments, but here the answer's loss reaches
   the writer through the last memory only; `horizon` cuts it, if that is wanted. That loss trains the compression, too.
3. One more level keeps what the top layer gives. As published, a queue holds the inputs of its layer, so nothing of the
   top layer's own work would ever be remembered, and its weights would learn nothing.
4. LayerNorm stands before each sub-layer, and the queues hold rows that have passed it: what attention reads.
5. The reasoner reads the top level's compressed queue, with the short one compressed into a copy of it, so that recent
   items are seen; it has no mask for slots, so a row that is still empty shows it a learned vector.
6. A segment's real items are pushed together and shifted to end on a multiple of `rate`, with zeros in front. A row
   that would stand for padding alone is not made. The short queue holds N rows, rounded up to a multiple of `rate`.

The paper's choices kept: convolution as the compression, its loss of attention reconstruction, relative positions. Its
two position vectors u and v, added to the query for content and for distance, are here one: the query's bias.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import EmbeddedStream, Trace, gather_rows
from remem.model.transformer import attendable, scale_of, sinusoids
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


class CompressiveTransformer(nn.Module):
    """K compressed rows and one segment of uncompressed ones at every level, of which the reasoner sees K rows.

    What a stream keeps is (num_layers + 1) (N + K) d numbers.

    Args:
        num_slots: K, the compressed rows of a level.
        segment_len: N, the most items of a segment.
        rate: how many rows are compressed into one.
        horizon: no gradient passes through more segments than this. Each stream is cut into stretches of so many
            segments, counted from its end, so that its last memory reaches exactly the last `horizon` segments.
        auxiliary_weight: weight of the compression's own loss.
    """

    distance_table: Tensor

    def __init__(
        self,
        *,
        item_dim: int,
        num_slots: int,
        segment_len: int,
        num_layers: int = 3,
        num_heads: int = 4,
        rate: int = 5,
        dropout: float = 0.1,
        horizon: int | None = None,
        auxiliary_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if horizon is not None and horizon < 1:
            raise BadInput(f"A horizon of {horizon} segments leaves nothing to learn from; give 1 or more, or None.")
        self.segment_len, self.rate, self.horizon, self.auxiliary_weight = segment_len, rate, horizon, auxiliary_weight
        self.num_rows = -(-segment_len // rate) * rate
        self.step = SegmentStep(
            item_dim=item_dim, num_layers=num_layers, num_heads=num_heads, rate=rate, dropout=dropout
        )
        self.empty = nn.Parameter(torch.randn(item_dim))
        self.state_shape = (num_layers + 1, num_slots, item_dim)
        # one row more than there are distances, which `_shifted` steps over
        self.register_buffer("distance_table", sinusoids(num_slots + 3 * self.num_rows, item_dim), persistent=False)

    def initial_state(self, batch_size: int) -> QueueState:
        """Empty queues."""
        levels, num_slots, item_dim = self.state_shape
        return QueueState(
            self.empty.new_zeros(batch_size, levels, self.num_rows, item_dim),
            self.empty.new_zeros(batch_size, self.num_rows, dtype=torch.bool),
            self.empty.new_zeros(batch_size, levels, num_slots, item_dim),
            self.empty.new_zeros(batch_size, num_slots, dtype=torch.bool),
        )

    def memory(self, state: QueueState) -> Float[Tensor, "b k d"]:
        """The top level's last K rows, after compressing what waits in its short queue; nothing of it is kept."""
        return self._read(_top(state))[0]

    def write(self, state: QueueState, segment: Segment) -> QueueState:
        """The queues after one more segment."""
        return self.step(state, *self._laid_out(segment.items, segment.mask), self._distances()).state

    def write_stream(self, state: QueueState, stream: EmbeddedStream) -> Trace:
        """All segments in turn; the memories that are read, and the compression's loss, for all of them at once."""
        items, item_mask = self._laid_out(stream.items, stream.item_mask)
        mask = item_mask[stream.order] & stream.segment_mask[..., None]  # [b, t, rows]
        # one lookup for all: the gradient of a lookup is as large as the whole table
        segments = items.index_select(0, stream.order.T.flatten()).unflatten(0, stream.order.T.shape)
        distances, cuts = self._distances(), self._cuts(mask.any(dim=-1))
        states, written = [state], []
        for t, segment in enumerate(segments.unbind(0)):
            before = states[-1] if cuts is None else _cut(states[-1], cuts[:, t])
            written.append(self.step(before, segment, mask[:, t], distances))
            states.append(written[-1].state)
        tops = (torch.stack(parts, dim=1).flatten(0, 1) for parts in zip(*map(_top, states), strict=True))
        memories, filled = (part.unflatten(0, (-1, len(states))) for part in self._read(QueueState(*tops)))
        on_compressed = sum((w.on_compressed.sum() for w in written), start=memories.new_zeros(()))
        figures = {
            "filled": filled[:, -1].to(memories.dtype).mean(),
            "compressed_attention": on_compressed / mask.sum().clamp(min=1),
        }
        losses = {}
        if self.training and self.auxiliary_weight:
            losses["compression"] = self.auxiliary_weight * self._reconstruction_loss(states[:-1], written, mask)
        return Trace(states[-1], memories, figures, losses)

    def compile_parts(self, backend: str) -> None:
        """The step of one segment, which is nearly all of the work."""
        self.step.compile(backend=backend)

    def _laid_out(self, items: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if items.shape[1] > self.segment_len:
            raise BadInput(f"A segment of {items.shape[1]} items was given; this memory takes {self.segment_len}.")
        return lay_out(items, mask, rows=self.num_rows, rate=self.rate)

    def _distances(self) -> Float[Tensor, "layers heads e p"]:
        return torch.stack([layer.project_distances(self.distance_table) for layer in self.step.stack])

    def _read(self, top: QueueState) -> tuple[Float[Tensor, "b k d"], Bool[Tensor, "b k"]]:
        """What the reasoner sees of a state's top level, and which rows of it have content."""
        compression = self.step.compression
        new, added = compression(top.short, slice(-1, None)), compression.count(top.short_mask)
        rows, filled = append(top.compressed, top.compressed_mask, new, added)
        return torch.where(filled[..., None], rows.squeeze(1), self.empty), filled

    def _cuts(self, real: Bool[Tensor, "b t"]) -> Bool[Tensor, "b t"] | None:
        """Before which segments the gradient ends."""
        if self.horizon is None:
            return None
        left = real.flip(1).cumsum(dim=1).flip(1)
        return real & (left % self.horizon == 0)

    def _reconstruction_loss(
        self, before: list[QueueState], written: list[Written], mask: Bool[Tensor, "b t rows"]
    ) -> Float[Tensor, ""]:
        """mse(attn(h, old), attn(h, new)): what the compressed rows give a segment in place of those they replace.

        All but the convolution is held fixed. A segment counts if it pushed something out of the short queue.
        """
        if not written:
            return self.empty.new_zeros(())
        old = torch.cat([s.short[:, :-1] for s in before]).detach()  # [t b, layers, rows, d]
        old_mask = torch.cat([s.short_mask for s in before])
        queries = torch.cat([w.queries for w in written])
        real = mask.transpose(0, 1).flatten(0, 1)
        compression = self.step.compression
        new = compression(old, slice(0, -1))
        new_mask = torch.arange(new.shape[2], device=new.device) < compression.count(old_mask)[:, None]
        errors = []
        for level, layer in enumerate(self.step.stack):
            with torch.no_grad():
                wanted = layer.reconstruct(queries[:, level], old[:, level], old_mask)
            given = layer.reconstruct(queries[:, level], new[:, level], new_mask)
            errors.append((given - wanted).square().mean(dim=(1, 3)))  # [t b, rows]
        error = torch.stack(errors).mean(dim=0).masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        counted = real.any(dim=1) & old_mask.any(dim=1)
        return error.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)


def _cut(state: QueueState, rows: Bool[Tensor, " b"]) -> QueueState:
    """The same state; in the given streams its past receives no gradient."""
    short, compressed = (
        torch.where(rows[:, None, None, None], part.detach(), part) for part in (state.short, state.compressed)
    )
    return state._replace(short=short, compressed=compressed)


def _top(state: QueueState) -> QueueState:
    """The top level alone."""
    return state._replace(short=state.short[:, -1:], compressed=state.compressed[:, -1:])
