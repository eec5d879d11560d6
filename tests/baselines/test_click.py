"""Models of a click that read the whole history: what they see, what they must not, and that they learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from click_parts import CODEC, METHODS, PLAIN, assert_close, clicks, make, streams
from torch import nn

from remem.baselines.click import ClickModel, ClickTower, softmax_over
from remem.build import build_memorizer, build_model
from remem.bundle import load_bundle, save_bundle
from remem.data.batch import Batch, StreamBatch
from remem.data.codec import IdCodec
from remem.errors import BadInput
from remem.settings.baselines import DIENSettings, RUMSettings
from remem.settings.model import ModelSettings
from remem.settings.run import Run
from remem.streaming.memory import StreamMemory
from remem.training.objective import make_objective


@pytest.fixture(params=METHODS)
def model(request: pytest.FixtureRequest) -> ClickModel:
    return make(request.param)


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
