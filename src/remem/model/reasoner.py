"""Multi-hop reasoner R (Appendix A): additive attention over the slots, several times."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.model.attention import AdditiveScore
from remem.ops.precision import at_least_float32


class MultiHopReasoner(nn.Module):
    """gamma_k = w_c^T tanh(W_1^c q + W_2^c m_k + b^c)     e = sum_k softmax(gamma)_k m_k     q <- W^q [e; q]

    Each hop has its own attention; W^q carries no hop in the paper and is shared.
    """

    def __init__(
        self, *, item_dim: int, model_dim: int, num_hops: int, score_gain: float = 1.0, read_norm: bool = False
    ) -> None:
        super().__init__()
        self.hops = nn.ModuleList(
            AdditiveScore(left_dim=model_dim, right_dim=item_dim, model_dim=model_dim, gain=score_gain)
            for _ in range(num_hops)
        )
        self.next_query = nn.Linear(item_dim + model_dim, model_dim, bias=False)  # W^q
        self.norm = nn.LayerNorm(item_dim) if read_norm else nn.Identity()

    def forward(
        self, memory: Float[Tensor, "*b k d"], query: Float[Tensor, "*b m"]
    ) -> tuple[Float[Tensor, "*b m"], Float[Tensor, "*b c k"]]:
        """The reason feature q^C, and the weights gamma-hat of every hop."""
        memory = self.norm(memory)
        weights = []
        for hop in self.hops:
            weights.append(at_least_float32(hop(query, memory)).softmax(dim=-1))
            evidence = (weights[-1].to(memory.dtype)[..., None, :] @ memory).squeeze(-2)  # [*b, d]
            query = self.next_query(torch.cat([evidence, query], dim=-1))
        return query, torch.stack(weights, dim=-2)
