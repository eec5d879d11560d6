"""`remem ablate TASK`: `rm`, `rm-paper`, and `rm` with each change undone alone, one short run each."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from remem.errors import BadInput
from remem.experiments.ablations import Ablation, check_same, find_ablation, make_rows
from remem.experiments.records import Record, publish, read_records
from remem.experiments.tables import format_lines
from remem.settings.run import Run


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
        for seed in options.seed:
            _train_series({name: replace(run, seed=seed) for name, run in rows.items()}, options)
    _print_table(ablation, list(rows.values()), options)


def _train_series(rows: dict[str, Run], options: Options) -> None:
    """The rows of one seed that have no record yet."""
    records = {(r["method"], r["seed"]): r for r in read_records(options.results, options.task)}
    waiting: list[Run] = []
    # all refusals come before anything is spent
    for name, run in rows.items():
        _check_folder(run, _folder(run, options))
        record = records.get((run.method, run.seed))
        if record is not None:
            check_same(run, record["config"], f"The record of {run.method}, seed {run.seed},")
        if options.only and name not in options.only:
            continue
        if record is not None:
            print(f"{run.method} seed {run.seed}: recorded already, skipped", file=sys.stderr)
            continue
        waiting.append(run)
    for number, run in enumerate(waiting, start=1):
        print(f"{run.method} seed {run.seed}: run {number} of {len(waiting)}", file=sys.stderr)
        _train(_sharing_sampler(run, list(rows.values()), options), options)


def _folder(run: Run, options: Options) -> Path:
    return options.runs / f"{run.task.name}-{run.method}-s{run.seed}"


def _check_folder(run: Run, folder: Path) -> None:
    path = folder / "config.json"
    if not path.exists():
        return
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is damaged ({error}).") from None
    check_same(run, config, str(folder))


def _sharing_sampler(run: Run, rows: list[Run], options: Options) -> Run:
    """The run with the history sampler of its series, if one is trained; it depends on none of the changes."""
    if not run.model.rehearsal.enabled:
        return run
    folders = [_folder(row, options) for row in rows]
    trained = next((folder for folder in folders if (folder / "sampler.safetensors").exists()), None)
    if trained is None or trained == _folder(run, options):
        return run
    return replace(run, model=replace(run.model, rehearsal=replace(run.model.rehearsal, sampler_from=trained)))


def _train(run: Run, options: Options) -> None:
    from remem.training.run import Trainer, pick_device

    # a run that was stopped goes on from its checkpoint
    _, record = Trainer(run, _folder(run, options), device=pick_device(options.device)).train(resume=True)
    path = publish(record, options.results)
    print(f"record {path}, {record['cost']['wall_seconds']:.0f} s", file=sys.stderr)


def _print_table(ablation: Ablation, runs: list[Run], options: Options) -> None:
    records: list[Record] = read_records(options.results, options.task)
    header, rows = make_rows(ablation, runs, records)
    if not rows:
        raise BadInput(f"There are no records of this ablation in {options.results}; train it without --table.")
    print(format_lines(header, rows, "md"))
