"""A task's table: one row per method, every number read from records."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from remem.errors import BadInput
from remem.experiments.paper import LOWER_IS_BETTER, PAPER, TABLE_METRICS
from remem.experiments.records import Record

Table = dict[str, Any]
Cells = dict[str, dict[str, Any]]  # method -> mean, std, n
Runs = dict[str, list[tuple[Path, Record]]]  # method -> its records with their files


def make_table(task: str, records: list[Record]) -> Table:
    """Mean, spread and best over seeds for each method of ours or the paper's, with the paper's number."""
    by_method: dict[str, list[Record]] = {}
    for record in records:
        by_method.setdefault(record["method"], []).append(record)
    methods = [*by_method, *(method for method in PAPER[task] if method not in by_method)]
    return {"task": task, "rows": [_row(task, method, by_method.get(method, [])) for method in ordered(task, methods)]}


def ordered(task: str, methods: Iterable[str]) -> list[str]:
    """The paper's order first, then ours by name; a method without a number of ours or theirs has no row."""
    paper = list(PAPER.get(task, {}))
    return sorted(methods, key=lambda m: (paper.index(m) if m in paper else len(paper), m))


def _row(task: str, method: str, records: list[Record]) -> dict[str, Any]:
    metrics = {}
    for metric in TABLE_METRICS[task]:
        values = [r["metrics"]["test"][metric] for r in records if metric in r["metrics"]["test"]]
        metrics[metric] = summary(metric, values) | {"paper": PAPER[task].get(method, {}).get(metric)}
    sizes = [(r["model"]["params"], r["model"]["state_floats"]) for r in records]
    params, floats = sizes[0] if sizes else (None, None)
    seconds = spread([r["cost"]["train_seconds"] for r in records if "cost" in r])["mean"]
    queries = [r["cost"]["query"] for r in records if "query" in r.get("cost", {})]
    return {
        "method": method,
        "metrics": metrics,
        "params": params,
        "state_floats": floats,
        "train_seconds": None if seconds is None else round(seconds),
        # what one question takes: the same for all seeds, but for the time
        "query_flops": queries[0]["flops"] if queries else None,
        "query_reads": queries[0]["reads"] if queries else None,
        "query_ms": spread([query["milliseconds"] for query in queries])["mean"],
    }


def summary(metric: str, values: list[float]) -> dict[str, Any]:
    """Mean, standard deviation (of the sample; none for one seed), best, and number of seeds."""
    best = (min if metric in LOWER_IS_BETTER else max)(values) if values else None
    both = spread(values)
    return {"mean": both["mean"], "std": both["std"], "best": best, "n": both["n"]}


def spread(values: list[float]) -> dict[str, Any]:
    """Mean and standard deviation of the sample (none for one value), and how many values there are."""
    mean = statistics.fmean(values) if values else None
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": mean, "std": std, "n": len(values)}


def make_parts(task: str, runs: Runs) -> Table:
    """Test error of each bAbI task, their mean, and how many fail: mean and spread over each method's seeds."""
    tests = {method: [_test_errors(path, record) for path, record in group] for method, group in runs.items()}
    names = {name for group in tests.values() for test in group for name in test if _is_part(name)}

    def cells(metric: str) -> Cells:
        return {m: spread([test[metric] for test in group if metric in test]) for m, group in tests.items()}

    return {
        "task": task,
        "seeds": {method: len(group) for method, group in runs.items()},
        "rows": [{"part": name, "cells": cells(name)} for name in sorted(names, key=lambda name: int(name[2:]))],
        "mean_error": cells("error"),
        "failed_tasks": cells("failed_tasks"),
    }


def _is_part(metric: str) -> bool:
    return re.fullmatch(r"qa\d+", metric) is not None


def _test_errors(path: Path, record: Record) -> dict[str, float]:
    test: dict[str, float] = record["metrics"].get("test", {})
    if not any(_is_part(metric) for metric in test):
        raise BadInput(f"{path} holds no error of single tasks (qa1 to qa20); only records of babi do.")
    return test


def format_parts(table: Table, style: str) -> str:
    """One row per bAbI task, as Markdown or CSV."""
    rows = [(row["part"], row["cells"]) for row in table["rows"]]
    rows += [("mean error", table["mean_error"]), ("failed tasks", table["failed_tasks"])]
    return format_columns("error (%)", table["seeds"], rows, style)


def format_table(table: Table, style: str) -> str:
    """The table as Markdown or CSV."""
    metrics = TABLE_METRICS[table["task"]]
    header = ["method"]
    for metric in metrics:
        header += [f"{metric} mean", "std", "best", "paper"]
    header += ["seeds", "parameters", "floats/stream", "training s"]
    rows = [_cells(row, metrics) for row in table["rows"]]
    if any(row["query_flops"] is not None for row in table["rows"]):
        header += ["query reads", "query MFLOP", "query ms"]
        rows = [cells + _query_cells(row) for cells, row in zip(rows, table["rows"], strict=True)]
    return format_lines(header, rows, style)


def format_columns(corner: str, seeds: dict[str, int], rows: list[tuple[str, Cells]], style: str) -> str:
    """One column per method: mean ± spread (questions) in Markdown; in CSV each number has a column of its own."""
    if style == "csv":
        keys = [
            key for key in ("mean", "std", "n", "questions") if any(key in c for _, row in rows for c in row.values())
        ]
        header = [corner, *(f"{method} {'seeds' if key == 'n' else key}" for method in seeds for key in keys)]
        values = [[label, *(_plain(row[m].get(key)) for m in seeds for key in keys)] for label, row in rows]
        return format_lines(header, values, style)
    header = [corner, *(f"{method}, {n} seed{'s' if n > 1 else ''}" for method, n in seeds.items())]
    return format_lines(header, [[label, *(_mean_and_spread(row[m]) for m in seeds)] for label, row in rows], style)


def _mean_and_spread(cell: dict[str, Any]) -> str:
    text = _number(cell["mean"])
    if cell["std"] is not None:
        text += f" ± {_number(cell['std'])}"
    return text + (f" ({cell['questions']:,})" if cell.get("questions") else "")


def format_lines(header: list[str], rows: list[list[str]], style: str) -> str:
    """Cells as Markdown or CSV."""
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
    figures = (row["params"], row["state_floats"], row["train_seconds"])
    return [*cells, str(seeds), *(f"{v:,}" if v else "–" for v in figures)]


def _query_cells(row: dict[str, Any]) -> list[str]:
    if row["query_flops"] is None:
        return ["–"] * 3
    return [f"{row['query_reads']:,}", _number(row["query_flops"] / 1e6), _number(row["query_ms"])]


def _number(value: float | None) -> str:
    # adding zero makes a rounded -0.00 plain
    return "–" if value is None else f"{round(value, 2) + 0.0:.2f}"


def _plain(value: float | None) -> str:
    return "" if value is None else str(round(value, 4))
