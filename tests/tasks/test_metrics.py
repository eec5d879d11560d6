"""Ranks, areas and credits, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from remem.data.batch import Candidates, QueryBatch
from remem.tasks.base import Tally
from remem.tasks.metrics import area_under_roc, chance_reciprocal_rank, credit, reciprocal_rank
from remem.training.objective import reason_loss

INF = torch.inf


@pytest.mark.parametrize(
    ("scores", "answer", "expected"),
    [
        ([3.0, 2.0, 1.0], 0, 1.0),
        ([3.0, 2.0, 1.0], 2, 1 / 3),
        ([1.0, 1.0, 1.0], 1, 1 / 2),  # ranks 1, 2, 3 are shared: each is 2
        ([2.0, 1.0, 1.0], 1, 1 / 2.5),
        ([1.0, 1.0, -INF, -INF], 0, 1 / 1.5),  # padding has no rank
        ([1.0, 2.0], -1, 0.0),
        ([1.0, -INF], 1, 0.0),  # the right answer is padding: nothing to be had
    ],
)
def test_the_reciprocal_rank_counts_better_candidates_and_half_the_equal_ones(
    scores: list[float], answer: int, expected: float
) -> None:
    assert reciprocal_rank(torch.tensor([scores]), torch.tensor([answer])).item() == pytest.approx(expected)


def test_random_scores_reach_the_rank_of_chance() -> None:
    torch.manual_seed(0)
    scores, answer = torch.rand(20_000, 30), torch.randint(30, (20_000,))
    assert chance_reciprocal_rank(30) == pytest.approx(0.1332, abs=1e-4)
    assert reciprocal_rank(scores, answer).mean().item() == pytest.approx(chance_reciprocal_rank(30), abs=0.005)


def test_equal_scores_for_everything_get_the_middle_rank() -> None:
    assert reciprocal_rank(torch.zeros(1, 29), torch.tensor([3])).item() == pytest.approx(1 / 15)


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    torch.manual_seed(1)
    scores, clicked = torch.randint(6, (60,)).float(), torch.randint(2, (60,))
    pairs = [
        1.0 if p > n else 0.5 if p == n else 0.0
        for p in scores[clicked == 1].tolist()
        for n in scores[clicked == 0].tolist()
    ]
    assert area_under_roc(scores, clicked) == pytest.approx(sum(pairs) / len(pairs))


def test_the_area_of_clicks_alone_does_not_exist() -> None:
    assert math.isnan(area_under_roc(torch.rand(3), torch.ones(3, dtype=torch.long)))
    assert math.isnan(area_under_roc(torch.empty(0), torch.empty(0, dtype=torch.long)))


def query(answer: list[list[int]], candidates: Candidates | None = None) -> QueryBatch:
    value = torch.tensor(answer)
    zero = torch.zeros_like(value)
    return QueryBatch(value[..., None], value[..., None] > -9, zero, value, value > -9, zero, zero, candidates)


def test_credit_is_right_or_wrong_for_classes_and_clicks_and_the_rank_for_candidates() -> None:
    scores = torch.tensor([[[0.1, 0.9], [0.9, 0.1], [0.1, 0.9]]])
    assert credit(scores, query([[1, 1, -1]])).tolist() == [[1, 0, 0]]
    some = Candidates(torch.ones(1, 2, 1, dtype=torch.long), torch.ones(1, 2, 1, dtype=torch.bool))
    assert credit(scores, query([[1, 1, -1]], some)).tolist() == [[1, 0.5, 0]]
    logits = torch.tensor([[[2.0], [-2.0], [2.0], [-2.0], [2.0]]])
    assert credit(logits, query([[1, 0, 0, 1, -1]])).tolist() == [[1, 1, 0, 0, 0]]


def test_a_single_candidate_is_no_click() -> None:
    only = Candidates(torch.ones(1, 1, 2, dtype=torch.long), torch.ones(1, 1, 2, dtype=torch.bool))
    asked, scores = query([[0]], only), torch.tensor([[[5.0]]])
    assert credit(scores, asked).tolist() == [[1.0]]  # it is the right one, whatever its score
    assert float(reason_loss(scores, asked)) == 0.0
    assert float(reason_loss(scores, query([[0]]))) > 5  # the same score is a wrong click


def test_a_tally_keeps_the_clicks_of_each_part() -> None:
    tally = Tally()
    tally.add([0, 0, 1, 1], [None] * 4, [1.0, 1.0, 0.0, 0.0], [(2.0, 1), (1.0, 0), (0.0, 1), (3.0, 0)])
    assert tally.auc_of([0]) == 100
    assert tally.auc_of([1]) == 0
    assert tally.auc_of() == 25  # 2 > 1, but 2 < 3, 0 < 1 and 0 < 3
