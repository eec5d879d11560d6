"""Models of a click that read the whole history: what they see, what they must not, and each one's equations."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from remem.baselines.caser import Caser
from remem.baselines.click import ClickModel, ClickTower, History, softmax_over
from remem.baselines.dien import DIEN, AttentionalGRUCell, InterestAttention, NextBehaviour, behaviours_of_others
from remem.baselines.gru4rec import GRU4Rec
from remem.baselines.rum import RUM
from remem.build import build_memorizer, build_model
from remem.bundle import load_bundle, save_bundle
from remem.data.batch import Batch, QueryBatch, StreamBatch
from remem.data.codec import ClickCodec, IdCodec
from remem.errors import BadInput
from remem.model.interface import OwnLosses
from remem.settings.baselines import CaserSettings, ClickSettings, DIENSettings, GRU4RecSettings, RUMSettings
from remem.settings.model import ModelSettings, without_rehearsal
from remem.settings.run import Run
from remem.streaming.memory import StreamMemory
from remem.training.objective import make_objective

CODEC = ClickCodec(segment_len=4, num_items=30)
DIM = 8
PLAIN = without_rehearsal(ModelSettings(item_dim=DIM, model_dim=6))
METHODS: dict[str, ClickSettings] = {
    "gru4rec": GRU4RecSettings(),
    "gru4rec, appended": GRU4RecSettings(appended=True, hidden_dim=5),
    "caser": CaserSettings(window=7),
    "rum": RUMSettings(),
    "rum, last three": RUMSettings(memory_items=3),
    "dien": DIENSettings(),
    "dien, wider": DIENSettings(hidden_dim=11),
}


def make(name: str) -> ClickModel:
    torch.manual_seed(0)
    return cast(ClickModel, build_model(replace(PLAIN, machine=METHODS[name]), CODEC)).eval()


@pytest.fixture(params=METHODS)
def model(request: pytest.FixtureRequest) -> ClickModel:
    return make(request.param)


def assert_close(actual: Tensor, expected: object) -> None:
    target = expected if isinstance(expected, Tensor) else torch.tensor(expected)
    torch.testing.assert_close(actual, target.to(actual.dtype), rtol=1e-4, atol=1e-5)


def streams(*rows: list[list[int]], width: int = 4) -> StreamBatch:
    """Streams of segments of at most four items."""
    longest = max(map(len, rows))
    items, mask = (
        torch.zeros(len(rows), longest, width, dtype=torch.long),
        torch.zeros(len(rows), longest, width).bool(),
    )
    for i, segments in enumerate(rows):
        for t, segment in enumerate(segments):
            items[i, t, : len(segment)], mask[i, t, : len(segment)] = torch.tensor(segment), True
    order = torch.arange(len(rows) * longest).view(len(rows), longest)
    return StreamBatch(items.flatten(0, 1), mask.flatten(0, 1), order, mask.any(dim=-1))


def clicks(*asked: list[tuple[int, int]], answers: list[list[int]] | None = None) -> QueryBatch:
    """Pairs of target and position for each stream."""
    tokens, position = (torch.tensor([[pair[part] for pair in row] for row in asked]) for part in (0, 1))
    ones = torch.ones_like(position, dtype=torch.bool)
    answer = torch.zeros_like(position) if answers is None else torch.tensor(answers)
    zeros = torch.zeros_like(position)
    return QueryBatch(tokens[..., None], ones[..., None], position, answer, ones, zeros, zeros)


def random_history(b: int, l: int, q: int) -> History:  # noqa: E741
    real = torch.arange(l) < torch.randint(l // 2, l + 1, (b, 1))
    seen = (torch.rand(b, q) * (real.sum(dim=1, keepdim=True) + 1)).long()
    return History(torch.randn(b, l, DIM), real, torch.randn(b, q, DIM), seen)


def test_a_target_sees_what_came_before_it_and_nothing_else(model: ClickModel) -> None:
    stream = streams([[1, 2, 3, 4], [5, 6], [7, 8, 9]])
    logits = model(stream, clicks([(2, 1), (7, 2), (9, 3)]))
    assert logits.shape == (1, 3, 1)
    for position, target, rows in ((1, 2, [[1, 2, 3, 4]]), (2, 7, [[1, 2, 3, 4], [5, 6]])):
        assert_close(logits[:, position - 1], model(streams(rows), clicks([(target, position)]))[:, 0])
    changed = model(streams([[1, 2, 3, 4], [5, 6], [9, 9, 9]]), clicks([(2, 1), (7, 2), (9, 3)]))
    assert_close(changed[:, :2], logits[:, :2])
    assert not torch.allclose(changed[:, 2], logits[:, 2])


def test_neither_neighbours_nor_padding_nor_cuts_change_a_logit(model: ClickModel) -> None:
    alone = model(streams([[1, 2], [3]]), clicks([(3, 2)]))
    beside = model(streams([[1, 2], [3]], [[4, 5, 6, 7], [8], [9, 10]]), clicks([(3, 2)], [(5, 3)]))
    assert_close(beside[:1], alone)
    assert_close(model(streams([[1, 2], [3]])._replace(most_items=3), clicks([(3, 2)])), alone)
    assert_close(model(streams([[1, 2, 3]]), clicks([(3, 1)])), alone)
    gaps = streams([[1, 9, 2, 9], [9, 9, 9, 3]])
    gaps = gaps._replace(item_mask=torch.tensor([[True, False, True, False], [False, False, False, True]]))
    assert_close(model(gaps, clicks([(3, 2)])), alone)


def test_the_target_matters_and_so_does_the_history(model: ClickModel) -> None:
    logits = model(streams([[1, 2, 3]]), clicks([(3, 1), (4, 1)]))
    assert not torch.allclose(logits[:, 0], logits[:, 1])
    assert not torch.allclose(model(streams([[1, 2, 5]]), clicks([(3, 1), (4, 1)])), logits)


def test_a_target_before_anything_was_read_gets_a_finite_logit(model: ClickModel) -> None:
    logits = model(streams([[1, 2]]), clicks([(3, 0), (3, 1)]))
    assert logits.isfinite().all()
    assert_close(logits[:, :1], model(streams([[7, 8, 9]]), clicks([(3, 0)])))


# a plain GRU has forgotten the first of a thousand items before it is trained, to the last bit
@pytest.mark.parametrize(("name", "place"), [("gru4rec", 49), ("caser", 0), ("rum", 0), ("dien", 0)])
def test_a_history_of_a_thousand_items_is_read_and_learned_from(name: str, place: int) -> None:
    model = cast(ClickModel, build_model(replace(PLAIN, machine=type(METHODS[name])()), CODEC)).train()
    items = torch.randint(1, 30, (2, 50, 20))
    items[:, place, 0] = 0  # nowhere else, and no target
    order = torch.arange(100).view(2, 50)
    stream = StreamBatch(items.flatten(0, 1), torch.ones(100, 20).bool(), order, torch.ones(2, 50).bool(), True, 1000)
    answers = model.answer_and_losses(stream, clicks([(1, 50), (2, 50)], [(3, 50), (4, 25)]))
    assert answers.scores.shape == (2, 2, 1)
    answers.scores.square().sum().backward()
    gradient = model.embed.table.weight.grad
    assert gradient is not None
    assert torch.isfinite(gradient).all()
    assert gradient[0].norm() > 0


def test_training_asks_nothing_of_the_device(model: ClickModel) -> None:
    batch = Batch(streams([[1, 2, 3]], [[4, 5]]), clicks([(1, 1)], [(2, 1)], answers=[[1], [0]]), torch.arange(2))
    objective = make_objective(model.train(), PLAIN.rehearsal, None)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        loss, _ = objective(batch)
        loss.backward()
    kernels = {event.key for event in seen.key_averages()}
    assert "aten::binary_cross_entropy_with_logits" in kernels
    assert not kernels & {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}


def test_logits_have_32_bits_inside_autocast_and_hardly_change(model: ClickModel) -> None:
    stream, query = streams([[1, 2, 3, 4], [5, 6]]), clicks([(2, 2)])
    plain = model(stream, query)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast_ = model(stream, query)
    assert cast_.dtype == torch.float32
    torch.testing.assert_close(cast_, plain, rtol=0.05, atol=0.05)


def whether_it_is_there(streams_: int, seed: int) -> Batch:
    """Five items, and two targets: one of them and another."""
    rows = torch.rand(streams_, 30, generator=torch.Generator().manual_seed(seed)).argsort(dim=1).tolist()
    asked = [[(row[2], 2), (row[20], 2)] for row in rows]
    stream = streams(*[[row[:3], row[3:5]] for row in rows])
    return Batch(stream, clicks(*asked, answers=[[1, 0]] * streams_), torch.arange(streams_))


@pytest.mark.parametrize(("name", "steps"), [("gru4rec", 150), ("caser", 120), ("rum", 60), ("dien", 100)])
def test_it_learns_whether_the_target_is_in_the_history(name: str, steps: int) -> None:
    model = make(name).train()
    objective = make_objective(model, PLAIN.rehearsal, None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        loss, logs = objective(whether_it_is_there(128, seed=step + 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fresh = whether_it_is_there(500, seed=0)
    scores = model.eval()(fresh.stream, fresh.query).squeeze(-1)
    assert (scores[:, 0] > scores[:, 1]).float().mean() > 0.8
    assert ("loss_next_behaviour" in logs) == (name == "dien")


@pytest.mark.parametrize("name", METHODS)
def test_a_bundle_answers_as_before_and_no_stream_memory_opens_it(tmp_path: Path, name: str) -> None:
    model, run = make(name), Run(method="some", model=replace(PLAIN, machine=METHODS[name]))
    save_bundle(tmp_path, model, run, CODEC)
    bundle = load_bundle(tmp_path)
    stream, query = streams([[1, 2], [3, 4]]), clicks([(2, 2)])
    assert_close(bundle.model.eval()(stream, query), model(stream, query))
    with pytest.raises(BadInput, match="some, which reads the whole stream"):
        StreamMemory.open(bundle)


def test_what_cannot_be_built_is_refused_with_a_sentence() -> None:
    with pytest.raises(BadInput, match="no memory to rehearse from"):
        build_model(ModelSettings(machine=RUMSettings()), CODEC)
    with pytest.raises(BadInput, match="RUMSettings is for clicks"):
        build_model(
            replace(PLAIN, machine=RUMSettings()),
            IdCodec(segment_len=4, num_items=30, num_queries=5, num_answers=3),
        )
    with pytest.raises(BadInput, match="no memory of its own"):
        build_memorizer(replace(PLAIN, machine=DIENSettings()), CODEC)


def test_a_softmax_over_nothing_is_zero() -> None:
    weights = softmax_over(torch.randn(2, 3), torch.tensor([[True, False, True], [False] * 3]))
    assert_close(weights.sum(dim=-1), [1.0, 0.0])
    assert weights[0, 1] == 0


def test_the_tower_has_the_layers_of_the_original_programs() -> None:
    tower = ClickTower(input_dim=5, dropout=0.0)
    left, right = torch.randn(2, 3, 2), torch.randn(2, 3, 3)
    first, second, last = (layer for layer in tower.layers if isinstance(layer, nn.Linear))
    assert (first.out_features, second.out_features) == (200, 80)
    hidden = nn.functional.elu(second(nn.functional.elu(first(torch.cat([left, right], dim=-1)))))
    assert_close(tower(left, right), last(hidden).squeeze(-1))


# each method's equations, for one target of one stream at a time


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
