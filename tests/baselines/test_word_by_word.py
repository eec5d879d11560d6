"""Reading item by item: packing, padding, and the memory after every segment."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from remem.baselines.dmsdnc import DMSDNC
from remem.baselines.dnc import DNC
from remem.baselines.mimn import MIMN
from remem.baselines.nutm import NUTM
from remem.baselines.word_by_word import WordByWord, mean_over
from remem.checks.memorizer import CHECKS, check_memorizer
from remem.data.batch import Segment
from remem.model.interface import EmbeddedStream, Memorizer, detach_state
from remem.streaming.state import StreamState, load_state, save_state

DIM, IDS = 6, 9
METHODS: dict[str, Callable[[], WordByWord]] = {
    "dnc": lambda: DNC(item_dim=DIM, num_slots=4, num_reads=2),
    "dnc-msd": lambda: DNC(item_dim=DIM, num_slots=4, num_reads=2, masked=True, deallocate=True, sharpen=True),
    "nutm": lambda: NUTM(item_dim=DIM, num_slots=4, num_reads=2),
    "dmsdnc": lambda: DMSDNC(item_dim=DIM, num_slots=4, num_reads=2, num_items=IDS),
    "mimn": lambda: MIMN(item_dim=DIM, num_slots=4, horizon=6),
    "native": lambda: DNC(item_dim=DIM, num_slots=4, num_reads=1, slot_dim=3, controller_dim=5, norm_slots=True),
}


THREE = ("dnc-msd", "nutm", "dmsdnc")


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> WordByWord:
    return METHODS[request.param]().eval()


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def ragged_stream(b: int, t: int, n: int, *, rows: int = 5) -> EmbeddedStream:
    """Streams that share the rows of a table, with items and segments missing anywhere."""
    items = torch.randn(rows, n, DIM)
    mask = torch.rand(rows, n) < 0.7
    items[~mask] = torch.nan
    ids = torch.randint(IDS, (rows, n))
    return EmbeddedStream(items, mask, torch.randint(rows, (b, t)), torch.rand(b, t) < 0.8, ids=ids)


def real_items(stream: EmbeddedStream) -> Tensor:
    return stream.item_mask[stream.order] & stream.segment_mask[..., None]


class SumState(NamedTuple):
    slots: Tensor


class SumCell(nn.Module):
    """Adds up what it reads, in one slot."""

    def initial_state(self, batch_size: int) -> SumState:
        return SumState(torch.zeros(batch_size, 1, DIM))

    def project(self, items: Tensor) -> Tensor:
        return items

    def forward(self, state: SumState, inputs: Tensor, real: Tensor) -> SumState:
        return SumState(torch.where(real[:, None, None], state.slots + inputs[:, None], state.slots))

    def slots_of(self, state: SumState) -> Tensor:
        return state.slots

    def read_out(self, slots: Tensor) -> Tensor:
        return slots

    def write_weights_of(self, state: SumState) -> Tensor:
        return torch.tensor([0.3, 0.1]).expand(len(state.slots), 2)


def test_the_memory_after_every_segment_holds_all_items_before_it() -> None:
    stream = ragged_stream(4, 6, 3)
    trace = WordByWord(SumCell()).write_stream(SumCell().initial_state(4), stream)
    items = stream.items.nan_to_num()[stream.order].masked_fill(~real_items(stream)[..., None], 0.0)
    totals = nn.functional.pad(items.sum(dim=2).cumsum(dim=1), (0, 0, 1, 0))
    assert_close(trace.memories, totals[:, :, None])
    assert_close(trace.state.slots, totals[:, -1:])  # type: ignore[attr-defined]


def test_write_entropy_is_that_of_the_normalised_weights() -> None:
    trace = WordByWord(SumCell()).write_stream(SumCell().initial_state(2), ragged_stream(2, 3, 2))
    expected = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert_close(trace.figures["write_entropy"], torch.tensor(expected))
    assert trace.losses == {}


def test_a_mean_counts_what_is_counted_and_is_zero_over_nothing() -> None:
    values = torch.tensor([1.0, torch.nan, 3.0])
    assert_close(mean_over(values, torch.tensor([True, False, True])), torch.tensor(2.0))
    assert_close(mean_over(values, torch.zeros(3, dtype=torch.bool)), torch.tensor(0.0))


@pytest.mark.parametrize("name", ["dnc", "nutm", "dmsdnc"])
def test_every_method_holds_to_the_contract(name: str) -> None:
    method = METHODS[name]()
    assert isinstance(method, Memorizer)
    check_memorizer(method, DIM)
    assert len(CHECKS) >= 6


@pytest.mark.parametrize(("b", "t", "n"), [(3, 5, 4), (1, 1, 1), (2, 7, 3)])
def test_a_packed_stream_gives_the_memories_of_one_segment_after_another(
    method: WordByWord, b: int, t: int, n: int
) -> None:
    stream = ragged_stream(b, t, n)
    most = int(real_items(stream).sum(dim=(1, 2)).max())
    with torch.no_grad():
        state: Any = method.initial_state(b)
        memories = [method.memory(state)]
        for index in range(t):
            rows = stream.order[:, index]
            mask = stream.item_mask[rows] & stream.segment_mask[:, index, None]
            state = method.write(state, Segment(stream.items[rows], mask))
            memories.append(method.memory(state))
        for most_items in (None, most, most + 3):
            trace = method.write_stream(method.initial_state(b), stream._replace(most_items=most_items))
            assert_close(trace.memories, torch.stack(memories, dim=1))
            for part, expected in zip(trace.state, state, strict=True):
                assert_close(part, expected)


def test_streams_without_a_real_item_keep_their_state_to_the_bit(method: WordByWord) -> None:
    stream = ragged_stream(3, 4, 3)
    with torch.no_grad():
        state = method.write_stream(method.initial_state(3), stream).state
        nothing = stream._replace(segment_mask=torch.zeros(3, 4, dtype=torch.bool), most_items=0)
        empty = stream._replace(order=stream.order[:, :0], segment_mask=stream.segment_mask[:, :0])
        for trace in (method.write_stream(state, nothing), method.write_stream(state, empty)):
            assert all(torch.equal(a, b) for a, b in zip(trace.state, state, strict=True))
            assert torch.equal(trace.memories[:, -1], method.memory(state))
            assert trace.figures["write_entropy"] == 0


def test_a_finished_stream_waits_for_the_others_without_changing(method: WordByWord) -> None:
    stream = ragged_stream(2, 4, 3)
    short = stream._replace(segment_mask=torch.tensor([[True, True, False, False], [True] * 4]))
    with torch.no_grad():
        both = method.write_stream(method.initial_state(2), short).state
        alone = method.write_stream(
            method.initial_state(2), short._replace(order=short.order[:, :2], segment_mask=short.segment_mask[:, :2])
        ).state
    for after, before in zip(both, alone, strict=True):
        assert torch.equal(after[0], before[0])


def test_gradients_reach_the_first_segment_and_are_finite_beside_nan_padding(method: WordByWord) -> None:
    stream = ragged_stream(3, 6, 3)
    items = stream.items.clone().requires_grad_()
    first = EmbeddedStream(items, stream.item_mask, torch.arange(5)[None].expand(3, 5), torch.ones(3, 5).bool())
    method.write_stream(method.initial_state(3), first).memories[:, -1].square().sum().backward()
    real = stream.item_mask
    assert items.grad is not None
    assert torch.isfinite(items.grad).all()
    assert (items.grad[0][real[0]].norm(dim=-1) > 0).all()
    assert (items.grad[~real] == 0).all()
    for name, parameter in method.cell.named_parameters():  # type: ignore[attr-defined]
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("name", THREE)
def test_nothing_is_asked_of_the_device(name: str) -> None:
    method, stream = METHODS[name]().train(), ragged_stream(2, 2, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        trace = method.write_stream(method.initial_state(2), stream)
        (trace.memories.sum() + sum(trace.losses.values())).backward()
    kernels = {event.key for event in seen.key_averages()}
    assert "aten::stack" in kernels
    assert not kernels & {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}


def test_states_and_memories_have_32_bits_inside_autocast(method: WordByWord) -> None:
    stream = ragged_stream(2, 3, 2)
    with torch.no_grad():
        plain = method.write_stream(method.initial_state(2), stream)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = method.write_stream(method.initial_state(2), stream)
    assert all(part.dtype == torch.float32 for part in cast.state)
    # only the items' side of the LSTM, and the map of slots of another width, are rounded
    torch.testing.assert_close(cast.memories.float(), plain.memories, rtol=0.05, atol=0.02)


def test_a_state_survives_its_file(method: WordByWord, tmp_path: Path) -> None:
    stream = ragged_stream(1, 3, 2)
    state = detach_state(method.write_stream(method.initial_state(1), stream).state)
    save_state(tmp_path / "state", StreamState(state, (), items=3, segments=2, fingerprint="f"))
    loaded = load_state(tmp_path / "state", method.initial_state(1), "f").memory
    assert type(loaded) is type(state)
    assert all(torch.equal(a, b) for a, b in zip(loaded, state, strict=True))


# scripts for a process of their own, without the shape checks of the test run: torch.compile cannot look through them,
# and thousands of steps would take half as long again
LONG = """
import torch
from remem.baselines.dmsdnc import DMSDNC
from remem.baselines.dnc import DNC
from remem.baselines.nutm import NUTM
from remem.model.interface import EmbeddedStream

torch.set_num_threads(1)
torch.manual_seed(0)
sizes = {"item_dim": 6, "num_slots": 4, "num_reads": 2}
scale = torch.tensor([1.0, 100.0])[:, None, None, None]  # ordinary items, and large ones
order, there = torch.arange(200).view(2, 100), torch.ones(2, 100, dtype=torch.bool)
for method in (DNC(**sizes, masked=True, deallocate=True, sharpen=True), NUTM(**sizes), DMSDNC(**sizes)):
    state, largest = method.initial_state(2), []
    for _ in range(20):
        items = (scale * torch.randn(2, 100, 1, 6)).flatten(0, 1)
        with torch.no_grad():
            trace = method.write_stream(state, EmbeddedStream(items, there.view(200, 1), order, there))
        state = trace.state
        assert all(torch.isfinite(part).all() for part in state)
        largest.append(float(trace.memories.abs().max()))
    assert max(largest[10:]) < 2 * max(largest[:10]), largest
    assert max(largest) < 100, largest
    for part in (state.write_weights, state.read_weights, state.usage, state.precedence, state.links):
        assert ((part > -1e-5) & (part < 1 + 1e-5)).all()
    print(type(method).__name__)
"""
COMPILED = """
import torch
from remem.baselines.dmsdnc import DMSDNC
from remem.baselines.dnc import DNC
from remem.baselines.nutm import NUTM
from remem.model.interface import EmbeddedStream

torch.set_num_threads(1)
torch.manual_seed(0)
stream = EmbeddedStream(
    torch.randn(6, 3, 8), torch.rand(6, 3) < 0.8, torch.arange(6).view(2, 3), torch.ones(2, 3, dtype=torch.bool),
    ids=torch.randint(5, (6, 3)),
)
for make in (DNC, NUTM, DMSDNC):
    method = make(item_dim=8, num_slots=4, **({"num_items": 5} if make is DMSDNC else {}))
    results = []
    for compiled in (False, True):
        if compiled:
            method.compile_parts("eager")
        torch.manual_seed(4)
        method.zero_grad()
        trace = method.write_stream(method.initial_state(2), stream)
        (trace.memories.square().sum() + sum(trace.losses.values())).backward()
        results.append([trace.memories, *trace.state, *(p.grad for p in method.parameters() if p.grad is not None)])
        results[-1] = [value.detach().clone() for value in results[-1]]
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
# once for the first item, which has no gradient behind it, and once for all others
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 6, torch._dynamo.utils.counters["stats"]
assert not torch._dynamo.utils.counters["graph_break"], torch._dynamo.utils.counters["graph_break"]
print("one graph")
"""


def run_alone(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_state_stays_bounded_over_two_thousand_segments_also_of_large_items() -> None:
    assert run_alone(LONG).split() == ["DNC", "NUTM", "DMSDNC"]


def test_a_compiled_step_is_one_graph_and_changes_nothing() -> None:
    assert run_alone(COMPILED).strip() == "one graph"
