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

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from remem.baselines.compressive_step import QueueState, SegmentStep, Written, append, lay_out
from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import EmbeddedStream, Trace
from remem.model.transformer import sinusoids


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
