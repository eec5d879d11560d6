"""One setting taken through several values, for several methods: Figures 2 (K) and 3 (N) of the paper.

A value that the preset has by itself is a plain run of the method, and so a point of every sweep.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remem.errors import BadInput
from remem.experiments.ablations import ABLATIONS
from remem.experiments.paper import TABLE_METRICS
from remem.experiments.presets import PRESETS
from remem.experiments.records import Record, read_records
from remem.experiments.tables import Table, format_columns, spread
from remem.experiments.variation import differences, leaves, name_variation, with_field
from remem.settings.run import Run

FOLDER = "sweeps"  # of the records, inside the folder of all results
# the paper's symbols: the setting, and what it is
SYMBOLS = {
    "K": ("model.machine.num_slots", "memory slots (K)"),
    "N": ("task.segment_len", "items of a segment (N)"),
    "B": ("model.rehearsal.num_fragments", "history fragments (B)"),
}


def methods_of(task: str) -> dict[str, Run]:
    """All methods of a task as they are without a sweep: its presets, or its reduced runs."""
    if task in ABLATIONS:
        return ABLATIONS[task].runs() | ABLATIONS[task].rivals()
    runs = {run.method: run for run in PRESETS.values() if run.task.name == task}
    if not runs:
        tasks = dict.fromkeys([*ABLATIONS, *(run.task.name for run in PRESETS.values())])
        raise BadInput(f"There is no task {task!r}. There are: {', '.join(tasks)}.")
    return runs


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is varied, over which values, for which methods."""

    task: str
    field: str
    """Dotted name of a setting."""
    values: tuple[Any, ...]
    methods: tuple[str, ...]

    def runs(self, seed: int = 0) -> list[Run]:
        """A run for each value of each method; other values than the method's own show in its name."""
        presets, runs = methods_of(self.task), []
        for method in self.methods:
            row = [name_variation(presets[method], with_field(presets[method], self.field, v)) for v in self.values]
            if len({run.method for run in row}) < len(row) or any(run.task.name != self.task for run in row):
                raise BadInput(
                    f"{self.field} over {', '.join(map(str, self.values))} gives runs that can't be told apart: give "
                    "each value once, of a setting that changes what is trained."
                )
            runs += [with_field(run, "seed", seed) for run in row]
        return runs


def make_sweep(task: str, over: Sequence[str], methods: Sequence[str]) -> Sweep:
    """A sweep from the words of a command: a setting's name, or its symbol in the paper, then values."""
    if not over:
        raise BadInput("--over needs the name of a setting, such as K or model.machine.num_slots, and its values.")
    presets = methods_of(task)
    if unknown := [method for method in methods if method not in presets]:
        raise BadInput(f"{task} has no method {unknown[0]!r}. There are: {', '.join(presets)}.")
    field = SYMBOLS[over[0]][0] if over[0] in SYMBOLS else over[0].replace("-", "_")
    asked = [presets[method] for method in methods or presets]
    if not any(field in leaves(run) for run in asked):
        with_field(asked[0], field, None)  # refuses, and names what is like it
    return Sweep(task=task, field=field, values=tuple(map(_parse, over[1:])), methods=tuple(methods))


def _parse(text: str) -> Any:
    """A number, true, false or null as in JSON; anything else is a word."""
    try:
        return _hashable(json.loads(text))
    except json.JSONDecodeError:
        return text


def _hashable(value: Any) -> Any:
    """A setting may be a list; as the value of a point it is a tuple."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers first; words, lists and nothing at all have no order with them, nor with each other."""
    number = isinstance(value, int | float)
    return not number, value if number else 0.0, str(value)


def tabulate(sweep: Sweep, results: Path, metric: str | None = None) -> Table:
    """Test metric by value and method, mean and spread over seeds; without values or methods, all that have records."""
    found = _points(sweep, read_records(results / FOLDER, sweep.task))
    methods = [m for m in sweep.methods or methods_of(sweep.task) if any(m == method for method, _ in found)]
    values = sweep.values or tuple(sorted({value for _, value in found}, key=_order))
    chosen = [found[point] for point in ((m, v) for m in methods for v in values) if point in found]
    if not chosen:
        raise BadInput(
            f"There are no records of {sweep.task} over {sweep.field} in {results / FOLDER}; `remem sweep` makes them."
        )
    metric = metric or main_metric(sweep.task)
    tests = [record["metrics"]["test"] for records in chosen for record in records]
    if any(metric not in test for test in tests):
        raise BadInput(f"There is no test metric {metric!r} in these records. There are: {', '.join(tests[0])}.")
    cells = {
        point: spread([record["metrics"]["test"][metric] for record in found.get(point, [])])
        for point in ((m, v) for m in methods for v in values)
    }
    return {
        "task": sweep.task,
        "field": sweep.field,
        "label": label(sweep.field),
        "metric": metric,
        "seeds": {m: max(cells[m, v]["n"] for v in values) for m in methods},
        "rows": [{"value": v, "cells": {m: cells[m, v] for m in methods}} for v in values],
    }


def _points(sweep: Sweep, records: list[Record]) -> dict[tuple[str, Any], list[Record]]:
    """Records by method and value: those that differ from their method's own run in the swept setting alone."""
    points: dict[tuple[str, Any], list[Record]] = {}
    presets = methods_of(sweep.task)
    for record in records:
        method = record["method"].partition("[")[0]
        preset = presets.get(method)
        if preset is None or sweep.field not in leaves(preset):
            continue
        differing = differences(preset, record["config"])
        if set(differing) <= {sweep.field}:
            value = differing.get(sweep.field, leaves(preset)[sweep.field])
            points.setdefault((method, _hashable(value)), []).append(record)
    return points


def main_metric(task: str) -> str:
    """What a task is judged by first."""
    if task in ABLATIONS:
        return ABLATIONS[task].curve
    # early and later evidence together
    return "accuracy" if "later" in TABLE_METRICS[task] else TABLE_METRICS[task][0]


def label(field: str) -> str:
    """A setting in words, where the paper has a symbol for it; else its name."""
    return next((words for name, words in SYMBOLS.values() if name == field), field)


def format_sweep(table: Table, style: str) -> str:
    """One row per value, as Markdown or CSV."""
    rows = [(str(row["value"]), row["cells"]) for row in table["rows"]]
    return format_columns(f"{table['label']}: test {table['metric']}", table["seeds"], rows, style)
