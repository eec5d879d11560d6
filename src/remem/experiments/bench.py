"""Measurements behind every claim of speed: the plain way and the fast ones in turn, in one run."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from remem.build import build_model, build_sampler
from remem.data.dataset import Split, epoch_batches, training_batches
from remem.errors import BadInput
from remem.experiments.floor import Rates, Work, count_work, measure_rates
from remem.experiments.presets import find_preset
from remem.experiments.timing import Repeated, Timing, time_in_turn
from remem.model.assembly import MemoryModel
from remem.model.machine import MemoryMachine
from remem.model.recent import RecentMachine
from remem.model.sampler import HistorySampler, RandomSampler
from remem.ops.onednn import products_by_onednn
from remem.ops.paths import reference_only
from remem.settings.run import Run
from remem.settings.tasks import SyntheticTask
from remem.tasks.base import Task
from remem.tasks.load import load_task
from remem.training.objective import DirectObjective, MemoryObjective, make_objective
from remem.training.precision import autocast
from remem.training.record import code_version, now, versions
from remem.training.run import pick_device
from remem.training.step import make_step


class Way(NamedTuple):
    """One way to run a step: its operations plain or fast, the step captured or not, its parts compiled or not."""

    name: str
    plain: bool = False
    captured: bool = False
    compiled: bool = False


PLAIN_STEPS = 60  # enough for a mean of the slow way
WAYS = {
    "cuda": (
        Way("eager", plain=True),
        Way("fast scan", captured=True),
        Way("fast scan, compiled", captured=True, compiled=True),
    ),
    "cpu": (Way("eager", plain=True), Way("fast scan")),
}


def fastest(method: str, device: str) -> Way:
    """Of any method; compiling pays on a CPU only where a step is many small operations, which rm's is not."""
    if device == "cuda":
        return Way("captured, compiled", captured=True, compiled=True)
    return Way("fast scan") if method.startswith("rm") else Way("compiled", compiled=True)


@dataclass
class Bench:
    """A preset on a device, and how long to measure."""

    preset: str
    batch_size: int | None
    steps: int
    device: torch.device
    precision: str

    def __post_init__(self) -> None:
        run = find_preset(self.preset)
        if isinstance(run.task, SyntheticTask):  # a few streams of full length are enough to time
            run = replace(run, task=replace(run.task, samples_per_chain=4))
        train = replace(run.train, batch_size=self.batch_size or run.train.batch_size, precision=self.precision)  # type: ignore[arg-type]
        self.run: Run = replace(run, train=train)
        self.task: Task = load_task(run.task)
        self.split: Split = self.task.load("train").to(self.device)

    @property
    def epoch(self) -> int:
        """Steps of an epoch."""
        return len(epoch_batches(self.split, self.run.train.batch_size, 0, 0))

    def objective(self) -> MemoryObjective | DirectObjective:
        """A fresh model with an untrained history sampler, which costs what a trained one does."""
        torch.manual_seed(0)
        model = build_model(self.run.model, self.task.codec).to(self.device)
        rehearsal = self.run.model.rehearsal
        sampler: HistorySampler | RandomSampler = RandomSampler()
        if rehearsal.sampler == "history":
            sampler = build_sampler(self.run.model, self.task.codec).to(self.device).eval().requires_grad_(False)
        return make_objective(model, rehearsal, sampler if rehearsal.enabled else None)

    def memory_model(self) -> MemoryModel:
        """The model alone; one without a memory is refused."""
        model = self.objective().model
        if not isinstance(model, MemoryModel):
            raise BadInput(f"{self.preset} has no memory to write to; take a preset of a memory-based method.")
        return model

    def time_steps(self, ways: Sequence[Way]) -> list[Timing]:
        """A training step over batches drawn as in training, each way in turn."""
        return time_in_turn([partial(self._steps, way) for way in ways], self.device)

    def _steps(self, way: Way) -> Repeated:
        objective = self.objective()
        if way.compiled:
            objective.compile()
        settings = replace(self.run.train, capture=way.captured)
        steps = min(self.steps, PLAIN_STEPS) if way.plain else self.steps
        batches = list(islice(training_batches(self.split, settings.batch_size, 0, 0), steps))
        # each shape first, so that nothing is compiled or captured while the clock runs; twice where parts are
        # compiled, since the second step may find reasons to do so again
        shapes = {(bucket, len(rows)): (bucket, rows) for bucket, rows in batches}
        first = [*shapes.values()] * (2 if way.compiled else 1)
        with _paths(way.plain):
            step = make_step(objective.model, objective, self.split, settings)

        def one(batch: tuple[int, Tensor]) -> None:
            with _paths(way.plain):
                step(*batch, settings.learning_rate)

        return Repeated(one, first, batches)

    def work(self) -> Work:
        """Arithmetic and bytes of a step, averaged over the shapes of an epoch as often as they come."""
        batches = epoch_batches(self.split, self.run.train.batch_size, 0, 0)
        shapes = {(bucket, len(rows)): (bucket, rows) for bucket, rows in batches}
        flops = traffic = 0.0
        for key, (bucket, rows) in shapes.items():
            objective = self.objective()
            batch = self.split.batch(bucket, rows)
            share = sum((b, len(r)) == key for b, r in batches) / len(batches)

            def loss(objective: MemoryObjective | DirectObjective = objective, batch: Any = batch) -> Tensor:
                with autocast(self.device, self.precision):
                    return objective(batch)[0]

            with reference_only():
                work = count_work(loss, list(objective.model.parameters()))
            flops, traffic = flops + share * work.flops, traffic + share * work.bytes
        return Work(flops, traffic)


def _paths(plain: bool) -> AbstractContextManager[object]:
    return reference_only() if plain else nullcontext()


def bench_train(bench: Bench, out: Path | None) -> Iterator[str]:
    """A training step with rehearsal: plain eager PyTorch, then the fast ways, and the floor."""
    run = bench.run
    rows: list[dict[str, Any]] = []
    yield f"{bench.preset}, batch {run.train.batch_size}, {bench.precision}, {device_name(bench.device)}"
    ways = WAYS[bench.device.type]
    for way, timing in zip(ways, bench.time_steps(ways), strict=True):
        rows.append(_row(way.name, timing, run.train.batch_size, rows))
        yield _line(rows[-1])
    work = bench.work()
    rates = measure_rates(bench.device, torch.bfloat16 if bench.precision == "bf16" else torch.float32)
    rows.append(_row("floor", Timing(rates.floor_ms(work)), run.train.batch_size, rows))
    yield _line(rows[-1])
    yield f"{_account(work, rates)}; an epoch is {bench.epoch} steps"
    _write(out, "train", bench, rows, _facts(work, rates) | {"steps": bench.steps})


def _account(work: Work, rates: Rates) -> str:
    return (
        f"a step is {work.flops / 1e9:.1f} GFLOP and {work.bytes / 1e9:.2f} GB; this machine showed "
        f"{rates.flops / 1e12:.2f} TFLOP/s and {rates.bytes / 1e12:.3f} TB/s"
    )


def _facts(work: Work, rates: Rates) -> dict[str, Any]:
    return {"flops": round(work.flops), "bytes": round(work.bytes), "tflops": round(rates.flops / 1e12, 3),
            "tb_per_second": round(rates.bytes / 1e12, 4)}  # fmt: skip


def bench_methods(benches: list[Bench], out: Path | None) -> Iterator[str]:
    """A training step of several methods at equal sizes: each plain and in its fastest way, next to the first's."""
    first = benches[0]
    rows: list[dict[str, Any]] = []
    yield f"{first.run.task.name}, batch {first.run.train.batch_size}, {first.precision}, {device_name(first.device)}"
    for bench in benches:
        ways = (Way("eager", plain=True), fastest(bench.run.method, bench.device.type))
        for way, timing in zip(ways, bench.time_steps(ways), strict=True):
            row = _row(f"{bench.run.method}, {way.name}", timing, bench.run.train.batch_size, rows[-1:])
            row["preset"] = bench.preset
            if way.plain:
                row["times_eager"] = 1.0
            rows.append(row)
            yield _line(row)
    fast = {bench.run.method: rows[2 * i + 1]["ms_per_step"] for i, bench in enumerate(benches)}
    reference = next(iter(fast.values()))
    for method, ms in fast.items():
        yield f"{method:<20} {ms / reference:8.2f} times the step of {first.run.method}"
    _write(out, "methods", first, rows, {"steps": first.steps})


def bench_scan(bench: Bench, out: Path | None) -> Iterator[str]:
    """The write scan alone, forward and backward, over the longest streams."""
    model = bench.memory_model()
    rows: list[dict[str, Any]] = []
    longest = len(bench.split.buckets) - 1
    streams = torch.arange(bench.run.train.batch_size) % len(bench.split.buckets[longest])
    stream, machine = bench.split.batch(longest, streams).stream, model.memorizer
    if not isinstance(machine, MemoryMachine | RecentMachine):
        raise BadInput(
            f"{bench.preset} has no write scan to measure; take a preset of rehearsal memory, or bench train."
        )
    with torch.no_grad(), autocast(bench.device, bench.precision):
        features = machine.encoder(model.embed(stream.items), stream.item_mask)
    features = features.detach().requires_grad_()
    b, t = stream.order.shape
    yield f"{bench.preset}, {b} streams of {t} segments, {bench.precision}, {device_name(bench.device)}"

    def loss() -> Tensor:
        with autocast(bench.device, bench.precision):
            first = machine.initial_state(b).slots
            scanned = machine.writer.scan(first, features, *stream[1:4], in_turn=stream.in_turn)
        return scanned.memories.square().mean()

    def scan(plain: bool) -> Repeated:
        def one(_: object) -> None:
            with _paths(plain), products_by_onednn(bench.device):
                loss().backward()

        return Repeated(one, [None], range(bench.steps))

    timings = time_in_turn([partial(scan, True), partial(scan, False)], bench.device)
    for name, timing in zip(("eager loop", "fast scan"), timings, strict=True):
        rows.append(_row(name, timing, b, rows))
        yield _line(rows[-1])
    with reference_only():
        work = count_work(loss, [])
    rates = measure_rates(bench.device, torch.bfloat16 if bench.precision == "bf16" else torch.float32)
    rows.append(_row("floor", Timing(rates.floor_ms(work)), b, rows))
    yield _line(rows[-1])
    yield _account(work, rates)
    _write(out, "scan", bench, rows, _facts(work, rates) | {"segments": t, "steps": bench.steps})


def bench_write(bench: Bench, out: Path | None) -> Iterator[str]:
    """Writing streams into memory: `write` for each segment against `write_stream`, which encodes all at once."""
    model = bench.memory_model().eval()
    stream = bench.split.batch(0, torch.arange(bench.run.train.batch_size)).stream

    @torch.no_grad()
    def one_by_one() -> Tensor:
        state = model.initial_state(len(stream.order))
        for t in range(stream.order.shape[1]):
            index = stream.order[:, t]
            state = model.write(state, stream.items[index], stream.item_mask[index] & stream.segment_mask[:, t, None])
        return model.memory_method.memory(state)

    @torch.no_grad()
    def at_once() -> Tensor:
        return model.memorize(stream).memories[:, -1]

    b, t = stream.order.shape
    yield f"{bench.preset}, {b} streams of {t} segments, {bench.precision}, {device_name(bench.device)}"
    torch.testing.assert_close(one_by_one(), at_once(), rtol=1e-4, atol=1e-5)
    rows: list[dict[str, Any]] = []
    ways = {"segment by segment": one_by_one, "encoded at once": at_once}

    def written(way: Callable[[], Tensor]) -> Repeated:
        return Repeated(lambda _: way(), [None], range(bench.steps))

    timings = time_in_turn([partial(written, way) for way in ways.values()], bench.device)
    for name, timing in zip(ways, timings, strict=True):
        rows.append(_row(name, timing, b, rows))
        yield _line(rows[-1])
    _write(out, "write", bench, rows, {"segments": t, "steps": bench.steps})


def _row(way: str, timing: Timing, streams: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    ms, memory = timing.ms, timing.memory
    first = rows[0]["ms_per_step"] if rows else ms
    spread = (
        {} if timing.least != timing.least else {"ms_least": round(timing.least, 3), "ms_most": round(timing.most, 3)}
    )
    return {
        "way": way,
        "ms_per_step": round(ms, 3),
        **spread,
        "streams_per_second": round(1000 * streams / ms),
        "times_eager": round(first / ms, 2),
        "peak_memory_mb": None if memory != memory else round(memory),
    }


def _line(row: dict[str, Any]) -> str:
    memory = "" if row["peak_memory_mb"] is None else f" {row['peak_memory_mb']:8} MB"
    if "ms_least" in row:
        memory += f"   {row['ms_least']:.3g} to {row['ms_most']:.3g} ms"
    return (
        f"{row['way']:<20} {row['ms_per_step']:10.2f} ms {row['streams_per_second']:10} streams/s "
        f"{row['times_eager']:7.2f} x eager{memory}"
    )


def _write(out: Path | None, kind: str, bench: Bench, rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    if out is None:
        return
    record = {
        "benchmark": kind,
        "made": now(),
        "preset": bench.preset,
        "device": device_name(bench.device),
        "precision": bench.precision,
        "batch_size": bench.run.train.batch_size,
        "versions": versions(),
        "code": code_version(),
        "rows": rows,
        **facts,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")


def device_name(device: torch.device) -> str:
    """What the figures were measured on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def make_bench(preset: str, batch_size: int | None, steps: int | None, device: str, precision: str) -> Bench:
    """A benchmark; without a number of steps, an epoch on a GPU if that is short, and else a few."""
    bench = Bench(preset, batch_size, steps or 0, pick_device(device), precision)
    if not steps:
        bench.steps = min(bench.epoch, 500) if bench.device.type == "cuda" else 5
    return bench
