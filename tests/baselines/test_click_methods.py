"""Each click model's equations, for one target of one stream at a time; DIEN's auxiliary loss and its compiled step."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from click_parts import DIM, assert_close, clicks, make, random_history, streams
from torch import Tensor, nn

from remem.baselines.caser import Caser
from remem.baselines.click import History
from remem.baselines.dien import DIEN, AttentionalGRUCell, InterestAttention, NextBehaviour, behaviours_of_others
from remem.baselines.gru4rec import GRU4Rec
from remem.baselines.rum import RUM
from remem.model.interface import OwnLosses


def each(history: History, logit: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What `logit` says of the items a target sees."""
    rows = [
        [logit(history.items[b, : history.seen[b, q]], history.targets[b, q]) for q in range(history.seen.shape[1])]
        for b in range(len(history.seen))
    ]
    return torch.stack([torch.stack(row) for row in rows])


def tower(reader: Any, *parts: Tensor) -> Tensor:
    return reader.tower(*(part[None, None] for part in parts))[0, 0]


@pytest.mark.parametrize("appended", [False, True])
def test_gru4rec_compares_the_last_state_with_the_target(appended: bool) -> None:
    reader, history = GRU4Rec(item_dim=DIM, appended=appended).eval(), random_history(3, 9, 4)
    history.seen[0, 0] = 0

    def logit(items: Tensor, target: Tensor) -> Tensor:
        read = torch.cat([items, target[None]]) if appended else items
        state = torch.zeros(DIM) if len(read) == 0 else reader.gru(read)[0][-1]
        return tower(reader, state, target, state * target)

    assert_close(reader(history).logits, each(history, logit))


def test_caser_pools_every_window_and_weighs_every_age() -> None:
    reader, history = Caser(item_dim=DIM, heights=(2, 3), window=5).eval(), random_history(3, 9, 4)
    history.seen[0, 0] = 0

    def logit(items: Tensor, target: Tensor) -> Tensor:
        largest = []
        for conv in reader._convolutions():
            for weight, bias in zip(conv.weight, conv.bias, strict=True):  # type: ignore[arg-type]
                best, height = 0.0, weight.shape[1]
                padded = torch.cat([torch.zeros(height - 1, DIM), items])
                for end in range(len(items)):
                    answer = ((weight.T * padded[end : end + height]).sum() + bias).item()
                    best = max(best, answer)
                largest.append(best)
        weighed = torch.zeros(reader.vertical.shape[1], DIM)
        for age, item in enumerate(reversed(items)):
            if age < 5:
                weighed += reader.vertical[age][:, None] * item
        image = reader.mix(torch.cat([torch.tensor(largest), weighed.flatten()])).relu()
        return tower(reader, image, target, image * target)

    assert_close(reader(history).logits, each(history, logit))


@pytest.mark.parametrize("memory_items", [None, 3])
def test_rum_reads_its_items_by_the_target(memory_items: int | None) -> None:
    reader, history = RUM(item_dim=DIM, memory_items=memory_items).eval(), random_history(3, 9, 4)
    history.seen[0, 0] = 0
    nn.init.normal_(reader.taste)

    def logit(items: Tensor, target: Tensor) -> Tensor:
        kept = items[-memory_items:] if memory_items else items
        weights = [math.exp((reader.strength * (target @ item)).item()) for item in kept]
        read = sum((w / sum(weights) * item for w, item in zip(weights, kept, strict=True)), start=torch.zeros(DIM))
        user = reader.taste + reader.share * read
        return tower(reader, user, target, user * target)

    assert_close(reader(history).logits, each(history, logit))


def test_dien_follows_the_interest_that_the_target_opens() -> None:
    reader, history = DIEN(item_dim=DIM, hidden_dim=5).eval(), random_history(3, 9, 4)
    history.seen[0, 0] = 0

    def logit(items: Tensor, target: Tensor) -> Tensor:
        state, mean = torch.zeros(5), torch.zeros(DIM)
        if len(items):
            interests, mean = reader.extractor(items)[0], items.mean(dim=0)
            query = reader.attention.to_query(target)
            scores = [
                reader.attention.rest(reader.attention.first(torch.cat([query, h, query - h, query * h])))
                for h in interests
            ]
            for interest, opened in zip(interests, torch.cat(scores).softmax(dim=0), strict=True):
                state = slow_augru(reader.evolution, state, interest, opened)
        return tower(reader, state, target, mean, mean * target)

    assert_close(reader(history).logits, each(history, logit))


def slow_augru(cell: AttentionalGRUCell, state: Tensor, interest: Tensor, opened: Tensor) -> Tensor:
    (r_x, z_x, n_x), (r_h, z_h, n_h) = cell.from_interest(interest).chunk(3), cell.from_state(state).chunk(3)
    update = opened * (1 - torch.sigmoid(z_x + z_h))  # PyTorch's z is what is kept
    candidate = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return (1 - update) * state + update * candidate


def test_attention_of_one_is_a_plain_gru_and_of_zero_is_no_step() -> None:
    cell, plain = AttentionalGRUCell(input_dim=4, hidden_dim=3), nn.GRUCell(4, 3)
    for linear, weight, bias in (
        (cell.from_interest, plain.weight_ih, plain.bias_ih),
        (cell.from_state, plain.weight_hh, plain.bias_hh),
    ):
        linear.weight.data, linear.bias.data = weight.data, bias.data
    items, state = torch.randn(2, 4), torch.randn(2, 1, 3)
    inputs = cell.from_interest(items)
    assert_close(cell(state, inputs, torch.ones(2, 1)).squeeze(1), plain(items, state.squeeze(1)))
    assert torch.equal(cell(state, inputs, torch.zeros(2, 1)), state)


def test_attention_sums_to_one_over_what_is_seen() -> None:
    attention = InterestAttention(item_dim=DIM, hidden_dim=5)
    history = random_history(3, 9, 4)
    history.seen[0, 0] = 0
    weights = attention(history.targets, torch.randn(3, 9, 5), history.visible())
    assert_close(weights.sum(dim=-1), (history.seen > 0).float())
    assert (weights[~history.visible()] == 0).all()


def test_the_next_behaviour_is_told_from_another_by_a_logistic_loss() -> None:
    loss_of = NextBehaviour(item_dim=DIM, hidden_dim=5)
    interests, following, others = torch.randn(2, 3, 5), torch.randn(2, 3, DIM), torch.randn(2, 3, DIM)
    counted = torch.tensor([[True, True, False], [True, False, False]])
    total = 0.0
    for b, t in counted.nonzero().tolist():
        right, wrong = (
            torch.sigmoid(loss_of.layers(torch.cat([interests[b, t], items[b, t]]))) for items in (following, others)
        )
        total -= math.log(right.item()) + math.log(1 - wrong.item())
    assert_close(loss_of(interests, following, others, counted), total / 3)
    assert loss_of(interests, following, others, torch.zeros_like(counted)) == 0


def test_negative_behaviours_are_real_ones_of_another_stream() -> None:
    items = torch.arange(4.0)[:, None, None].expand(4, 6, 1) * 10 + torch.arange(6.0)[:, None]
    real = torch.arange(6) < torch.tensor([[6], [1], [3], [2]])
    for _ in range(20):
        others = behaviours_of_others(items, real, 5).squeeze(-1)
        stream, place = (others // 10).long(), others % 10
        assert (stream != torch.arange(4)[:, None]).all()
        assert (place < real.sum(dim=1)[stream]).all()
    alone = behaviours_of_others(items[:1], real[:1], 5)
    assert ((alone >= 0) & (alone < 6)).all()


def test_the_auxiliary_loss_is_there_in_training_only_and_weighted() -> None:
    reader, history = DIEN(item_dim=DIM), random_history(3, 9, 4)
    assert reader.eval()(history).losses == {}
    assert DIEN(item_dim=DIM, auxiliary_weight=0.0).train()(history).losses == {}
    values = []
    for weight in (1.0, 3.0):
        reader.auxiliary_weight = weight
        torch.manual_seed(1)
        values.append(reader.train()(history).losses["next_behaviour"])
    assert_close(values[1], 3 * values[0])
    assert isinstance(make("dien"), OwnLosses)


def test_a_history_of_one_item_has_no_next_behaviour() -> None:
    model = make("dien").train()
    answers = model.answer_and_losses(streams([[1]]), clicks([(2, 1)]))
    assert answers.losses["next_behaviour"] == 0
    assert answers.scores.isfinite().all()


# in a process of its own, without the shape checks of the test run, which torch.compile cannot look through
COMPILED = """
import torch
from remem.baselines.click import History
from remem.baselines.dien import DIEN

torch.set_num_threads(1)
torch.manual_seed(0)
reader, results = DIEN(item_dim=8).eval(), []
history = History(torch.randn(2, 7, 8), torch.ones(2, 7).bool(), torch.randn(2, 3, 8), torch.randint(8, (2, 3)))
for compiled in (False, True):
    if compiled:
        reader.compile_parts("eager")
    reader.zero_grad()
    logits = reader(history).logits
    logits.square().sum().backward()
    results.append([logits.detach().clone(), *(p.grad.clone() for p in reader.parameters() if p.grad is not None)])
for plain, fast in zip(*results, strict=True):
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
# once for the first item, before which the state has no gradient, and once for all others
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2, torch._dynamo.utils.counters["stats"]
assert not torch._dynamo.utils.counters["graph_break"], torch._dynamo.utils.counters["graph_break"]
print("one graph")
"""


def test_a_compiled_step_is_one_graph_and_changes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "one graph"
