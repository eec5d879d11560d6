"""Measurements behind every claim of speed: each prints the plain way and the fast way from one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from remem.data.dataset import Split, training_batches
from remem.experiments.presets import find_preset
from remem.model.build import build_model
from remem.model.sampler import RandomSampler
from remem.settings.run import Run, TrainSettings
from remem.settings.tasks import SyntheticTask
from remem.tasks.base import Task
from remem.tasks.load import load_task
from remem.training.objective import MemoryObjective
from remem.training.run import compile_layers, pick_device
from remem.training.step import make_step


def _prepare(preset: str, batch_size: int | None, device: torch.device) -> tuple[Run, Task, Split]:
    run = find_preset(preset)
    if isinstance(run.task, SyntheticTask):  # a few streams of full length are enough to time
        run = replace(run, task=replace(run.task, samples_per_chain=4))
    run = replace(run, train=replace(run.train, batch_size=batch_size or run.train.batch_size))
    task = load_task(run.task)
    return run, task, task.load("train").to(device)


def _median_ms(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def bench_train(preset: str, batch_size: int | None, steps: int, device_name: str, precision: str) -> Iterator[str]:
    """A training step with rehearsal: eager, then captured, then captured with compiled layers."""
    device = pick_device(device_name)
    run, task, split = _prepare(preset, batch_size, device)
    ways = {"eager": (False, False), "captured": (True, False), "captured + compiled": (True, True)}
    if device.type == "cpu":
        ways = {"eager": (False, False)}
    yield f"{preset}, batch {run.train.batch_size}, {precision}, {device}"
    first = 0.0
    for name, (capture, compile_) in ways.items():
        settings = replace(run.train, capture=capture, precision=precision)  # type: ignore[arg-type]
        ms, memory = _time_training(run, task, split, settings, compile_, steps, device)
        first = first or ms
        rate = 1000 * run.train.batch_size / ms
        yield f"{name:<20} {ms:9.2f} ms/step {rate:10.0f} streams/s {first / ms:6.2f} x eager {memory:8.0f} MB"


def _time_training(
    run: Run, task: Task, split: Split, settings: TrainSettings, compile_: bool, steps: int, device: torch.device
) -> tuple[float, float]:
    torch.manual_seed(0)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    model = build_model(run.model, task.codec).to(device)
    if compile_:
        compile_layers(model)
    step = make_step(model, MemoryObjective(model, run.model.rehearsal, RandomSampler()), split, settings)
    batches = training_batches(split, settings.batch_size, 0, 0)
    for _ in range(5):
        step(*next(batches), settings.learning_rate)
    ms = _median_ms(lambda: step(*next(batches), settings.learning_rate), steps, device)
    memory = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else float("nan")
    return ms, memory


def bench_write(preset: str, batch_size: int | None, steps: int, device_name: str, precision: str) -> Iterator[str]:
    """Writing streams into memory: `write` for each segment against `write_stream`, which encodes all at once."""
    device = pick_device(device_name)
    run, task, split = _prepare(preset, batch_size, device)
    model = build_model(run.model, task.codec).to(device).eval()
    stream = split.batch(0, torch.arange(run.train.batch_size)).stream

    @torch.no_grad()
    def one_by_one() -> torch.Tensor:
        state = model.initial_state(len(stream.order))
        for t in range(stream.order.shape[1]):
            index = stream.order[:, t]
            state = model.write(state, stream.items[index], stream.item_mask[index] & stream.segment_mask[:, t, None])
        return model.memorizer.memory(state)  # type: ignore[arg-type]

    @torch.no_grad()
    def at_once() -> torch.Tensor:
        return model.memorize(stream).memories[:, -1]

    yield f"{preset}, {len(stream.order)} streams of {stream.order.shape[1]} segments, {precision}, {device}"
    torch.testing.assert_close(one_by_one(), at_once(), rtol=1e-4, atol=1e-5)
    slow, fast = (_median_ms(work, steps, device) for work in (one_by_one, at_once))
    yield f"segment by segment   {slow:9.2f} ms"
    yield f"encoded at once      {fast:9.2f} ms {slow / fast:6.2f} x"
