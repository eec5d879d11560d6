"""`remem bench`: speed, before and after in one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from remem.cli.outputs import require_writable
from remem.errors import BadInput

HELP = """usage: remem bench train [PRESET] [OPTIONS]    a training step: plain eager PyTorch, the fast ways, the floor
       remem bench train --method rm dnc ...   a training step of several methods, next to each other
       remem bench scan [PRESET] [OPTIONS]     the write scan alone, forward and backward: the plain loop, the fast scan
       remem bench write [PRESET] [OPTIONS]    writing a stream: segment by segment, or all segments encoded at once
       remem bench service [MODEL] [OPTIONS]   a server under load, and what reading the raw history again would cost"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is measured, and where."""

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")] = "synthetic/rm"
    """Preset whose model and data are measured."""
    batch_size: int | None = None
    """Streams a step; by default the preset's."""
    steps: int | None = None
    """Steps timed for each way, the ways in turn: on a GPU in five rounds, by default of an epoch; on a CPU 5 steps.
    The median is shown."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    precision: Literal["float32", "bf16"] = "float32"
    """Arithmetic of the forward pass."""
    out: Path | None = None
    """File for the figures as JSON."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """A training step with rehearsal: plain eager PyTorch, the fast ways, and the floor of its arithmetic and bytes."""

    method: tuple[str, ...] = ()
    """Methods to compare on the preset's task, at equal sizes, with the first."""


@dataclass(frozen=True, kw_only=True)
class ScanOptions(Options):
    """The write scan alone, forward and backward: the plain loop, the fast scan, and the floor."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions(Options):
    """Writing streams into memory: segment by segment, or all segments encoded at once."""


OPTIONS = {"train": TrainOptions, "scan": ScanOptions, "write": WriteOptions}


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Load on a real server, then the memory against re-reading the raw history from the same store."""

    model: tyro.conf.Positional[Path] = Path("models/synthetic")
    """Folder of a model of the synthetic task."""
    seconds: float = 60.0
    """How long each load lasts."""
    rate: float = 800.0
    """Mixed requests a second, 70 % appends and 30 % queries."""
    event_rate: float = 10_000.0
    """Events a second in batches of 100."""
    long: int = 1_000_000
    """Events of the long stream, whose latency is set beside that of 1,000; filling it takes minutes."""
    parts: tuple[Literal["load", "flat", "reread"], ...] = ("load", "flat", "reread")
    """What to measure: load on a server, latency over a stream's length, the memory against the raw history."""
    quick: bool = False
    """A few seconds only: shows that everything runs."""
    out: Path | None = None
    """File for the figures as JSON; parts that are not measured again stay in it."""


def main(argv: list[str]) -> None:
    """Print a table of milliseconds."""
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP)
        return
    if argv[0] == "service":
        _bench_service(tyro.cli(ServiceOptions, args=argv[1:], prog="remem bench service"))
        return
    if argv[0] not in OPTIONS:
        raise BadInput(f"There is no benchmark {argv[0]!r}; expected train, scan, write or service.")
    options: Options = tyro.cli(OPTIONS[argv[0]], args=argv[1:], prog=f"remem bench {argv[0]}")
    require_writable(options.out)
    for name, number in (("--batch-size", options.batch_size), ("--steps", options.steps)):
        if number is not None and number < 1:
            raise BadInput(f"{name} is {number}; expected at least 1.")
    from remem.experiments import bench

    def bench_of(preset: str) -> bench.Bench:
        return bench.make_bench(preset, options.batch_size, options.steps, options.device, options.precision)

    if isinstance(options, TrainOptions) and options.method:
        task = options.preset.partition("/")[0]
        for row in bench.bench_methods([bench_of(f"{task}/{method}") for method in options.method], options.out):
            print(row, flush=True)
        return
    measure = {"train": bench.bench_train, "scan": bench.bench_scan, "write": bench.bench_write}[argv[0]]
    for row in measure(bench_of(options.preset), options.out):
        print(row, flush=True)


def _bench_service(options: ServiceOptions) -> None:
    from remem.server.bench.report import QUICK, Plan, bench_service
    from remem.training.record import code_version

    require_writable(options.out)
    if options.long <= 1000 or min(options.seconds, options.rate, options.event_rate) <= 0:
        raise BadInput("Expected more than 0 seconds and requests, and a long stream of more than 1,000 events.")
    chosen = Plan(seconds=options.seconds, rate=options.rate, event_rate=options.event_rate, flat=(1000, options.long))
    plan = QUICK if options.quick else chosen
    for line in bench_service(options.model, plan, options.parts, options.out, code_version()):
        print(line, flush=True)
