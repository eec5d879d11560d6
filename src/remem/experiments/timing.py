"""The clock behind the benchmarks: ways to do the same work are timed in turn, since a machine's speed drifts."""

from __future__ import annotations

import ctypes
import gc
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

GPU_ROUNDS = 5  # steps of a GPU overlap, so that a round is a stretch of them; on a CPU it is one step


class Repeated(NamedTuple):
    """Work to be timed: what is done with each input, and what is done before the clock runs."""

    one: Callable[[Any], object]
    first: Sequence[Any]
    each: Sequence[Any]


class Timing(NamedTuple):
    """Milliseconds of a step, the median over the rounds, with the fastest and the slowest; peak of memory in MB."""

    ms: float
    least: float = float("nan")
    most: float = float("nan")
    memory: float = float("nan")


def wait(device: torch.device) -> None:
    """Until the device has done all it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def time_in_turn(ways: Sequence[Callable[[], Repeated]], device: torch.device) -> list[Timing]:
    """Each way is built and warmed up; then A B A B ...: a way that meets a slow minute is not alone in it."""
    built, memories = [], []
    for make in ways:
        with _peak_of_gpu() if device.type == "cuda" else _peak_of_process() as measure:
            built.append(make())
            measure.begin()
            for given in built[-1].first:
                built[-1].one(given)
            wait(device)
        memories.append(measure.megabytes)
    times: list[list[float]] = [[] for _ in built]
    rounds = GPU_ROUNDS if device.type == "cuda" else max(len(way.each) for way in built)
    for number in range(rounds):
        for way, own in zip(built, times, strict=True):
            part = way.each[len(way.each) * number // rounds : len(way.each) * (number + 1) // rounds]
            started = time.perf_counter()
            for given in part:
                way.one(given)
            wait(device)
            if part:
                own.append(1000 * (time.perf_counter() - started) / len(part))
    return [
        Timing(statistics.median(own), min(own), max(own), memory) for own, memory in zip(times, memories, strict=True)
    ]


class _Peak:
    """The most memory that was held, in MB, since a way was built or began."""

    megabytes = float("nan")

    def begin(self) -> None:
        """The way is built, and runs from now on."""


@contextmanager
def _peak_of_gpu() -> Iterator[_Peak]:
    """With the model itself, and without what other ways hold."""
    peak, before = _Peak(), torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    yield peak
    peak.megabytes = (torch.cuda.max_memory_allocated() - before) / 2**20


class _ProcessPeak(_Peak):
    """How far the resident memory of this process rises while a way runs: looked at every few milliseconds."""

    status = Path("/proc/self/statm")

    def __init__(self) -> None:
        self.page, self.done = resource.getpagesize(), threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)

    def begin(self) -> None:
        if not self.status.exists():
            return
        gc.collect()
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):  # what an earlier way has left with the allocator would not show here
            libc.malloc_trim(0)
        self.before, self.megabytes = self._resident(), 0.0
        self.watcher.start()

    def _resident(self) -> float:
        return int(self.status.read_text().split()[1]) * self.page / 2**20

    def _watch(self) -> None:
        while not self.done.wait(0.005):
            self.megabytes = max(self.megabytes, self._resident() - self.before)


@contextmanager
def _peak_of_process() -> Iterator[_Peak]:
    peak = _ProcessPeak()
    try:
        yield peak
    finally:
        peak.done.set()
        if peak.watcher.is_alive():
            peak.watcher.join()
