"""HPMN: every layer in its own time, whatever was read before, and layers that must not say the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from remem.baselines.hpmn import HPMN, HPMNState, covariance
from remem.checks.memorizer import check_memorizer
from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import EmbeddedStream, Memorizer, detach_state
from remem.streaming.state import StreamState, load_state, save_state

DIM = 6


def assert_close(actual: Tensor, expected: object) -> None:
    target = expected if isinstance(expected, Tensor) else torch.tensor(expected)
    torch.testing.assert_close(actual, target.to(actual.dtype), rtol=1e-4, atol=1e-5)


def make(num_layers: int = 4, period: int = 2, rows: int = 2, **options: Any) -> HPMN:
    return HPMN(item_dim=DIM, num_slots=rows * num_layers, num_layers=num_layers, period=period, **options)


def stream_of(items: Tensor, mask: Tensor | None = None) -> EmbeddedStream:
    """One item to a segment: [b, l, d]."""
    b, l = items.shape[:2]  # noqa: E741
    mask = torch.ones(b, l, dtype=torch.bool) if mask is None else mask
    order = torch.arange(b * l).view(b, l)
    return EmbeddedStream(items.flatten(0, 1)[:, None], mask.flatten()[:, None], order, torch.ones_like(mask))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def slow_gru(gru: nn.GRU, item: list[float], state: list[float]) -> list[float]:
    """One update of one stream, one number at a time."""
    of_item, of_state, item_bias, state_bias = (weight.tolist() for weight in gru.all_weights[0])
    h = len(state)

    def affine(weight: list[list[float]], bias: list[float], vector: list[float]) -> list[float]:
        return [c + sum(w * v for w, v in zip(row, vector, strict=True)) for row, c in zip(weight, bias, strict=True)]

    left, right = affine(of_item, item_bias, item), affine(of_state, state_bias, state)
    after = []
    for i in range(h):
        reset, keep = sigmoid(left[i] + right[i]), sigmoid(left[h + i] + right[h + i])
        new = math.tanh(left[2 * h + i] + reset * right[2 * h + i])
        after.append((1 - keep) * new + keep * state[i])
    return after


def slow_read(method: HPMN, layers: list[list[float]], items: list[list[float]], already: int) -> list[list[float]]:
    """All items of one stream, one after the other; `already` were read before."""
    for number, item in enumerate(items, start=already + 1):
        below = item
        for place, gru in enumerate(method.layers):
            if number % method.period**place:
                break  # what this layer does not see, no slower one does
            layers[place] = slow_gru(cast(nn.GRU, gru), below, layers[place])
            below = layers[place]
    return layers


@pytest.mark.parametrize(("num_layers", "period", "length"), [(4, 2, 21), (3, 3, 20), (1, 2, 5), (5, 2, 1), (6, 2, 7)])
def test_a_layer_moves_at_its_own_pace_with_what_the_one_beneath_it_knows(
    num_layers: int, period: int, length: int
) -> None:
    method, items = make(num_layers, period), torch.randn(2, length, DIM)
    trace = method.write_stream(method.initial_state(2), stream_of(items))
    state = cast(HPMNState, trace.state)
    for i in range(2):
        start = [[0.0] * 2 * DIM for _ in range(num_layers)]
        assert_close(state.layers[i], slow_read(method, start, items[i].tolist(), 0))
    assert state.clock.tolist() == [length % period ** (num_layers - 1)] * 2


def test_streams_that_have_read_more_or_less_before_keep_their_own_time() -> None:
    method, already = make(4), [0, 1, 5, 7, 6]
    layers, items = torch.rand(5, 4, 2 * DIM), torch.randn(5, 13, DIM)
    mask = torch.ones(5, 13, dtype=torch.bool)
    mask[1, 3:9], mask[2, ::2] = False, False
    state = HPMNState(layers, torch.tensor(already))
    trace = method.write_stream(state, stream_of(items.masked_fill(~mask[..., None], torch.nan), mask))
    for i in range(5):
        for moment in (0, 4, 13):
            there = items[i, :moment][mask[i, :moment]].tolist()
            expected = slow_read(method, layers[i].tolist(), there, already[i])
            rows = torch.tensor(expected).view(8, DIM) + method.mark
            assert_close(trace.memories[i, moment], rows)
    final = cast(HPMNState, trace.state)
    assert final.clock.tolist() == [(n + int(mask[i].sum())) % 8 for i, n in enumerate(already)]


def test_a_slow_layer_changes_only_at_its_interval() -> None:
    method, items = make(4), torch.randn(1, 16, DIM)
    memories = method.write_stream(method.initial_state(1), stream_of(items)).memories[0].unflatten(1, (4, 2))
    memories = memories - method.mark.unflatten(0, (4, 2))
    for layer in range(4):
        moved = [bool((memories[t, layer] - memories[t - 1, layer]).abs().max() > 1e-7) for t in range(1, 17)]
        assert moved == [t % 2**layer == 0 for t in range(1, 17)]


def test_the_covariance_is_that_of_the_layers_without_their_own_variance() -> None:
    layers = torch.randn(3, 4, 7)
    expected = 0.0
    for rows in layers.tolist():
        centred = [[v - sum(row) / 7 for v in row] for row in rows]
        squares = sum(
            (sum(a * c for a, c in zip(centred[i], centred[j], strict=True)) / 7) ** 2
            for i in range(4)
            for j in range(4)
            if i != j
        )
        expected += math.sqrt(squares) / 3
    assert_close(covariance(layers), expected)
    alone = torch.zeros(2, 3, 4, requires_grad=True)  # as at the beginning of every stream
    covariance(alone).backward()
    assert alone.grad is not None
    assert torch.isfinite(alone.grad).all()


def test_its_loss_is_weighted_and_keeps_layers_apart() -> None:
    method, items = make(3, covariance_weight=0.5), torch.randn(4, 8, DIM)
    trace = method.write_stream(method.initial_state(4), stream_of(items))
    assert_close(trace.losses["covariance"], 0.5 * covariance(cast(HPMNState, trace.state).layers))
    assert_close(trace.figures["covariance"], covariance(cast(HPMNState, trace.state).layers))
    optimizer = torch.optim.Adam(method.parameters(), lr=0.02)
    before = trace.losses["covariance"].detach()
    for _ in range(20):
        loss = method.write_stream(method.initial_state(4), stream_of(items)).losses["covariance"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5 * before


def test_a_segment_with_gaps_is_read_as_its_real_items() -> None:
    method, items = make(3), torch.randn(2, 5, DIM)
    mask = torch.tensor([[True, False, True, False, False], [False, True, True, True, True]])
    state = method.initial_state(2)
    with torch.no_grad():
        gaps = method.write(state, Segment(items.masked_fill(~mask[..., None], torch.nan), mask))
        first = method.write(method.initial_state(1), Segment(items[:1, [0, 2]], torch.ones(1, 2, dtype=torch.bool)))
    assert_close(gaps.layers[:1], first.layers)
    assert gaps.clock.tolist() == [2, 0]  # four items are a whole round of the slowest layer


def test_a_state_survives_its_file_with_its_clock(tmp_path: Path) -> None:
    method, items = make(4), torch.randn(1, 13, DIM)
    state = detach_state(cast(HPMNState, method.write_stream(method.initial_state(1), stream_of(items[:, :7])).state))
    save_state(tmp_path / "state", StreamState(state, (), items=7, segments=7, fingerprint="f"))
    loaded = cast(HPMNState, load_state(tmp_path / "state", method.initial_state(1), "f").memory)
    assert loaded.clock.tolist() == [7]
    after = method.write_stream(loaded, stream_of(items[:, 7:])).state
    whole = method.write_stream(method.initial_state(1), stream_of(items)).state
    assert_close(method.memory(cast(HPMNState, after)), method.memory(cast(HPMNState, whole)))


def test_it_holds_to_the_contract_and_a_thousand_items_are_read_at_once() -> None:
    method = make(10)
    assert isinstance(method, Memorizer)
    check_memorizer(method, DIM)
    items = torch.randn(2, 1000, DIM, requires_grad=True)
    trace = method.write_stream(method.initial_state(2), stream_of(items))
    assert trace.memories.shape == (2, 1001, 20, DIM)
    trace.memories[:, -1].sum().backward()
    assert items.grad is not None
    assert (items.grad[:, 0].norm(dim=-1) > 0).all()


def test_the_state_has_32_bits_inside_autocast() -> None:
    method, items = make(4), torch.randn(2, 9, DIM)
    plain = method.write_stream(method.initial_state(2), stream_of(items))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast_ = method.write_stream(method.initial_state(2), stream_of(items))
    assert torch.equal(cast(HPMNState, cast_.state).layers, cast(HPMNState, plain.state).layers)


def test_nothing_is_asked_of_the_device() -> None:
    method, items = make(4).train(), torch.randn(2, 9, DIM)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        trace = method.write_stream(method.initial_state(2), stream_of(items))
        (trace.memories.sum() + sum(trace.losses.values())).backward()
    kernels = {event.key for event in seen.key_averages()}
    assert "aten::gru" in kernels
    assert not kernels & {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}


def test_sizes_of_the_harness_and_those_that_cannot_be() -> None:
    method = HPMN(item_dim=64, num_slots=20)
    assert sum(part[0].numel() for part in method.initial_state(1)) == 20 * 64 + 1
    assert method.interval(len(method.layers) - 1) == 512
    with pytest.raises(BadInput, match="20 slots cannot be shared by 8 layers"):
        HPMN(item_dim=8, num_slots=20, num_layers=8)
    with pytest.raises(BadInput, match="makes no layer slower"):
        make(period=1)
