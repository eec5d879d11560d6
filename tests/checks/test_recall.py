"""Every memory learns the two bits, and one that can't is told so."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jaxtyping
import pytest
import torch
from torch import Tensor

from remem.baselines.compressive_transformer import CompressiveTransformer
from remem.baselines.dmsdnc import DMSDNC
from remem.baselines.dnc import DNC
from remem.baselines.hpmn import HPMN
from remem.baselines.mimn import MIMN
from remem.baselines.nutm import NUTM
from remem.baselines.stm import STM
from remem.build import build_machine, build_memorizer
from remem.checks import memorizer, recall
from remem.checks.memorizer import check_endless
from remem.checks.recall import check_recall, learn_recall
from remem.data.codec import IdCodec
from remem.errors import BadInput
from remem.experiments.models import RM
from remem.experiments.presets import PRESETS
from remem.model.interface import Trace
from remem.model.machine import MemoryMachine
from remem.settings.model import with_machine

DIM = 16
EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_memory.py"))


def small_rm() -> MemoryMachine:
    return build_machine(replace(with_machine(RM, num_slots=4, encoder_layers=1), item_dim=DIM, model_dim=DIM), 5)


MEMORIES: dict[str, Callable[[], Any]] = {
    "rm": small_rm,
    "dnc": lambda: DNC(item_dim=DIM, num_slots=8, num_reads=2),
    "nutm": lambda: NUTM(item_dim=DIM, num_slots=8, num_reads=2),
    "dmsdnc": lambda: DMSDNC(item_dim=DIM, num_slots=8, num_reads=2, num_items=4),
    "stm": lambda: STM(item_dim=DIM, num_slots=4, segment_len=5, width=16, num_queries=4, bounded_after=1),
    "ct": lambda: CompressiveTransformer(item_dim=DIM, num_slots=10, segment_len=5, dropout=0.0),
    "hpmn": lambda: HPMN(item_dim=DIM, num_slots=10, num_layers=5),
    "mimn": lambda: MIMN(item_dim=DIM, num_slots=4),
    "own": EXAMPLE["make"],
}


RATES = {"mimn": 1e-2, "nutm": 1e-2, "hpmn": 1e-2}  # their steps take long, so they should be few


@pytest.fixture(autouse=True)
def _no_shape_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking every shape of every step would take most of the time."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.slow
@pytest.mark.no_cover  # every line here is covered elsewhere, and counting them takes half of the time
# one's own learns it in the test of `remem check`
@pytest.mark.parametrize("name", [name for name in MEMORIES if name != "own"])
def test_a_memory_learns_which_of_four_symbols_came_first_among_fifty(name: str) -> None:
    torch.manual_seed(0)
    learned = check_recall(MEMORIES[name](), DIM, learning_rate=RATES.get(name, 3e-3))
    assert learned.accuracy > 0.99
    assert learned.seconds < 120


def of_preset(method: str, width: int) -> Any:
    """A preset's memory with its own settings, at another width."""
    model = replace(PRESETS[f"synthetic/{method}"].model, item_dim=width, model_dim=width)
    return build_memorizer(model, IdCodec(segment_len=5, num_items=4, num_queries=1, num_answers=4))


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.parametrize("method", ["rm", "stm-matched"])  # the others' steps take too long at their own sizes
def test_a_presets_own_memory_learns_it_too(method: str) -> None:
    torch.manual_seed(0)
    assert check_recall(of_preset(method, DIM), DIM).accuracy > 0.99


@pytest.mark.no_cover
@pytest.mark.parametrize("name", MEMORIES)
def test_an_endless_random_stream_leaves_every_state_finite_and_bounded(name: str) -> None:
    torch.manual_seed(0)
    assert 0 < check_endless(MEMORIES[name](), DIM, segments=600).largest < 1e4


@pytest.mark.no_cover
@pytest.mark.parametrize("method", ["rm", "dnc", "dnc-msd", "nutm", "dmsdnc", "stm-matched", "ct", "hpmn", "mimn"])
def test_a_presets_own_memory_is_not_refused_for_a_short_stream(method: str) -> None:
    torch.manual_seed(0)
    found = check_endless(of_preset(method, 8), 8, segments=100)
    assert 0 < found.largest < 1e4
    assert len(found.along) == found.segments // 10


class Forgetful(MemoryMachine):
    """Holds to nothing: every memory is the first one."""

    def write_stream(self, state: Any, stream: Any) -> Any:
        trace = super().write_stream(state, stream)
        return trace._replace(memories=trace.memories[:, :1].expand_as(trace.memories))


def test_a_memory_that_forgets_is_told_what_was_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small_rm()
    forgetful = Forgetful(encoder=whole.encoder, writer=whole.writer, num_slots=4, item_dim=DIM)
    monkeypatch.setattr(recall, "learn_recall", lambda *a, **k: learn_recall(*a, **k, most_steps=50))
    with pytest.raises(AssertionError, match=r"After 50 steps .* chance is 25 %"):
        check_recall(forgetful, DIM)


class Growing(MemoryMachine):
    """Adds to its state, for ever or until it is large."""

    limit = float("inf")

    def write_stream(self, state: Any, stream: Any) -> Any:
        grown = (state.slots + stream.order.shape[1]).clamp(max=self.limit)
        return super().write_stream(state, stream)._replace(state=state._replace(slots=grown))


def growing() -> Growing:
    whole = small_rm()
    return Growing(encoder=whole.encoder, writer=whole.writer, num_slots=4, item_dim=DIM)


class Counting(NamedTuple):
    large: Tensor
    count: Tensor


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the segments asked for are enough, however few."""
    monkeypatch.setattr(memorizer, "_LEAST", 0)


@pytest.mark.usefixtures("impatient")
def test_a_part_that_grows_beneath_a_larger_one_is_caught() -> None:
    memory: Any = SimpleNamespace(
        initial_state=lambda b: Counting(torch.full((b, 1), 1e6), torch.zeros(b, 1)),
        write_stream=lambda state, stream: Trace(
            state._replace(count=state.count + stream.order.shape[1]), torch.empty(0), {}, {}
        ),
    )
    with pytest.raises(AssertionError, match="grew from 40 to 200"):
        check_endless(memory, DIM, segments=20)


class Summed(NamedTuple):
    total: Tensor


@pytest.mark.usefixtures("impatient")
def test_a_sum_of_items_that_have_no_mean_is_caught_too() -> None:
    memory: Any = SimpleNamespace(
        initial_state=lambda b: Summed(torch.zeros(b, DIM)),
        write_stream=lambda state, stream: Trace(
            Summed(state.total + stream.items[stream.order].sum(dim=(1, 2))), torch.empty(0), {}, {}
        ),
    )
    with pytest.raises(AssertionError, match=r"over 2,000 random segments: it grows with the stream"):
        check_endless(memory, DIM, segments=200)


@pytest.mark.usefixtures("impatient")
def test_a_state_that_grows_with_the_stream_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"grew from .* over 200 random segments: it grows with the stream"):
        check_endless(growing(), DIM, segments=20)


def test_a_single_segment_is_no_stream() -> None:
    with pytest.raises(BadInput, match="at least 2"):
        check_endless(MEMORIES["rm"](), DIM, segments=1)


def test_a_state_that_settles_late_is_given_the_time() -> None:
    memory = growing()
    memory.limit = 50.0
    found = check_endless(memory, DIM, segments=20)
    assert found.largest == 50.0
    assert 50 < found.segments < 200
    assert found.along[0][0] == 2
    assert found.along[-1] == (found.segments, 50.0)
    # long enough from the start, it takes no longer than it was told
    assert check_endless(memory, DIM, segments=200).segments == 200


def test_learning_leaves_the_number_of_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    learn_recall(EXAMPLE["make"](), DIM, most_steps=1)
    assert torch.get_num_threads() == before
