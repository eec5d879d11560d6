"""`remem horizon MODEL`: what a trained memory still knows after ever more segments."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from remem.cli.outputs import require_writable
from remem.experiments.horizon import keep, table_of
from remem.experiments.sweeps import format_sweep
from remem.header import model_path, read_header


@dataclass(frozen=True, kw_only=True)
class Options:
    """Tell a memory one thing, then ever more that has nothing to do with it, and ask.

    The streams are made for it: facts of the synthetic task, or stories of who is where for a model of bAbI. Most are
    longer than any that was trained on.
    """

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Folder of a run or of a saved model."""
    beyond: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
    """Segments between the evidence and the question, one measurement each."""
    streams: int = 200
    """Streams of each measurement."""
    batch_size: int = 32
    """Streams at a time."""
    results: Path | None = None
    """Folder of the records to keep it in, for `remem plot horizon`; without it nothing is written."""
    format: Literal["md", "csv", "json"] = "md"
    """How to print it."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""


def main(argv: list[str]) -> None:
    """Measure, tell, keep."""
    options = tyro.cli(Options, args=argv, prog="remem horizon")
    require_writable(options.results, folder=True)
    read_header(model_path(options.model), "run")  # what is no model is refused before torch is loaded
    from remem.training.horizon import measure
    from remem.training.run import pick_device

    def heard(count: int, share: float) -> None:
        print(f"after {count} segments {share:.1f} %", file=sys.stderr, flush=True)

    record = measure(
        options.model,
        options.beyond,
        streams=options.streams,
        batch_size=options.batch_size,
        device=pick_device(options.device),
        heard=heard,
    )
    if options.results:
        print(f"record {keep(record, options.results)}", file=sys.stderr)
    if options.format == "json":
        print(json.dumps(record, indent=1))
        return
    print(format_sweep(table_of(record["task"], {record["method"]: [record]}), options.format))
