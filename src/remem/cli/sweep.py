"""`remem sweep TASK --over SETTING VALUES...`: each method at each value of a setting, as in Figures 2 and 3."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from remem.cli.outputs import require_writable
from remem.errors import BadInput
from remem.experiments.series import Series
from remem.experiments.sweeps import FOLDER, format_sweep, make_sweep, tabulate
from remem.settings.run import Run


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train methods at several values of one setting, one run after the other, and print the table.

    Figure 2 is `remem sweep narrativeqa --over K 10 15 20 25`, Figure 3 `remem sweep activitynetqa --over N 10 15 20
    25 30 --methods rm`. A run whose record is there is left out, so the command can be stopped and given again.
    """

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """A task with presets, such as activitynetqa; or synthetic-small or babi-small, for a CPU."""
    over: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SETTING VALUE...")]
    """What to vary: K (memory slots), N (items of a segment), B (history fragments), or any setting that `remem train
    TASK/METHOD --help` lists, such as model.reasoner.num-hops; then its values."""
    methods: tuple[str, ...] = ("rm", "stm", "ct")
    """Methods, a line of the figure each."""
    seed: tuple[int, ...] = (0,)
    """Seeds, one series of runs each."""
    metric: str | None = None
    """Test metric of the table; by default the task's own."""
    table: bool = False
    """Train nothing: print the table from the records there are, of all values where none are given."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Arithmetic of training; auto is bf16 on a GPU, float32 elsewhere."""
    compile: bool | None = None
    """Compile the models' layers; None does so where it pays: on a GPU in long runs and for the rivals of RM, on a CPU
    for memories that read item by item."""
    results: Path = Path("results")
    """Folder of the records, which go to sweeps/TASK in it."""
    runs: Path = Path("runs/sweep")
    """Folder of the models; a history sampler is trained once for all runs that can share it."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""


def main(argv: list[str]) -> None:
    """Train what has no record yet, then print the table."""
    options = tyro.cli(Options, args=argv, prog="remem sweep")
    sweep = make_sweep(options.task, options.over, options.methods)
    if not options.table:
        require_writable(options.results, folder=True)
        require_writable(options.runs, folder=True)
        if not sweep.values:
            raise BadInput(f"--over {options.over[0]} needs values, such as `--over K 10 15 20 25`.")
        runs = [_executed(run, options) for seed in options.seed for run in sweep.runs(seed)]
        Series(results=options.results / FOLDER, folder=options.runs, device=options.device).train(runs)
    print(format_sweep(tabulate(sweep, options.results, options.metric), "md"))


def _executed(run: Run, options: Options) -> Run:
    """How a run is executed is no part of its name."""
    return replace(run, train=replace(run.train, precision=options.precision, compile=options.compile))
