"""What a memory forgets: accuracy by age of the evidence, and how much is lost with every segment read since."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from remem.errors import BadInput
from remem.experiments.records import Record
from remem.experiments.tables import Runs, Table, count_runs, format_columns, spread

Counts = dict[int, tuple[float, int]]  # age in segments -> right answers (or reciprocal ranks), all answers
MOST_ROWS = 10


def make_forgetting(task: str, runs: Runs, bin_width: int | None = None) -> Table:
    """Accuracy in each bin of ages, over all, and the forgetting slope: mean and spread over each method's seeds."""
    if bin_width is not None and bin_width < 1:
        raise BadInput(f"A bin of {bin_width} segments holds no age; give --bin-width 1 or more.")
    counts = {method: [age_counts(path, record) for path, record in group] for method, group in runs.items()}
    ages = sorted({age for group in counts.values() for seed in group for age in seed})
    width = bin_width or default_width(ages)
    rows = []
    for number in sorted({age // width for age in ages}):
        # the first and last bin end where the data does
        first, last = max(number * width, ages[0]), min(number * width + width - 1, ages[-1])
        cells = {method: _accuracy(group, range(first, last + 1)) for method, group in counts.items()}
        rows.append({"age": [first, last], "cells": cells})
    within = {m: [s for path, r in group if (s := slope_within(path, r)) is not None] for m, group in runs.items()}
    return {
        "task": task,
        "bin_width": width,
        **count_runs(runs),
        "rows": rows,
        "overall": {method: _accuracy(group, ages) for method, group in counts.items()},
        "slope": {method: spread([s for s in map(slope, group) if s is not None]) for method, group in counts.items()},
        "slope_within": {method: spread(slopes) for method, slopes in within.items()},
    }


def age_counts(path: Path, record: Record) -> Counts:
    """A record's test answers by age; refused, with its file's name, where they are missing or make no sense."""
    if not record.get("test_by_age"):
        raise BadInput(f"{path} holds no test answers by age ('test_by_age'); test that run again, or leave it out.")
    return _counts(path, record["test_by_age"])


def _counts(path: Path, entries: Any) -> Counts:
    counts: Counts = {}
    try:
        for age, right, total in entries:
            if not 0 <= right <= total or total == 0:
                raise ValueError
            counts[int(age)] = (float(right), int(total))
    except (TypeError, ValueError):
        raise BadInput(f"{path} is damaged: 'test_by_age' must hold an age, right answers and all answers.") from None
    return counts


def default_width(ages: Iterable[int]) -> int:
    """The narrowest bins that give at most ten rows."""
    width = 1
    while len({age // width for age in ages}) > MOST_ROWS:
        width += 1
    return width


def slope(counts: Counts) -> float | None:
    """Percentage points lost per segment of age: least squares, each age weighted by its questions; None for one age.

    Taken from the single ages, so it does not change with the width of the bins.
    """
    return _slope([counts])


def slope_within(path: Path, record: Record) -> float | None:
    """The same with each part of the task held to its own mean; None where a record does not tell its parts apart."""
    return _slope([_counts(path, entries) for entries in record.get("test_by_age_of", {}).values() if entries])


def _slope(parts: list[Counts]) -> float | None:
    variance = covariance = 0.0
    for counts in parts:
        questions = sum(total for _, total in counts.values())
        mean_age = sum(age * total for age, (_, total) in counts.items()) / questions
        variance += sum(total * (age - mean_age) ** 2 for age, (_, total) in counts.items())
        # the mean accuracy drops out: deviations from the mean age sum to zero
        covariance += sum(100 * right * (age - mean_age) for age, (right, _) in counts.items())
    return -covariance / variance if variance else None


def _accuracy(group: list[Counts], ages: Iterable[int]) -> dict[str, Any]:
    """Accuracy of each seed over these ages, then mean and spread; `questions` counts those of all seeds."""
    wanted = set(ages)
    chosen = [[count for age, count in seed.items() if age in wanted] for seed in group]
    sums = [(sum(right for right, _ in seed), sum(total for _, total in seed)) for seed in chosen if seed]
    accuracies = [100 * right / total for right, total in sums]
    return {**spread(accuracies), "questions": sum(total for _, total in sums)}


def format_forgetting(table: Table, style: str) -> str:
    """One row per bin of ages, then over all ages and the slope, as Markdown or CSV."""
    rows = [(age_label(row["age"]), row["cells"]) for row in table["rows"]]
    rows += [("all", table["overall"]), ("points lost per segment", table["slope"])]
    if any(cell["n"] for cell in table["slope_within"].values()):
        rows.append(("the same within each part", table["slope_within"]))
    return format_columns("age (segments)", table["seeds"], rows, style, table["runs"])


def age_label(age: list[int]) -> str:
    """One age, or a range of them."""
    first, last = age
    return str(first) if first == last else f"{first}–{last}"
