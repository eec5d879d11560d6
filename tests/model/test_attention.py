from __future__ import annotations

import torch
from builders import additive_score, assert_close

from remem.model.attention import AdditiveScore


def test_scores_are_those_of_the_formula_one_number_at_a_time() -> None:
    attention = AdditiveScore(left_dim=3, right_dim=4, model_dim=5)
    query, keys = torch.randn(2, 3), torch.randn(2, 6, 4)
    expected = [[additive_score(attention, query[b].tolist(), key.tolist()) for key in keys[b]] for b in range(2)]
    assert_close(attention(query, keys), expected)


def test_more_leading_axes_are_scored_as_if_they_were_flat() -> None:
    attention = AdditiveScore(left_dim=3, right_dim=4, model_dim=5)
    query, keys = torch.randn(2, 7, 3), torch.randn(2, 7, 6, 4)
    assert_close(attention(query, keys).flatten(0, 1), attention(query.flatten(0, 1), keys.flatten(0, 1)))


def test_the_gain_multiplies_the_first_scores_and_nothing_else() -> None:
    torch.manual_seed(3)
    plain = AdditiveScore(left_dim=3, right_dim=4, model_dim=5)
    torch.manual_seed(3)
    loud = AdditiveScore(left_dim=3, right_dim=4, model_dim=5, gain=4.0)
    query, keys = torch.randn(2, 3), torch.randn(2, 6, 4)
    assert_close(loud(query, keys), 4.0 * plain(query, keys))
    assert torch.equal(loud.left.weight, plain.left.weight)
