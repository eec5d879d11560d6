"""`remem plot`: what the records say, as a table and as a drawing."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from remem.errors import BadInput
from remem.experiments import horizon
from remem.experiments.forgetting import format_forgetting, make_forgetting
from remem.experiments.paper import PAPER
from remem.experiments.records import read_record
from remem.experiments.sweeps import format_sweep, make_sweep, tabulate
from remem.experiments.tables import Runs, Table, format_parts, make_parts, ordered

HELP = """usage: remem plot forgetting TASK [--out FILE] [OPTIONS]    accuracy by age of the evidence, in segments
       remem plot curves TASK --out FILE [OPTIONS]          learning curves: score, losses, use of the slots
       remem plot tasks babi [--out FILE] [OPTIONS]         test error of each bAbI task
       remem plot sweep TASK --over K [--out FILE] [OPTIONS] test metric by the values of a setting (`remem sweep`)
       remem plot horizon TASK [--out FILE] [OPTIONS]       accuracy by segments since the evidence (`remem horizon`)

FILE ends in .svg, .png or .pdf; drawing needs matplotlib: pip install 'remem[plot]'."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which records."""

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """Task of the records, such as synthetic or babi."""
    methods: tuple[str, ...] = ()
    """Methods to show, in this order; by default all that have records."""
    results: Path = Path("results")
    """Folder of the records."""


@dataclass(frozen=True, kw_only=True)
class Forgetting(Selection):
    """Accuracy by age of the evidence: the segments read since the one in which it began."""

    out: Path | None = None
    """Drawing to write (.svg, .png, .pdf); without it there is only the table."""
    format: Literal["md", "csv", "json"] = "md"
    """How to print the table."""
    bin_width: int | None = None
    """Ages counted together; by default as few as give at most ten rows."""


@dataclass(frozen=True, kw_only=True)
class Curves(Selection):
    """Learning curves over the steps of training: one thin line a run, one colour a method."""

    out: Path
    """Drawing to write (.svg, .png, .pdf)."""
    metrics: tuple[str, ...] = ()
    """Panels; by default the validation score, recollection loss, slot spread, write and read entropy."""


@dataclass(frozen=True, kw_only=True)
class Tasks(Selection):
    """Test error of each bAbI task."""

    out: Path | None = None
    """Drawing to write (.svg, .png, .pdf); without it there is only the table."""
    format: Literal["md", "csv", "json"] = "md"
    """How to print the table."""


@dataclass(frozen=True, kw_only=True)
class Swept(Selection):
    """Test metric by the values of one setting: a line a method, with a band of one standard deviation over seeds."""

    over: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SETTING VALUE...")]
    """The setting: K, N, B or a dotted name, as `remem sweep` takes it; then values, by default all with records."""
    metric: str | None = None
    """Test metric to show; by default the task's own."""
    out: Path | None = None
    """Drawing to write (.svg, .png, .pdf); without it there is only the table."""
    format: Literal["md", "csv", "json"] = "md"
    """How to print the table."""


@dataclass(frozen=True, kw_only=True)
class Horizon(Selection):
    """What trained memories still know after ever more segments, as `remem horizon` measured it."""

    out: Path | None = None
    """Drawing to write (.svg, .png, .pdf); without it there is only the table."""
    format: Literal["md", "csv", "json"] = "md"
    """How to print the table."""


def main(argv: list[str]) -> None:
    """Find the verb and run it."""
    verbs = {"forgetting": _forgetting, "curves": _curves, "tasks": _tasks, "sweep": _sweep, "horizon": _horizon}
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP)
        return
    if argv[0] not in verbs:
        raise BadInput(f"There is no `remem plot {argv[0]}`. There are: {', '.join(verbs)}.")
    verbs[argv[0]](argv[1:])


def _forgetting(argv: list[str]) -> None:
    options = tyro.cli(Forgetting, args=argv, prog="remem plot forgetting")
    table = make_forgetting(options.task, _runs(options), options.bin_width)
    if options.out:
        _need_matplotlib()
        from remem.experiments import plots

        plots.save(plots.draw_forgetting(table), options.out)
        _say_drawn(options.out)
    print(json.dumps(table, indent=1) if options.format == "json" else format_forgetting(table, options.format))


def _curves(argv: list[str]) -> None:
    options = tyro.cli(Curves, args=argv, prog="remem plot curves")
    runs = _runs(options)
    _need_matplotlib()
    from remem.experiments import plots

    plots.save(plots.draw_curves(options.task, runs, options.metrics), options.out)
    _say_drawn(options.out)


def _tasks(argv: list[str]) -> None:
    options = tyro.cli(Tasks, args=argv, prog="remem plot tasks")
    table = make_parts(options.task, _runs(options))
    if options.out:
        _need_matplotlib()
        from remem.experiments import plots

        plots.save(plots.draw_parts(table), options.out)
        _say_drawn(options.out)
    print(json.dumps(table, indent=1) if options.format == "json" else format_parts(table, options.format))


def _sweep(argv: list[str]) -> None:
    options = tyro.cli(Swept, args=argv, prog="remem plot sweep")
    _show_sweep(
        tabulate(make_sweep(options.task, options.over, options.methods), options.results, options.metric), options
    )


def _horizon(argv: list[str]) -> None:
    options = tyro.cli(Horizon, args=argv, prog="remem plot horizon")
    _show_sweep(horizon.tabulate(options.results, options.task, options.methods), options)


def _show_sweep(table: Table, options: Swept | Horizon) -> None:
    if options.out:
        _need_matplotlib()
        from remem.experiments import plots

        plots.save(plots.draw_sweep(table), options.out)
        _say_drawn(options.out)
    print(json.dumps(table, indent=1) if options.format == "json" else format_sweep(table, options.format))


def _runs(options: Selection) -> Runs:
    """The chosen methods' records with their files: those named, else all in the order of the task's table."""
    task, results = options.task, options.results
    if not results.is_dir():
        raise BadInput(f"There is no folder {results} with records; train something, or name it with --results.")
    # records lie in TASK/METHOD/; other results, such as benchmarks, do not
    tasks = [*PAPER, *sorted({path.parts[-3] for path in results.glob("*/*/*.json")} - set(PAPER))]
    if task not in tasks:
        raise BadInput(f"There is no task {task!r}. There are: {', '.join(tasks)}.")
    found: Runs = {}
    for path in sorted((results / task).rglob("*.json")):
        record = read_record(path)
        found.setdefault(record["method"], []).append((path, record))
    if not found:
        raise BadInput(
            f"There are no records of {task} in {results}; train something, or name a folder with --results."
        )
    missing = [method for method in options.methods if method not in found]
    if missing:
        raise BadInput(f"There are no records of {missing[0]!r} for {task}. There are: {', '.join(found)}.")
    return {method: found[method] for method in options.methods or ordered(task, found)}


def _need_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput("Drawing needs matplotlib; install it with `pip install 'remem[plot]'`.")


def _say_drawn(path: Path) -> None:
    # not among the output, which may be CSV or JSON for another program
    print(f"drawn in {path}", file=sys.stderr)
