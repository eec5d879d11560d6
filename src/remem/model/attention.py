"""Additive attention, used three times: to write (Eq. 1), to sample (Eq. 5) and to read (Appendix A)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class AdditiveScore(nn.Module):
    """score(a, c) = w^T tanh(W_1 a + W_2 c + b), and with `match` also (W_3 a)^T (W_4 c) / sqrt(m).

    A sum inside a tanh tells what a and c are, but hardly whether they are alike; a product does.
    """

    def __init__(
        self, *, left_dim: int, right_dim: int, model_dim: int, gain: float = 1.0, match: bool = False
    ) -> None:
        super().__init__()
        self.left = nn.Linear(left_dim, model_dim, bias=False)  # W_1
        self.right = nn.Linear(right_dim, model_dim)  # W_2, b
        self.score = nn.Linear(model_dim, 1, bias=False)  # w
        self.left_match = nn.Linear(left_dim, model_dim, bias=False) if match else None  # W_3
        self.right_match = nn.Linear(right_dim, model_dim, bias=False) if match else None  # W_4
        with torch.no_grad():
            self.score.weight.mul_(gain)
            if self.left_match is not None:
                self.left_match.weight.mul_(gain)

    def pairs(self, left: Float[Tensor, "... m"], right: Float[Tensor, "... m"]) -> Float[Tensor, "..."]:
        """Scores of projected vectors, which broadcast against each other."""
        return self.score(torch.tanh(left + right)).squeeze(-1)

    def forward(self, query: Float[Tensor, "*b l"], keys: Float[Tensor, "*b k r"]) -> Float[Tensor, "*b k"]:
        """Scores of one query against several keys."""
        scores = self.pairs(self.left(query)[..., None, :], self.right(keys))
        if self.left_match is None or self.right_match is None:
            return scores
        matched = (self.right_match(keys) @ self.left_match(query)[..., None]).squeeze(-1)
        return scores + matched / math.sqrt(self.left_match.out_features)
