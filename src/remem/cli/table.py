"""`remem table TASK`: one row per method, ours beside the paper's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from remem.errors import BadInput
from remem.experiments.paper import PAPER
from remem.experiments.records import read_records
from remem.experiments.tables import format_brief, format_table, make_table


@dataclass(frozen=True, kw_only=True)
class Options:
    """Print a task's table from the records in a folder."""

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """synthetic, babi, narrativeqa, activitynetqa, lastfm, assistments, xlong or clicks."""
    format: Literal["md", "csv", "json"] = "md"
    """How to print it."""
    brief: bool = False
    """Only what was reached and after how many steps, of the methods with runs; not what it costs."""
    results: Path = Path("results")
    """Folder of the records."""


def main(argv: list[str]) -> None:
    """Read the records, print the table."""
    options = tyro.cli(Options, args=argv, prog="remem table")
    if options.task not in PAPER:
        raise BadInput(f"There is no task {options.task!r}. There are: {', '.join(PAPER)}.")
    if options.brief and options.format == "json":
        raise BadInput("--brief leaves columns out of md and csv; JSON holds them all, so give one or the other.")
    if not options.results.is_dir():
        raise BadInput(
            f"There is no folder {options.results} with records; train something, or name it with --results."
        )
    table = make_table(options.task, read_records(options.results, options.task))
    made = format_brief if options.brief else format_table
    print(json.dumps(table, indent=1) if options.format == "json" else made(table, options.format))
