"""Records on disk: every number in a table is read from one of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from remem.errors import BadInput
from remem.files import write_file
from remem.header import RECORD_FORMAT

Record = dict[str, Any]
_REQUIRED = ("format", "task", "method", "seed", "code", "data", "model", "metrics", "config")


def record_path(results: Path, record: Record) -> Path:
    """results/TASK/METHOD/seedS-FINGERPRINT.json; the same run made again replaces its record, another one does not."""
    method = "".join(c if c.isalnum() or c in "-._=" else "_" for c in record["method"])
    return results / record["task"] / method / f"seed{record['seed']}-{record['model']['fingerprint'][:8]}.json"


def publish(record: Record, results: Path) -> Path:
    """Write a record where tables look for it."""
    path = record_path(results, record)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, (json.dumps(record, indent=1) + "\n").encode())
    return path


def read_record(path: Path) -> Record:
    """One record; refused if it is damaged, or does not say which code made it."""
    try:
        record: Record = json.loads(path.read_text())
    except (OSError, ValueError) as error:  # no JSON, or no text at all
        raise BadInput(f"{path} is not a readable record ({error}).") from None
    if not isinstance(record, dict):
        raise BadInput(f"{path} is not a record of a run: expected a JSON object.")
    missing = [name for name in _REQUIRED if name not in record]
    if missing:
        raise BadInput(f"{path} is not a record of a run: it lacks {missing[0]!r}.")
    if record["format"] != RECORD_FORMAT:
        raise BadInput(
            f"{path} has the format {record['format']!r}; this version of remem reads {RECORD_FORMAT}. Read it with "
            "the version that wrote it, or move it away."
        )
    if not isinstance(record["code"], dict) or not record["code"].get("commit"):
        raise BadInput(f"{path} names no commit, so nobody can tell which code made it; run it again from a commit.")
    return record


def read_records(results: Path, task: str) -> list[Record]:
    """All records of a task, in a fixed order."""
    return [read_record(path) for path in sorted((results / task).rglob("*.json"))]
