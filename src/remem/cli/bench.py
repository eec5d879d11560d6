"""`remem bench`: speed, before and after in one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from remem.errors import BadInput

HELP = """usage: remem bench train [PRESET] [OPTIONS]    a training step: plain eager PyTorch, the fast ways, the floor
       remem bench train --method rm dnc ...   a training step of several methods, next to each other
       remem bench scan [PRESET] [OPTIONS]     the write scan alone, forward and backward: the plain loop, the fast scan
       remem bench write [PRESET] [OPTIONS]    writing a stream: segment by segment, or all segments encoded at once"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure, and where."""

    preset: tyro.conf.Positional[str] = "synthetic/rm"
    """Preset whose model and data are measured."""
    batch_size: int | None = None
    """Streams a step; by default the preset's."""
    steps: int | None = None
    """Steps timed for each way, drawn as in training; the mean is shown. By default an epoch on a GPU, 5 on a CPU."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    precision: Literal["float32", "bf16"] = "float32"
    """Arithmetic of the forward pass."""
    method: tuple[str, ...] = ()
    """Methods that `bench train` compares on the preset's task, at equal sizes, with the first."""
    out: Path | None = None
    """File for the figures as JSON."""


def main(argv: list[str]) -> None:
    """Print a table of milliseconds."""
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP)
        return
    if argv[0] not in ("train", "scan", "write"):
        raise BadInput(f"There is no benchmark {argv[0]!r}; expected train, scan or write.")
    options = tyro.cli(Options, args=argv[1:], prog=f"remem bench {argv[0]}")
    from remem.experiments import bench

    def bench_of(preset: str) -> bench.Bench:
        return bench.make_bench(preset, options.batch_size, options.steps, options.device, options.precision)

    if options.method:
        if argv[0] != "train":
            raise BadInput(f"--method compares training steps; `remem bench {argv[0]}` takes one preset.")
        task = options.preset.partition("/")[0]
        for row in bench.bench_methods([bench_of(f"{task}/{method}") for method in options.method], options.out):
            print(row, flush=True)
        return
    measure = {"train": bench.bench_train, "scan": bench.bench_scan, "write": bench.bench_write}[argv[0]]
    for row in measure(bench_of(options.preset), options.out):
        print(row, flush=True)
