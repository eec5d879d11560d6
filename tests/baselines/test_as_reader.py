"""AS Reader: its score word by word, what it does with words of the question and of nowhere, and that it learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import qa
import torch

from remem.settings.baselines import ASReaderSettings

TEXT, QUESTION = [[1, 2, 3], [2, 4, 5, 2]], [6, 3]
CHOICES = [[2], [3, 4, 9], [3, 6], [11, 12]]  # in the text; with a word of the question; all of them; nowhere


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def slow_score(model: Any, text: Sequence[int], question: Sequence[int], candidate: Sequence[int]) -> float:
    """The score of one candidate, word by word."""
    with torch.no_grad():
        real = torch.ones(1, len(text), dtype=torch.bool)
        states, _ = model.reader(model.embed(torch.tensor([text])), real)
        asked = model.query_encoder(torch.tensor([question]), torch.ones(1, len(question), dtype=torch.bool))
    g = asked[0].tolist()
    powers = [math.exp(qa.dot(state, g)) for state in states[0].tolist()]
    powers.append(len(text) * math.exp(qa.dot(model.nowhere.tolist(), g)))
    *attention, nowhere = [power / sum(powers) for power in powers]
    counted = [word for word in candidate if word not in question] or candidate
    total = weights = 0.0
    for word in counted:
        vector = model.embed.table.weight[word].tolist()
        chance = sum(a for a, there in zip(attention, text, strict=True) if there == word)
        chance += nowhere * sigmoid(qa.affine(model.outside, vector)[0] + qa.dot(qa.affine(model.expected, g), vector))
        weight = sigmoid(qa.affine(model.weight, vector)[0])
        total, weights = total + weight * math.log(chance + 1e-8), weights + weight
    return math.exp(model.log_scale.item()) * total / weights


def test_scores_are_the_mean_log_chance_of_a_candidates_words() -> None:
    model = qa.make(ASReaderSettings(), qa.PASSAGE)
    scores = model(qa.streams(TEXT), qa.questions([[(QUESTION, 2), (QUESTION, 1)]], [CHOICES]))
    for i, read in enumerate((TEXT[0] + TEXT[1], TEXT[0])):
        expected = [slow_score(model, read, QUESTION, candidate) for candidate in CHOICES]
        torch.testing.assert_close(scores[0, i], torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_attention_is_added_up_wherever_a_word_stands() -> None:
    """Three words all looked at alike: the one that stands there twice has twice the chance."""
    model = qa.make(ASReaderSettings(), qa.PASSAGE)
    for parameter in model.query_encoder.gru.parameters():
        parameter.data.zero_()  # g = 0: the same attention everywhere
    model.outside.bias.data.fill_(-30.0)
    model.outside.weight.data.zero_()
    model.expected.weight.data.zero_()
    model.log_scale.data.zero_()
    with torch.no_grad():
        scores = model(qa.streams([[1, 2, 1]]), qa.questions([[([6], 1)]], [[[1], [2], [5]]]))
    assert scores[0, 0, 0].exp() == pytest.approx(2 / 6, rel=1e-4)  # three words, and nowhere as heavy as they
    assert scores[0, 0, 1].exp() == pytest.approx(1 / 6, rel=1e-4)
    assert scores[0, 0, 2].exp() < 1e-7


def test_it_learns_who_has_what() -> None:
    """Four candidates: chance is a quarter."""
    model = qa.make(ASReaderSettings(dropout=0.0), qa.PASSAGE, qa.sized(32))
    assert qa.learn(model, qa.facts, steps=60, rate=1e-2) > 0.9
