"""One step of STM: a segment into the item memory and the relational one (see `remem.baselines.stm`)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class STMState(NamedTuple):
    """All that is kept of a stream."""

    items: Float[Tensor, "b e e"]  # M^i
    relations: Float[Tensor, "b r e e"]  # M^r


def outer_product_attention(
    query: Float[Tensor, "b r e"], key: Float[Tensor, "b j e"], value: Float[Tensor, "b j v"]
) -> Float[Tensor, "b r e v"]:
    """A_a = sum_j tanh(q_a * k_j) (x) v_j: attention whose weights are vectors and whose results are matrices."""
    weights = torch.tanh(query[:, :, None] * key[:, None])  # [b, r, j, e]
    return torch.einsum("brje,bjv->brev", weights, value)


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
        self.feedback = None if alpha3 == 0.0 else nn.Parameter(uniform(width, rows, limit=rows**-0.5))  # W_f
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
            items = items + self.alpha3 * mix_rows(self.feedback, found)
        relations = self.bounded(self.alpha1 * state.relations + found)
        # a stream whose segment is all padding has received nothing
        kept = STMState(
            torch.where(real[:, None, None], items, state.items),
            torch.where(real[:, None, None, None], relations, state.relations),
        )
        gates = torch.stack([let_in.detach().mean(dim=(1, 2)), keep.detach().mean(dim=(1, 2))], dim=1)
        return kept, gates


def _scale(alpha: float | None) -> nn.Parameter | float:
    return nn.Parameter(torch.tensor(0.0)) if alpha is None else alpha


def uniform(*shape: int, limit: float) -> Tensor:
    """Initial weights."""
    return torch.empty(shape).uniform_(-limit, limit)


def _outer(left: Float[Tensor, "b x"], right: Float[Tensor, "b y"]) -> Float[Tensor, "b x y"]:
    return left[:, :, None] * right[:, None]


def mix_rows(weight: Float[Tensor, "k rows"], matrices: Float[Tensor, "b r x y"]) -> Float[Tensor, "b k y"]:
    """Mixtures of all rows of a stream's matrices."""
    # `weight @ rows` would turn the rows around first, and keep that copy of all relations for the backward pass
    return weight.expand(len(matrices), -1, -1).bmm(matrices.flatten(1, 2))
