"""E2E-MN: its hops number by number, ages and their noise, and that it learns."""

from __future__ import annotations

from typing import Any

import qa
import torch

from remem.settings.baselines import E2EMNSettings

AGES = 3
SETTINGS = E2EMNSettings(num_hops=2, num_ages=AGES)
TEXT, QUESTION = [[1, 2, 3], [4], [2, 5], [8, 6]], [7, 3]
CHOICES = [[2], [3, 4, 9], [11, 12]]


def bag(table: Any, words: list[int]) -> qa.Vector:
    """sum_j l_j * A w_j by the formula."""
    vectors = table.weight[words].tolist()
    j_all, d = len(words), len(vectors[0])
    return [
        sum(
            (1 + 4 * (k - (d + 1) / 2) * (j - (j_all + 1) / 2) / (d * j_all)) * vectors[j - 1][k - 1]
            for j in range(1, j_all + 1)
        )
        for k in range(1, d + 1)
    ]


def slow_scores(model: Any, text: list[list[int]], question: list[int], candidates: list[list[int]]) -> list[float]:
    u = bag(model.words[0], question)

    def memories(table: int) -> list[qa.Vector]:
        ages = [min(len(text) - 1 - i, AGES - 1) for i in range(len(text))]
        times = model.ages[table].weight[ages].tolist()
        return [qa.add(bag(model.words[table], words), time) for words, time in zip(text, times, strict=True)]

    for hop in range(2):
        weights = qa.softmax([qa.dot(u, memory) for memory in memories(hop)])
        u = qa.add(u, qa.weighted(weights, memories(hop + 1)))
    return [qa.dot(u, bag(model.words[2], words)) for words in candidates]


def test_scores_are_hops_over_bags_one_number_at_a_time() -> None:
    model = qa.make(SETTINGS, qa.PASSAGE)
    for table in model.words:  # large enough for the hops to matter
        table.weight.data *= 5
    query = qa.questions([[(QUESTION, 4), ([3, 3, 5], 2)]], [CHOICES])
    scores = model(qa.streams(TEXT), query)
    for i, (question, position) in enumerate([(QUESTION, 4), ([3, 3, 5], 2)]):
        expected = slow_scores(model, TEXT[:position], question, CHOICES)
        torch.testing.assert_close(scores[0, i], torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_tables_are_tied_between_neighbouring_hops() -> None:
    names = [name for name, _ in qa.make(SETTINGS, qa.PASSAGE).named_parameters()]
    assert names == [*(f"words.{i}.weight" for i in range(3)), *(f"ages.{i}.weight" for i in range(3))]


def test_time_noise_makes_sentences_older_but_keeps_their_order() -> None:
    model = qa.make(E2EMNSettings(num_ages=100, time_noise=0.5), qa.PASSAGE)
    stream = qa.streams(*[TEXT] * 200)
    query = qa.questions([[(QUESTION, 4)]] * 200, [CHOICES] * 200)
    plain, seen = model._ages(stream, query)
    assert plain[0, 0].tolist() == [3, 2, 1, 0]
    assert seen.all()
    noisy, _ = model.train()._ages(stream, query)
    assert (noisy >= plain).all()
    assert (noisy[..., :-1] > noisy[..., 1:]).all()
    assert 4 < noisy[..., 0].float().mean() < 5, "three sentences, and half as many empty ones"


def test_it_learns_who_has_what() -> None:
    """Four candidates: chance is a quarter."""
    model = qa.make(E2EMNSettings(num_hops=2, dropout=0.0), qa.PASSAGE, qa.sized(32))
    assert qa.learn(model, qa.facts, steps=80, rate=1e-2) > 0.9
