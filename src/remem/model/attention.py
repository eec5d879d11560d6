"""Additive attention, used three times: to write (Eq. 1), to sample (Eq. 5) and to read (Appendix A)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.ops.precision import at_least_float32, linear_in_32_bits


class AdditiveScore(nn.Module):
    """score(a, c) = w^T tanh(W_1 a + W_2 c + b)."""

    def __init__(self, *, left_dim: int, right_dim: int, model_dim: int, gain: float = 1.0) -> None:
        super().__init__()
        self.left = nn.Linear(left_dim, model_dim, bias=False)  # W_1
        self.right = nn.Linear(right_dim, model_dim)  # W_2, b
        self.score = nn.Linear(model_dim, 1, bias=False)  # w
        with torch.no_grad():
            self.score.weight.mul_(gain)

    def pairs(self, left: Float[Tensor, "... m"], right: Float[Tensor, "... m"]) -> Float[Tensor, "..."]:
        """Scores of projected vectors, which broadcast against each other."""
        return self.score(torch.tanh(left + right)).squeeze(-1)

    def ranked_pairs(self, left: Float[Tensor, "... m"], right: Float[Tensor, "... m"]) -> Float[Tensor, "..."]:
        """As `pairs`, in 32 bits: in 16 some of thirty candidates would have equal scores, and share a rank."""
        hidden = torch.tanh(at_least_float32(left) + at_least_float32(right))
        return linear_in_32_bits(hidden, self.score).squeeze(-1)

    def forward(self, query: Float[Tensor, "*b l"], keys: Float[Tensor, "*b k r"]) -> Float[Tensor, "*b k"]:
        """Scores of one query against several keys."""
        return self.pairs(self.left(query)[..., None, :], self.right(keys))
