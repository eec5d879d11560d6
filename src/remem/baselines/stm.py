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

from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import EmbeddedStream, Trace
from remem.ops.precision import at_least_float32


class STMState(NamedTuple):
    """All that is kept of a stream."""

    items: Float[Tensor, "b e e"]  # M^i
    relations: Float[Tensor, "b r e e"]  # M^r


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


def outer_product_attention(
    query: Float[Tensor, "b r e"], key: Float[Tensor, "b j e"], value: Float[Tensor, "b j v"]
) -> Float[Tensor, "b r e v"]:
    """A_a = sum_j tanh(q_a * k_j) (x) v_j: attention whose weights are vectors and whose results are matrices."""
    weights = torch.tanh(query[:, :, None] * key[:, None])  # [b, r, j, e]
    return torch.einsum("brje,bjv->brev", weights, value)


def matched_width(num_slots: int, item_dim: int, num_queries: int) -> int:
    """The width whose state of (n_q + 1) width^2 numbers comes closest to the K d numbers of K slots."""
    below = math.isqrt(num_slots * item_dim // (num_queries + 1))
    return min((max(below, 1), below + 1), key=lambda s: abs((num_queries + 1) * s * s - num_slots * item_dim))


class STMCell(nn.Module):
    """One segment into both memories; f1, f2, f3 stand for f1(x), f2(x) and softmax f3(x).

    [i; f] = W_x f1 + W_m tanh(M^i)     M^i <- sigma(f + b_f) * M^i + sigma(i + b_i) * tanh(f1 (x) f1)
    v = sum_n f3_n f2^T M^r_n           [Q; K; V]^T = LayerNorm((M^i + alpha_2 v (x) f2) W_qkv)
    A = outer-product attention of Q, K, V
    M^i <- M^i + alpha_3 W_f A          M^r <- alpha_1 M^r + A

    The W act on the rows of their matrix, W_f from the left on all rows of A together. An alpha is a fixed number, or
    learned from 0 where it is None.

    M^i is bounded because its forget gate stays below one. M^r is not: A has about the same size for every segment, and
    with alpha_1 = 1 all of them are added up. After LayerNorm, at its first gains of one, Q, K and V have at most 3 r e
    as their sum of squares, so |A_a| <= sum_j |tanh(q_a * k_j)| |v_j| <= sqrt(e) sqrt(r) sqrt(3 r e) = sqrt(3) r e in
    the Frobenius norm. A relation of a norm above `bounded_after` times that is scaled back to it, which no shorter
    stream can reach while |alpha_1| <= 1; from then on a new segment dims a little all that came before it. No gradient
    passes through the scale.
    """

    def __init__(
        self,
        *,
        width: int,
        num_queries: int,
        alpha1: float | None,
        alpha2: float | None,
        alpha3: float | None,
        bounded_after: int | None,
    ) -> None:
        super().__init__()
        self.input_gates = nn.Linear(width, 2 * width)  # W_x; its bias serves W_m too
        self.memory_gates = nn.Linear(width, 2 * width, bias=False)  # W_m
        self.input_bias = nn.Parameter(torch.tensor(0.0))  # b_i
        self.forget_bias = nn.Parameter(torch.tensor(1.0))  # b_f
        self.qkv = nn.Linear(width, 3 * num_queries)  # W_qkv
        self.qkv_norm = nn.LayerNorm([width, 3 * num_queries])
        self.alpha1, self.alpha2, self.alpha3 = _scale(alpha1), _scale(alpha2), _scale(alpha3)
        rows = num_queries * width
        self.feedback = None if alpha3 == 0.0 else nn.Parameter(_uniform(width, rows, limit=rows**-0.5))  # W_f
        self.limit = None if bounded_after is None else bounded_after * math.sqrt(3.0) * num_queries * width

    def gates(
        self, items: Float[Tensor, "b e e"], written: Float[Tensor, "b e"]
    ) -> tuple[Float[Tensor, "b e e"], Float[Tensor, "b e e"]]:
        """How much of the new is let in and how much of the old is kept, for every number of the item memory."""
        both = self.input_gates(written)[:, None] + self.memory_gates(torch.tanh(items))  # [b, e, 2 e]
        let_in, keep = both.chunk(2, dim=-1)
        return torch.sigmoid(let_in + self.input_bias), torch.sigmoid(keep + self.forget_bias)

    def associate(
        self, items: Float[Tensor, "b e e"], read: Float[Tensor, "b e"], cue: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b r e e"]:
        """A: the item memory, with what the relational memory answers to the cue, attends to itself."""
        seen = items + _outer(self.alpha2 * read, cue)
        qkv = self.qkv_norm(self.qkv(seen)).transpose(1, 2)  # [b, 3 r, e]
        return outer_product_attention(*qkv.chunk(3, dim=1))

    def bounded(self, relations: Float[Tensor, "b r e e"]) -> Float[Tensor, "b r e e"]:
        """Relations of a norm above the limit, scaled back to it; all others to the last bit as they were."""
        if self.limit is None:
            return relations
        norm = torch.linalg.vector_norm(relations.detach(), dim=(2, 3), keepdim=True)
        return relations / (norm / self.limit).clamp(min=1.0)

    def forward(
        self,
        state: STMState,
        written: Float[Tensor, "b e"],
        cue: Float[Tensor, "b e"],
        attention: Float[Tensor, "b r"],
        real: Bool[Tensor, " b"],
    ) -> tuple[STMState, Float[Tensor, "b 2"]]:
        """Both memories after one segment, and the mean input and forget gate of every stream."""
        let_in, keep = self.gates(state.items, written)
        items = keep * state.items + let_in * torch.tanh(_outer(written, written))
        # v = sum_n f3_n f2^T M^r_n is one product with all rows of the relational memory
        read = (_outer(attention, cue).flatten(1)[:, None] @ state.relations.flatten(1, 2)).squeeze(1)  # [b, e]
        found = self.associate(items, read, cue)
        if self.feedback is not None:
            items = items + self.alpha3 * _mix_rows(self.feedback, found)
        relations = self.bounded(self.alpha1 * state.relations + found)
        # a stream whose segment is all padding has received nothing
        kept = STMState(
            torch.where(real[:, None, None], items, state.items),
            torch.where(real[:, None, None, None], relations, state.relations),
        )
        gates = torch.stack([let_in.detach().mean(dim=(1, 2)), keep.detach().mean(dim=(1, 2))], dim=1)
        return kept, gates


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
        self.first_items = nn.Parameter(_uniform(width, width, limit=(2 * width) ** -0.5))
        self.first_relations = nn.Parameter(
            _uniform(num_queries, width, width, limit=(2 * width + num_queries) ** -0.5)
        )

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
        if not stream.in_turn:
            table = table.index_select(0, stream.order.flatten())
        real = stream.item_mask.any(dim=1)[stream.order] & stream.segment_mask  # [b, t]
        # unbind and not an index for each t, whose gradient would be as large as the whole stream
        rows = table.unflatten(0, stream.order.shape).unbind(1)
        with _full_precision(state):
            seen, gates = [look(state)], [state.items.new_zeros(2)]
            for row, now in zip(rows, real.unbind(1), strict=True):
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
        self.to_slots = nn.Parameter(_uniform(num_slots, num_queries * width, limit=(num_queries * width) ** -0.5))
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
        return _mix_rows(self.to_slots, state.relations)

    def _read_out(self, pooled: Float[Tensor, "*b k e"]) -> Float[Tensor, "*b k d"]:
        return at_least_float32(self.out(self.slot_norm(pooled)))


def _scale(alpha: float | None) -> nn.Parameter | float:
    return nn.Parameter(torch.tensor(0.0)) if alpha is None else alpha


def _feed_forward(input_dim: int, hidden_dim: int, output_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(input_dim, hidden_dim), nn.Tanh(), nn.Linear(hidden_dim, output_dim))


def _uniform(*shape: int, limit: float) -> Tensor:
    return torch.empty(shape).uniform_(-limit, limit)


def _outer(left: Float[Tensor, "b x"], right: Float[Tensor, "b y"]) -> Float[Tensor, "b x y"]:
    return left[:, :, None] * right[:, None]


def _mix_rows(weight: Float[Tensor, "k rows"], matrices: Float[Tensor, "b r x y"]) -> Float[Tensor, "b k y"]:
    # `weight @ rows` would turn the rows around first, and keep that copy of all relations for the backward pass
    return weight.expand(len(matrices), -1, -1).bmm(matrices.flatten(1, 2))


def _full_precision(state: STMState) -> torch.autocast:
    # M^r is a sum over the whole stream: in 16 bits it would lose the latest segment, and whatever a step rounds comes
    # back in all later ones. Around a step and not inside it, so that a compiled one has its gradient in full as well
    return torch.autocast(state.items.device.type, enabled=False)
