"""Multi-hop reasoner R (Appendix A): additive attention over the slots, several times."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from remem.model.attention import AdditiveScore
from remem.model.transformer import EncoderLayer, final_norm
from remem.ops.precision import at_least_float32


class ThinkingLayer(nn.Module):
    """q <- LayerNorm(q + W_2 relu(W_1 [e; q])): an answer may depend on how question and evidence go together.

    With `compare` it is W_1 [e; q; (W_3 e) * q], where W_3 starts as the identity. Whether a question is like its
    evidence is a sum of products, which a layer of sums has to learn from many examples.
    """

    def __init__(self, *, item_dim: int, model_dim: int, compare: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(item_dim + (2 if compare else 1) * model_dim, 2 * model_dim)
        self.outer = nn.Linear(2 * model_dim, model_dim)
        self.norm = nn.LayerNorm(model_dim)
        self.beside = nn.Linear(item_dim, model_dim, bias=False) if compare else None  # W_3
        if self.beside is not None:
            nn.init.eye_(self.beside.weight)

    def forward(self, both: Float[Tensor, "*b e"]) -> Float[Tensor, "*b m"]:
        query = both[..., -self.outer.out_features :]
        if self.beside is not None:
            evidence = both[..., : self.beside.in_features]
            both = torch.cat([both, self.beside(evidence) * query], dim=-1)
        return self.norm(query + self.outer(torch.relu(self.inner(both))))


class SlotLayers(nn.Module):
    """Transformer layers over [q; m_1 ... m_K]: what two slots say can be put together before any of them is read.

    With `match` no row looks at itself, and queries and keys start as the rows themselves, so that at first each row
    looks at those that have most in common with it: from "Greg is a swan" to "Lily is a swan". A row is most like
    itself, so where it may look there, what is alike points nowhere else.
    """

    def __init__(
        self, *, item_dim: int, model_dim: int, num_layers: int, num_heads: int, dropout: float, match: bool = False
    ) -> None:
        super().__init__()
        self.into = nn.Linear(model_dim, item_dim)
        self.layers = nn.ModuleList(
            EncoderLayer(dim=item_dim, num_heads=num_heads, dropout=dropout, pre_norm=True, match=match)
            for _ in range(num_layers)
        )
        self.norm = final_norm(item_dim, pre_norm=True)
        self.out = nn.Linear(item_dim, model_dim)
        if match:
            nn.init.eye_(self.into.weight)

    def forward(
        self, memory: Float[Tensor, "*b k d"], query: Float[Tensor, "*b m"], seen: Bool[Tensor, "*b k"]
    ) -> tuple[Float[Tensor, "*b k d"], Float[Tensor, "*b m"]]:
        rows = torch.cat([self.into(query)[..., None, :], memory], dim=-2)
        mask = torch.cat([seen.new_ones((*seen.shape[:-1], 1)), seen], dim=-1).flatten(0, -2)
        flat = rows.flatten(0, -3)
        for layer in self.layers:
            flat = layer(flat, mask)
        rows = self.norm(flat).view_as(rows)
        return rows[..., 1:, :], query + self.out(rows[..., 0, :])


class MultiHopReasoner(nn.Module):
    """gamma_k = w_c^T tanh(W_1^c q + W_2^c m_k + b^c)     e = sum_k softmax(gamma)_k m_k     q <- W^q [e; q]

    Each hop has its own attention; W^q carries no hop in the paper and is shared. As printed the reason is linear in
    question and evidence; with `thinking_layers` each hop has a layer of its own instead, which with `compare` sees
    their product, too. Slots never meet one another in the paper; with `slot_layers` they do before the first hop.
    """

    def __init__(
        self,
        *,
        item_dim: int,
        model_dim: int,
        num_hops: int,
        score_gain: float = 1.0,
        read_norm: bool = False,
        thinking_layers: bool = False,
        compare: bool = False,
        slot_layers: int = 0,
        slot_heads: int = 4,
        match_rows: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.hops = nn.ModuleList(
            AdditiveScore(left_dim=model_dim, right_dim=item_dim, model_dim=model_dim, gain=score_gain)
            for _ in range(num_hops)
        )
        self.next_query: nn.Module
        if thinking_layers:
            self.next_query = nn.ModuleList(
                ThinkingLayer(item_dim=item_dim, model_dim=model_dim, compare=compare) for _ in self.hops
            )
        else:
            self.next_query = nn.Linear(item_dim + model_dim, model_dim, bias=False)  # W^q
        self.norm = nn.LayerNorm(item_dim) if read_norm else nn.Identity()
        self.slot_layers = (
            SlotLayers(
                item_dim=item_dim,
                model_dim=model_dim,
                num_layers=slot_layers,
                num_heads=slot_heads,
                dropout=dropout,
                match=match_rows,
            )
            if slot_layers
            else None
        )

    def forward(
        self,
        memory: Float[Tensor, "*b k d"],
        query: Float[Tensor, "*b m"],
        seen: Bool[Tensor, "*b k"] | None = None,
    ) -> tuple[Float[Tensor, "*b m"], Float[Tensor, "*b c k"]]:
        """The reason feature q^C, and the weights gamma-hat of every hop; `seen` leaves the other rows out."""
        memory = self.norm(memory)
        if self.slot_layers is not None:
            every = torch.ones(memory.shape[:-1], dtype=torch.bool, device=memory.device)
            memory, query = self.slot_layers(memory, query, every if seen is None else seen)
        weights = []
        updates = self.next_query if isinstance(self.next_query, nn.ModuleList) else [self.next_query] * len(self.hops)
        for hop, next_query in zip(self.hops, updates, strict=True):
            scores = at_least_float32(hop(query, memory))
            if seen is not None:
                scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
            shares = scores.softmax(dim=-1)
            # of nothing seen a softmax would look at all there is, and what follows the question is among it
            weights.append(shares if seen is None else shares * seen.any(dim=-1, keepdim=True))
            evidence = (weights[-1].to(memory.dtype)[..., None, :] @ memory).squeeze(-2)  # [*b, d]
            query = next_query(torch.cat([evidence, query], dim=-1))
        return query, torch.stack(weights, dim=-2)
