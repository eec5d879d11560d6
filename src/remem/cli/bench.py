"""`remem bench`: speed, before and after in one run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

import tyro

from remem.errors import BadInput

HELP = """usage: remem bench train [PRESET] [OPTIONS]    a training step: eager, captured, captured and compiled
       remem bench write [PRESET] [OPTIONS]    writing a stream: segment by segment, or all segments encoded at once"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure, and where."""

    preset: tyro.conf.Positional[str] = "synthetic/rm"
    """Preset whose model and data are measured."""
    batch_size: int | None = None
    """Streams a step; by default the preset's."""
    steps: int = 20
    """Steps timed for each way; the median is shown."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    precision: Literal["float32", "bf16"] = "float32"
    """Arithmetic of the forward pass."""


def main(argv: list[str]) -> None:
    """Print a table of milliseconds."""
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP)
        return
    if argv[0] not in ("train", "write"):
        raise BadInput(f"There is no benchmark {argv[0]!r}; expected train or write.")
    options = tyro.cli(Options, args=argv[1:], prog=f"remem bench {argv[0]}")
    from remem.experiments import bench

    measure = bench.bench_train if argv[0] == "train" else bench.bench_write
    for row in measure(options.preset, options.batch_size, options.steps, options.device, options.precision):
        print(row)
        sys.stdout.flush()
