"""How good answers are: right or wrong, the rank of a candidate, the order of clicks."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from remem.data.batch import QueryBatch


def reciprocal_rank(scores: Float[Tensor, "*b c"], answer: Int[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """1 / rank of the right candidate; candidates with equal scores share the mean of their ranks.

    Padding has a score of -inf and no rank. An answer of -1 is not among the candidates and gets nothing.
    """
    right = scores.gather(-1, answer.clamp(min=0)[..., None])
    better, equal = (scores > right).sum(dim=-1), (scores == right).sum(dim=-1)
    rank = better + (equal + 1) / 2
    return torch.where((answer >= 0) & (right.squeeze(-1) > -torch.inf), 1 / rank, 0.0)


def chance_reciprocal_rank(candidates: int) -> float:
    """The mean of 1 / rank when the order is drawn by lot: the mean of 1, 1/2, ... 1/c."""
    return sum(1 / rank for rank in range(1, candidates + 1)) / candidates


def area_under_roc(scores: Float[Tensor, " r"], clicked: Int[Tensor, " r"]) -> float:
    """The chance that a random click scores above a random other, equal scores counting half; nan if one is missing."""
    positives = int(clicked.sum())
    negatives = len(clicked) - positives
    if not positives or not negatives:
        return float("nan")
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)  # sorted
    counts = counts.double()
    rank = counts.cumsum(0) - (counts - 1) / 2  # equal scores share the mean of their ranks
    above = rank[place[clicked.bool()]].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def credit(scores: Float[Tensor, "b q c"], query: QueryBatch) -> Float[Tensor, "b q"]:
    """What an answer is worth: 1 or 0 where it is right or wrong, the reciprocal rank where candidates are ranked."""
    if query.asks_clicks(scores):
        return ((scores.squeeze(-1) > 0) == (query.answer == 1)).float().masked_fill(query.answer < 0, 0.0)
    if query.candidates is not None:
        return reciprocal_rank(scores.float(), query.answer)
    return (scores.argmax(dim=-1) == query.answer).float()
