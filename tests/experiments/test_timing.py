"""The clock behind the benchmarks: ways in turn, medians, nothing timed that only happens once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from remem.experiments import timing
from remem.experiments.timing import Repeated, time_in_turn

CPU = torch.device("cpu")


class Clock:
    """Stands still unless work is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.done = 0.0, ""
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.seconds)

    def way(self, name: str, steps: list[float], first: int = 1) -> Callable[[], Repeated]:
        """Each step takes the seconds it is given; the first ones, which are not timed, a hundred."""

        def one(seconds: float) -> None:
            self.seconds += seconds
            self.done += name

        return lambda: Repeated(one, [100.0] * first, steps)


def test_ways_take_turns_and_each_shows_its_median(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    slow, fast = time_in_turn([clock.way("a", [2.0, 3.0, 9.0]), clock.way("b", [1.0, 1.0, 0.5], first=2)], CPU)
    assert clock.done == "abb" + "ab" * 3
    assert (slow.ms, slow.least, slow.most) == pytest.approx((3000, 2000, 9000))
    assert (fast.ms, fast.least, fast.most) == pytest.approx((1000, 500, 1000))


def test_a_way_of_fewer_steps_is_spread_over_the_others_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    few, many = time_in_turn([clock.way("a", [4.0, 6.0]), clock.way("b", [1.0] * 4)], CPU)
    assert clock.done == "ab" + "babbab"
    assert (few.ms, many.ms) == pytest.approx((5000, 1000))


def test_the_memory_of_a_way_is_what_it_took_itself() -> None:
    kept: list[torch.Tensor] = []

    def way(megabytes: int) -> Repeated:
        def one(_: object) -> None:
            kept.append(torch.ones(megabytes * 2**18))  # stays, and is no part of the next way's
            timing.time.sleep(0.05)

        return Repeated(one, [None], [None])

    large, small = time_in_turn([lambda: way(80), lambda: way(8)], CPU)
    if large.memory != large.memory:
        pytest.skip("this system does not tell the memory of a process")
    assert 70 < large.memory < 120
    assert 4 < small.memory < 40
