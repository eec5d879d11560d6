"""How long trained memories last, as `remem horizon` measured it: kept, and made into a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from remem.errors import BadInput
from remem.experiments.records import Record, publish
from remem.experiments.tables import Table, spread

FOLDER = "horizon"  # of the records, inside the folder of all results


def keep(record: Record, results: Path) -> Path:
    """Write a measurement where pages and plots look for it."""
    return publish(record, results / FOLDER)


def tabulate(results: Path, task: str, methods: Sequence[str] = ()) -> Table:
    """Accuracy by segments and method, mean and spread over seeds, from the measurements that were kept."""
    records = [_read(path) for path in sorted((results / FOLDER / task).glob("*/*.json"))]
    names = list(methods) or list(dict.fromkeys(record["method"] for record in records))
    groups = {name: [record for record in records if record["method"] == name] for name in names}
    if missing := [name for name, group in groups.items() if not group]:
        raise BadInput(f"{results / FOLDER / task} holds no measurement of {missing[0]}; `remem horizon` makes them.")
    if not groups:
        raise BadInput(f"{results / FOLDER / task} holds no measurement; `remem horizon MODEL` makes them.")
    return table_of(task, groups)


def _read(path: Path) -> Record:
    try:
        record: Record = json.loads(path.read_text())
        if not record["method"] or not all(total > 0 for _, _, total in record["beyond"]):
            raise ValueError("no method, or no questions")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is no measurement ({error!r}); make it again with `remem horizon MODEL`.") from None
    return record


def table_of(task: str, groups: dict[str, list[Record]]) -> Table:
    """The table of some measurements, in the form of a sweep's."""
    shares = {
        name: [{count: 100 * right / total for count, right, total in record["beyond"]} for record in group]
        for name, group in groups.items()
    }
    counts = sorted({count for group in shares.values() for seed in group for count in seed})
    return {
        "task": task,
        "label": "segments since the evidence",
        "metric": "accuracy",
        "seeds": {name: len(group) for name, group in groups.items()},
        "rows": [
            # as a word, so that a drawing sets doublings side by side
            {"value": str(count), "cells": {n: spread([s[count] for s in g if count in s]) for n, g in shares.items()}}
            for count in counts
        ],
    }
