"""Final reasoning layers (Appendix A): fixed answers, candidate answers, a click. All are called alike:

    scores = head(reason, query.candidates)     reason [b, q, m] -> scores [b, q, c]

with c the classes, the stream's candidates, or 1 for the logit of a click.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.data.batch import Candidates
from remem.errors import BadInput
from remem.model.attention import AdditiveScore
from remem.model.embed import SentenceQueryEncoder
from remem.ops.precision import linear_in_32_bits, product


class ClassHead(nn.Module):
    """Scores of a fixed set of answers (synthetic task, bAbI, video QA)."""

    def __init__(self, *, model_dim: int, num_answers: int) -> None:
        super().__init__()
        self.classify = nn.Linear(model_dim, num_answers)

    def forward(self, reason: Float[Tensor, "*b m"], candidates: Candidates | None = None) -> Float[Tensor, "*b c"]:
        return self.classify(reason)


class CandidateHead(nn.Module):
    """Scores of candidate answers, each a sentence read by a bi-GRU of its own (text QA).

    score_i = w^T tanh(W_1 q + W_2 a_i + b)

    The paper joins a_i and q and predicts a score. A linear layer alone could not: it would add the same number to
    every candidate of a question, whatever was asked and read. With `match` the inner product of W_1 q and a_i is
    added.
    """

    def __init__(
        self, *, candidate_encoder: SentenceQueryEncoder, model_dim: int, candidate_dim: int, match: bool = False
    ) -> None:
        super().__init__()
        self.candidate_encoder = candidate_encoder
        self.score = AdditiveScore(left_dim=model_dim, right_dim=candidate_dim, model_dim=candidate_dim)
        self.scale = candidate_dim**-0.5 if match else 0.0

    def forward(self, reason: Float[Tensor, "b q m"], candidates: Candidates | None = None) -> Float[Tensor, "b q c"]:
        """A score for each candidate; one without any word is padding and can't be chosen."""
        if candidates is None:
            raise BadInput("This model chooses among candidate answers; the question came without any.")
        tokens, mask = candidates
        features = self.candidate_encoder(tokens.flatten(0, 1), mask.flatten(0, 1)).unflatten(0, tokens.shape[:2])
        left = self.score.left(reason)
        scores = self.score.ranked_pairs(left[:, :, None], self.score.right(features)[:, None])  # [b, q, c]
        if self.scale:
            scores = scores + self.scale * product(left, features.mT)
        return scores.masked_fill(~mask.any(dim=-1)[:, None], -torch.inf)


class ClickHead(nn.Module):
    """The logit of a click (recommendation)."""

    def __init__(self, *, model_dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(model_dim, 1)

    def forward(self, reason: Float[Tensor, "*b m"], candidates: Candidates | None = None) -> Float[Tensor, "*b 1"]:
        return linear_in_32_bits(reason, self.score)


Head = ClassHead | CandidateHead | ClickHead
