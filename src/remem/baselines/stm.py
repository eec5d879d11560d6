"""STM, the two-memory model built on self-attentive associative memory.

H. Le, T. Tran and S. Venkatesh, "Self-Attentive Associative Memory", ICML 2020. An item memory keeps what was seen; a
relational memory, a stack of matrices made from it by self-attention with outer products, keeps how it goes together.

Changed for the shared harness:

1. A segment is one input. As the original does with the words of a sentence, its items are summed, each times a learned
   mask of its position; a padded item adds nothing, and a segment without a real item leaves the state as it was.
2. The reader is replaced by the reasoner that all methods share. `memory` gives it K slots, W_s times the rows of the
   relational memory; no outputs of the model's own are kept. Its own reader is in `remem.baselines.native_stm`.
3. A step has one inner iteration, the default of the authors' program.
4. With alpha_1 = 1 the relational memory adds up for ever. `bounded_after` scales back a relation whose norm has passed
   what that many segments can add at the most; before, and so on the paper's streams, nothing changes by a bit.
5. Under autocast the step of the memories stays in float32; what is done for all segments at once runs in 16 bits.

Left open, and settled here: f1, f2 and f3 are two layers with a tanh between (the text says feed-forward networks, the
authors' program leaves out the nonlinearity); the LayerNorm runs over the whole matrix of queries, keys and values.

Shape letters beside the usual ones: e width of both memories, r relations, of which there are as many as queries (n_q).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from remem.baselines.stm_cell import STMCell, STMState, mix_rows, uniform
from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import EmbeddedStream, Trace
from remem.ops.precision import at_least_float32


class SegmentCode(NamedTuple):
    """What a segment brings to its step; none of it depends on the memory."""

    written: Float[Tensor, "s e"]  # f1(x)
    cue: Float[Tensor, "s e"]  # f2(x)
    attention: Float[Tensor, "s r"]  # softmax f3(x)


class Passage(NamedTuple):
    """What reading a stream leaves: the last state, what was seen before the first and after every segment, figures."""

    state: STMState
    seen: Float[Tensor, "b t+1 ..."]
    figures: dict[str, Float[Tensor, ""]]


def matched_width(num_slots: int, item_dim: int, num_queries: int) -> int:
    """The width whose state of (n_q + 1) width^2 numbers comes closest to the K d numbers of K slots."""
    below = math.isqrt(num_slots * item_dim // (num_queries + 1))
    return min((max(below, 1), below + 1), key=lambda s: abs((num_queries + 1) * s * s - num_slots * item_dim))


class TwoMemories(nn.Module):
    """The two memories of `STMCell` along a stream, for any reader.

    x = sum_n p_n * x_n     f1(x), f2(x), f3(x): two layers each

    Args:
        width: s, the height and width of every matrix; `matched_width` gives the one that keeps as much as K slots.
        num_queries: n_q, the number of relations.
        hidden_dim: the inner width of f1, f2 and f3.
        alpha1, alpha2, alpha3: a fixed number, or None to learn it from 0. As given here they are those of the original
            on bAbI; on its other tasks it learns all three.
        bounded_after: no stream of fewer segments can reach the bound on the relational memory (see `STMCell`, where
            LayerNorm's gains are one); None leaves it without a bound, as the original does.
    """

    def __init__(
        self,
        *,
        item_dim: int,
        segment_len: int,
        width: int = 96,
        num_queries: int = 8,
        hidden_dim: int = 80,
        alpha1: float | None = 1.0,
        alpha2: float | None = None,
        alpha3: float | None = 0.0,
        bounded_after: int | None = 100,
    ) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.full((segment_len, item_dim), 1.0 / segment_len))  # p
        self.to_written = _feed_forward(item_dim, hidden_dim, width)  # f1
        self.to_cue = _feed_forward(item_dim, hidden_dim, width)  # f2
        self.to_attention = _feed_forward(item_dim, hidden_dim, num_queries)  # f3
        self.cell = STMCell(
            width=width,
            num_queries=num_queries,
            alpha1=alpha1,
            alpha2=alpha2,
            alpha3=alpha3,
            bounded_after=bounded_after,
        )
        self.first_items = nn.Parameter(uniform(width, width, limit=(2 * width) ** -0.5))
        self.first_relations = nn.Parameter(uniform(num_queries, width, width, limit=(2 * width + num_queries) ** -0.5))

    def initial_state(self, batch_size: int) -> STMState:
        """Both first memories are learned, and the same for every stream."""
        # laid out as every later state is, so that a compiled step knows one layout
        return STMState(
            self.first_items.expand(batch_size, -1, -1).contiguous(),
            self.first_relations.expand(batch_size, -1, -1, -1).contiguous(),
        )

    def vector(self, items: Float[Tensor, "s n d"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, "s d"]:
        """x of a segment: its items, each times the mask of its position, summed."""
        if items.shape[1] > len(self.position):
            raise BadInput(
                f"A segment of {items.shape[1]} items was given to a memory built for {len(self.position)}; "
                "cut the stream into shorter segments or build it with a larger segment_len."
            )
        # a padded item may hold anything, and NaN times zero is NaN
        real = items.masked_fill(~mask[..., None], 0.0)
        return (real * self.position[: items.shape[1]]).sum(dim=1)

    def encode(self, items: Float[Tensor, "s n d"], mask: Bool[Tensor, "s n"]) -> SegmentCode:
        """The segments' vectors and what f1, f2 and f3 make of them."""
        vector = self.vector(items, mask)
        return SegmentCode(
            at_least_float32(self.to_written(vector)),
            at_least_float32(self.to_cue(vector)),
            at_least_float32(self.to_attention(vector)).softmax(dim=-1),
        )

    def write(self, state: STMState, segment: Segment) -> STMState:
        """Both memories after one more segment."""
        code = self.encode(*segment)
        with _full_precision(state):
            written, _ = self.cell(state, *code, segment.mask.any(dim=1))
        return written

    def along(self, state: STMState, stream: EmbeddedStream, look: Callable[[STMState], Tensor]) -> Passage:
        """All segments in turn; only the step itself is sequential, and only what `look` takes of a state stays."""
        code = self.encode(stream.items, stream.item_mask)
        table = torch.cat(code, dim=-1)  # [s, 2 e + r]
        real = stream.item_mask.any(dim=1)[stream.order] & stream.segment_mask  # [b, t]
        with _full_precision(state):
            seen, gates = [look(state)], [state.items.new_zeros(2)]
            for row, now in zip(stream.turns(table), real.unbind(1), strict=True):
                state, opened = self.cell(state, *row.split([part.shape[1] for part in code], dim=1), now)
                seen.append(look(state))
                gates.append((opened * now[:, None]).sum(dim=0))
        let_in, keep = torch.stack(gates).sum(dim=0) / real.sum().clamp(min=1)
        size = state.relations.detach().square().mean().sqrt()
        figures = {"input_gate": let_in, "forget_gate": keep, "relation_size": size}
        if isinstance(self.cell.alpha2, Tensor):
            figures["alpha2"] = self.cell.alpha2.detach().clone()
        return Passage(state, torch.stack(seen, dim=1), figures)

    def compile_parts(self, backend: str) -> None:
        """The step of one segment, which a stream repeats."""
        self.cell.compile(backend=backend)


class STM(TwoMemories):
    """`TwoMemories` as a `Memorizer`: K slots are made of the relational one.

    M = W_o LayerNorm(W_s [M^r_1; ...; M^r_r])
    """

    def __init__(
        self,
        *,
        item_dim: int,
        num_slots: int,
        segment_len: int,
        width: int = 96,
        num_queries: int = 8,
        hidden_dim: int = 80,
        alpha1: float | None = 1.0,
        alpha2: float | None = None,
        alpha3: float | None = 0.0,
        bounded_after: int | None = 100,
    ) -> None:
        super().__init__(
            item_dim=item_dim,
            segment_len=segment_len,
            width=width,
            num_queries=num_queries,
            hidden_dim=hidden_dim,
            alpha1=alpha1,
            alpha2=alpha2,
            alpha3=alpha3,
            bounded_after=bounded_after,
        )
        # W_s; a bias would be the same for all of a slot, which LayerNorm takes away
        self.to_slots = nn.Parameter(uniform(num_slots, num_queries * width, limit=(num_queries * width) ** -0.5))
        self.slot_norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, item_dim)  # W_o

    def memory(self, state: STMState) -> Float[Tensor, "b k d"]:
        """M: K mixtures of all rows of the relational memory."""
        with _full_precision(state):
            pooled = self._pool(state)
        return self._read_out(pooled)

    def write_stream(self, state: STMState, stream: EmbeddedStream) -> Trace:
        """All segments in turn; only K rows a segment stay for the readers."""
        state, pooled, figures = self.along(state, stream, self._pool)
        return Trace(state, self._read_out(pooled), figures, {})

    def _pool(self, state: STMState) -> Float[Tensor, "b k e"]:
        return mix_rows(self.to_slots, state.relations)

    def _read_out(self, pooled: Float[Tensor, "*b k e"]) -> Float[Tensor, "*b k d"]:
        return at_least_float32(self.out(self.slot_norm(pooled)))


def _feed_forward(input_dim: int, hidden_dim: int, output_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(input_dim, hidden_dim), nn.Tanh(), nn.Linear(hidden_dim, output_dim))


def _full_precision(state: STMState) -> torch.autocast:
    # M^r is a sum over the whole stream: in 16 bits it would lose the latest segment, and whatever a step rounds comes
    # back in all later ones. Around a step and not inside it, so that a compiled one has its gradient in full as well
    return torch.autocast(state.items.device.type, enabled=False)
