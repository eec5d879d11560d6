"""`remem ablate TASK`: `rm`, the paper's own ablations, and `rm` with each change undone alone, one short run each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from remem.cli.outputs import require_writable
from remem.errors import BadInput
from remem.experiments.ablations import find_ablation, make_rows
from remem.experiments.records import read_records
from remem.experiments.series import Series
from remem.experiments.tables import format_lines


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train every row of a small ablation, one after the other, and print the table.

    A run whose record is there is left out, so the command can be stopped and given again.
    """

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """synthetic-small or babi-small."""
    seed: tuple[int, ...] = (0,)
    """Seeds, one series of runs each."""
    only: tuple[str, ...] = ()
    """Train these rows alone, such as rm or rm-without-pre-norm."""
    steps: int | None = None
    """Optimiser steps of each run, instead of the task's own; the rows are named after it."""
    table: bool = False
    """Train nothing: print the table from the records there are."""
    results: Path = Path("results")
    """Folder of the records."""
    runs: Path = Path("runs/ablate")
    """Folder of the models; the history sampler is trained in the first and shared by all."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""


def main(argv: list[str]) -> None:
    """Train what has no record yet, then print the table."""
    options = tyro.cli(Options, args=argv, prog="remem ablate")
    ablation = find_ablation(options.task)
    if options.steps is not None and options.steps < 1:
        raise BadInput(f"--steps is {options.steps}; expected at least 1.")
    rows = ablation.runs(options.steps)
    if unknown := [name for name in options.only if name not in rows]:
        raise BadInput(f"{options.task} has no row {unknown[0]!r}. There are: {', '.join(rows)}.")
    if not options.table:
        require_writable(options.results, folder=True)
        require_writable(options.runs, folder=True)
        runs = [replace(run, seed=seed) for seed in options.seed for run in rows.values()]
        chosen = {rows[name].method for name in options.only or rows}
        series = Series(results=options.results, folder=options.runs, device=options.device)
        series.train(runs, only=[run for run in runs if run.method in chosen])
    header, lines = make_rows(ablation, list(rows.values()), read_records(options.results, options.task))
    if not lines:
        raise BadInput(f"There are no records of this ablation in {options.results}; train it without --table.")
    print(format_lines(header, lines, "md"))
