"""A task's table: one row per method, every number read from records."""

from __future__ import annotations

import csv
import io
import statistics
from typing import Any

from remem.experiments.paper import LOWER_IS_BETTER, PAPER, TABLE_METRICS
from remem.experiments.records import Record

Table = dict[str, Any]


def make_table(task: str, records: list[Record]) -> Table:
    """Mean, spread and best over seeds for each method of ours or the paper's, with the paper's number."""
    by_method: dict[str, list[Record]] = {}
    for record in records:
        by_method.setdefault(record["method"], []).append(record)
    methods = [*by_method, *(method for method in PAPER[task] if method not in by_method)]
    return {"task": task, "rows": [_row(task, method, by_method.get(method, [])) for method in _ordered(task, methods)]}


def _ordered(task: str, methods: list[str]) -> list[str]:
    """The paper's order first, then ours by name; a method without a number of ours or theirs has no row."""
    paper = list(PAPER[task])
    return sorted(methods, key=lambda m: (paper.index(m) if m in paper else len(paper), m))


def _row(task: str, method: str, records: list[Record]) -> dict[str, Any]:
    metrics = {}
    for metric in TABLE_METRICS[task]:
        values = [r["metrics"]["test"][metric] for r in records if metric in r["metrics"]["test"]]
        metrics[metric] = summary(metric, values) | {"paper": PAPER[task].get(method, {}).get(metric)}
    sizes = [(r["model"]["params"], r["model"]["state_floats"]) for r in records]
    params, floats = sizes[0] if sizes else (None, None)
    return {"method": method, "metrics": metrics, "params": params, "state_floats": floats}


def summary(metric: str, values: list[float]) -> dict[str, Any]:
    """Mean, standard deviation (of the sample; none for one seed), best, and number of seeds."""
    if not values:
        return {"mean": None, "std": None, "best": None, "n": 0}
    best = min(values) if metric in LOWER_IS_BETTER else max(values)
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std, "best": best, "n": len(values)}


def format_table(table: Table, style: str) -> str:
    """The table as Markdown or CSV."""
    metrics = TABLE_METRICS[table["task"]]
    header = ["method"]
    for metric in metrics:
        header += [f"{metric} mean", "std", "best", "paper"]
    header += ["seeds", "parameters", "floats/stream"]
    rows = [_cells(row, metrics) for row in table["rows"]]
    if style == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([header, *rows])
        return out.getvalue().rstrip("\n")
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(row: dict[str, Any], metrics: tuple[str, ...]) -> list[str]:
    cells = [row["method"]]
    for metric in metrics:
        values = row["metrics"][metric]
        cells += [_number(values[key]) for key in ("mean", "std", "best", "paper")]
    seeds = max(row["metrics"][metric]["n"] for metric in metrics)
    return [*cells, str(seeds), *(f"{v:,}" if v else "–" for v in (row["params"], row["state_floats"]))]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
