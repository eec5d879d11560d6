"""Final reasoning layers (Appendix A): fixed answers, candidate answers, a click."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.model.embed import SentenceQueryEncoder


class ClassHead(nn.Module):
    """Scores of a fixed set of answers (synthetic task, bAbI, video QA)."""

    def __init__(self, *, model_dim: int, num_answers: int) -> None:
        super().__init__()
        self.classify = nn.Linear(model_dim, num_answers)

    def forward(self, reason: Float[Tensor, "*b m"]) -> Float[Tensor, "*b c"]:
        return self.classify(reason)


class CandidateHead(nn.Module):
    """Scores of candidate answers, each a sentence read by a bi-GRU of its own (text QA)."""

    def __init__(self, *, candidate_encoder: SentenceQueryEncoder, model_dim: int) -> None:
        super().__init__()
        self.candidate_encoder = candidate_encoder
        self.score = nn.Linear(2 * model_dim, 1)

    def forward(
        self, reason: Float[Tensor, "b m"], tokens: Int[Tensor, "b c w"], token_mask: Bool[Tensor, "b c w"]
    ) -> Float[Tensor, "b c"]:
        """A score for each candidate; one without any word is padding and can't be chosen."""
        features = self.candidate_encoder(tokens.flatten(0, 1), token_mask.flatten(0, 1)).unflatten(0, tokens.shape[:2])
        pairs = torch.cat([features, reason[:, None].expand_as(features)], dim=-1)
        return self.score(pairs).squeeze(-1).masked_fill(~token_mask.any(dim=-1), -torch.inf)


class ClickHead(nn.Module):
    """The logit of a click (recommendation)."""

    def __init__(self, *, model_dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(model_dim, 1)

    def forward(self, reason: Float[Tensor, "*b m"]) -> Float[Tensor, "*b"]:
        return self.score(reason).squeeze(-1)
