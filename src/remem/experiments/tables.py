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
from remem.experiments.paper import LOWER_IS_BETTER, PAPER, TABLE_METRICS, Quoted
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
        quoted = PAPER[task].get(method, {}).get(metric)
        chosen_by = [r["metrics"]["valid"][metric] for r in records if metric in r["metrics"]["valid"]]
        valid = spread(chosen_by)["mean"]
        metrics[metric] = summary(metric, values) | {"valid": valid, "paper": quoted and quoted._asdict()}
    models, costs = [r["model"] for r in records], [r["cost"] for r in records if "cost" in r]
    queries = [cost["query"] for cost in costs if "query" in cost]
    return {
        "method": method,
        "metrics": metrics,
        # of all that is trained, and without the decoder, which only training needs
        "params": models[0]["params"] if models else None,
        "params_to_answer": models[0].get("params_to_answer") if models else None,
        "state_floats": models[0]["state_floats"] if models else None,
        "steps": sorted(cost["steps"] for cost in costs),
        "planned_steps": sorted({r["config"]["train"]["steps"] for r in records if "cost" in r}),
        "cut_short": sum(map(cut_short, records)),
        "train_seconds": _whole_mean([cost["train_seconds"] for cost in costs]),
        "sampler_seconds": _whole_mean([r["sampler_stage"]["seconds"] for r in records if _tells_sampler(r)]),
        # what one question takes: the same for all seeds, but for the time
        "query_flops": queries[0]["flops"] if queries else None,
        "query_reads": queries[0]["reads"] if queries else None,
        "query_ms": spread([r["cost"]["query"]["milliseconds"] for r in records if _times_query(r)])["mean"],
    }


def cut_short(record: Record) -> bool:
    """Whether a time limit ended the run before its last step, and so before its learning rate had come down."""
    train = record["config"].get("train", {})
    limit = train.get("max_seconds")
    # one that ended by itself, its patience at an end, ended before that
    return bool(limit) and record["cost"]["steps"] < train["steps"] and record["cost"]["train_seconds"] >= limit


def _times_query(record: Record) -> bool:
    """Whether it holds what an answer takes on the device it was trained on, as the others do."""
    return "query" in record.get("cost", {}) and "tested_on" not in record


def _tells_sampler(record: Record) -> bool:
    return record.get("sampler_stage", {}).get("seconds") is not None


def _whole_mean(values: list[float]) -> int | None:
    return round(statistics.fmean(values)) if values else None


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
        **count_runs(runs),
        "rows": [{"part": name, "cells": cells(name)} for name in sorted(names, key=lambda name: int(name[2:]))],
        "mean_error": cells("error"),
        "failed_tasks": cells("failed_tasks"),
    }


def count_runs(runs: Runs) -> dict[str, dict[str, int]]:
    """Runs of each method, and their seeds: one trained again by other code has a second record."""
    return {
        "runs": {method: len(group) for method, group in runs.items()},
        "seeds": {method: len({record["seed"] for _, record in group}) for method, group in runs.items()},
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
    return format_columns("error (%)", table["seeds"], rows, style, table["runs"])


def format_table(table: Table, style: str) -> str:
    """The table as Markdown or CSV, where each number has a column of its own; a run cut short is marked †."""
    metrics, rows = TABLE_METRICS[table["task"]], table["rows"]
    header, lines = ["method"], [[row["method"]] for row in rows]
    for metric in metrics:
        names, cells = _metric_columns(metric, [row["metrics"][metric] for row in rows], style)
        header += names
        lines = [line + more for line, more in zip(lines, cells, strict=True)]
    header += ["runs", "steps", "planned", "parameters", "to answer", "floats/stream", "training s"]
    lines = [line + _cost_cells(row, metrics) for line, row in zip(lines, rows, strict=True)]
    if any(row["sampler_seconds"] is not None for row in rows):
        header.append("sampler s")
        lines = [[*line, _whole(row["sampler_seconds"])] for line, row in zip(lines, rows, strict=True)]
    if any(row["query_flops"] is not None for row in rows):
        header += ["query reads", "query MFLOP", "query ms"]
        lines = [line + _query_cells(row) for line, row in zip(lines, rows, strict=True)]
    return format_lines(header, lines, style)


def format_brief(table: Table, style: str) -> str:
    """What each trained method reached, beside the paper's: the table as one reads it first."""
    metrics = TABLE_METRICS[table["task"]]
    rows = [row for row in table["rows"] if any(row["metrics"][metric]["n"] for metric in metrics)]
    quoted = any(row["metrics"][metric]["paper"] for row in rows for metric in metrics)
    header, lines = ["method"], []
    for metric in metrics:
        header += [metric, "paper"] if quoted else [metric]
    for row in rows:
        line = [row["method"]]
        for metric in metrics:
            ours, paper = row["metrics"][metric], row["metrics"][metric]["paper"]
            line += [_mean_and_spread(ours), *([_mean_and_spread(paper) if paper else "–"] if quoted else [])]
        runs, steps, *_ = _cost_cells(row, metrics)
        lines.append([*line, runs, steps, _whole(row["state_floats"])])
    return format_lines([*header, "runs", "steps", "floats/stream"], lines, style)


def _metric_columns(metric: str, values: list[dict[str, Any]], style: str) -> tuple[list[str], list[list[str]]]:
    """Ours and the paper's numbers of one metric, a list of cells a row; validation where the paper tells it."""
    papers = [value["paper"] or dict.fromkeys(Quoted._fields) for value in values]
    if style == "csv":
        names = [f"{metric} mean", "std", "best", "valid", "paper", "paper std", "paper best", "paper valid"]
        keys = ("mean", "std", "best", "valid")
        own = [[_number(value[key]) for key in keys] for value in values]
        return names, [
            a + [_number(paper[key]) for key in Quoted._fields] for a, paper in zip(own, papers, strict=True)
        ]
    names = [metric, "best"]
    cells = [[_mean_and_spread(value), _number(value["best"])] for value in values]
    if any(paper["valid"] is not None for paper in papers):
        names.append("valid")
        cells = [[*line, _number(value["valid"])] for line, value in zip(cells, values, strict=True)]
    if any(value["paper"] for value in values):  # stand-ins have none
        names.append("paper")
        cells = [[*line, _quoted(paper)] for line, paper in zip(cells, papers, strict=True)]
    return names, cells


def _quoted(paper: dict[str, Any]) -> str:
    text = _mean_and_spread(paper)
    extra = [f"{key} {_number(paper[key])}" for key in ("best", "valid") if paper[key] is not None]
    return f"{text} ({', '.join(extra)})" if extra else text


def format_columns(
    corner: str, seeds: dict[str, int], rows: list[tuple[str, Cells]], style: str, runs: dict[str, int] | None = None
) -> str:
    """One column per method: mean ± spread (questions) in Markdown; in CSV each number has a column of its own."""
    if style == "csv":
        keys = [
            key for key in ("mean", "std", "n", "questions") if any(key in c for _, row in rows for c in row.values())
        ]
        header = [corner, *(f"{method} {'runs' if key == 'n' else key}" for method in seeds for key in keys)]
        values = [[label, *(_plain(row[m].get(key)) for m in seeds for key in keys)] for label, row in rows]
        return format_lines(header, values, style)
    again = {method: f"{n} runs of " for method, n in (runs or {}).items() if n > seeds[method]}
    told = (f"{method}, {again.get(method, '')}{n} seed{'s' if n > 1 else ''}" for method, n in seeds.items())
    header = [corner, *told]
    return format_lines(header, [[label, *(_mean_and_spread(row[m]) for m in seeds)] for label, row in rows], style)


def _mean_and_spread(cell: dict[str, Any]) -> str:
    text = _number(cell["mean"])
    if cell["std"] is not None:
        text += f" ± {_number(cell['std'])}"
    return text + (f" ({cell['questions']:,})" if cell.get("questions") else "")


def format_lines(header: list[str], rows: list[list[str]], style: str, words: int = 1) -> str:
    """Cells as Markdown or CSV; the first `words` columns are not numbers."""
    if style == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([header, *rows])
        return out.getvalue().rstrip("\n")
    lines = [header, ["---"] * words + ["---:"] * (len(header) - words), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cost_cells(row: dict[str, Any], metrics: tuple[str, ...]) -> list[str]:
    runs = max(row["metrics"][metric]["n"] for metric in metrics)
    sizes = (row["params"], row["params_to_answer"], row["state_floats"], row["train_seconds"])
    steps = _range(row["steps"]) + (" †" if row["cut_short"] else "")
    return [str(runs), steps, _range(row["planned_steps"]), *map(_whole, sizes)]


def _range(values: list[int]) -> str:
    ends = dict.fromkeys((values[0], values[-1])) if values else {}
    return "–".join(f"{value:,}" for value in ends) or "–"


def _whole(value: int | None) -> str:
    return f"{value:,}" if value else "–"


def _query_cells(row: dict[str, Any]) -> list[str]:
    if row["query_flops"] is None:
        return ["–"] * 3
    return [f"{row['query_reads']:,}", _number(row["query_flops"] / 1e6), _number(row["query_ms"])]


def _number(value: float | None) -> str:
    # adding zero makes a rounded -0.00 plain
    return "–" if value is None else f"{round(value, 2) + 0.0:.2f}"


def _plain(value: float | None) -> str:
    return "" if value is None else str(round(value, 4))
