"""What a task's prepared data holds, counted once and kept as a record: `remem data describe TASK`.

Pages that state a fact of the data take it from such a record, as tables take theirs from the records of runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from remem.data.batch import UNSEEN_ANSWER
from remem.data.clicks import PARTS
from remem.data.dataset import Split
from remem.errors import BadInput
from remem.experiments.presets import PRESETS
from remem.experiments.tables import format_lines
from remem.settings.tasks import Task as TaskSettings
from remem.tasks.base import Task
from remem.tasks.load import load_task
from remem.training.record import code_version, rounded

FOLDER = "data"  # below results/
SPLITS = ("train", "valid", "test")
Description = dict[str, Any]


def described() -> list[str]:
    """Tasks that can be described: those with data to import, the first of the paper's left out."""
    return [name for name, run in preset_tasks().items() if hasattr(run, "folder") and name != "babi"]


def preset_tasks() -> dict[str, TaskSettings]:
    """The settings every task is run with."""
    return {run.task.name: run.task for run in PRESETS.values()}


def describe(name: str) -> Description:
    """Count the prepared data of a task; what was asked of whom comes from the splits that a model is given."""
    if name not in described():
        raise BadInput(f"{name!r} can't be described. There are: {', '.join(described())}.")
    task = load_task(preset_tasks()[name])
    splits = {split: task.load(split) for split in SPLITS}
    return {
        "task": name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": code_version(),
        "fingerprint": {split: loaded.fingerprint() for split, loaded in splits.items()},
        "sources": task.sources,
        "chance": round(task.chance, 4),
        "beside": rounded(task.beside()),
        "splits": {split: _facts(task, loaded) for split, loaded in splits.items()},
    }


def _facts(task: Task, split: Split) -> dict[str, Any]:
    lengths, parts, unseen, items = split.lengths, Counter[int](), 0, list[int]()
    for bucket in split.buckets:
        query = bucket.query
        items += (lengths[bucket.order] * bucket.segment_mask).sum(dim=1).tolist()
        counted = query.mask
        if task.part_names == PARTS:  # a stream of a log counts once, by what is asked first at its end
            at_end = counted & (query.position == bucket.segment_mask.sum(dim=1, keepdim=True))
            counted = at_end & (at_end.cumsum(dim=1) == 1)
        parts.update(query.part[counted].tolist())
        unseen += int((query.mask & (query.answer == UNSEEN_ANSWER)).sum())
    return {
        "streams": len(split),
        "questions": split.num_questions,
        "unseen_answers": unseen,
        "items": {"mean": round(sum(items) / len(items), 1), "most": max(items)},
        "parts": {task.part_names[part]: parts[part] for part in sorted(parts)},
    }


def path_of(results: Path, task: str) -> Path:
    """Where a description is kept."""
    return results / FOLDER / f"{task}.json"


def publish(description: Description, results: Path) -> Path:
    """Write a description where the pages look for it; without a commit nobody could tell which code counted."""
    if not description["code"].get("commit"):
        raise BadInput("This code is at no commit, so its counts can't be published; run it from a checkout.")
    path = path_of(results, description["task"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(description, indent=1) + "\n")
    return path


def read(results: Path, task: str) -> Description:
    """A published description."""
    path = path_of(results, task)
    try:
        found: Description = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise BadInput(f"{path} is no description ({error}); make it with `remem data describe {task}`.") from None
    return found


def format_description(description: Description, style: str = "md") -> str:
    """One column a split; then what is known of the test without a model."""
    splits: Mapping[str, Any] = description["splits"]
    rows = [
        ["streams", *(f"{facts['streams']:,}" for facts in splits.values())],
        ["items of a stream, mean", *(f"{facts['items']['mean']:,}" for facts in splits.values())],
        ["items of a stream, most", *(f"{facts['items']['most']:,}" for facts in splits.values())],
        ["questions", *(f"{facts['questions']:,}" for facts in splits.values())],
    ]
    if any(facts["unseen_answers"] for facts in splits.values()):
        rows.append(["answer not among those to choose from", *(_share(facts) for facts in splits.values())])
    names = list(dict.fromkeys(part for facts in splits.values() for part in facts["parts"]))
    if len(names) > 1:
        rows += [[name, *(f"{facts['parts'].get(name, 0):,}" for facts in splits.values())] for name in names]
    beside = {"chance": description["chance"], **description["beside"]}
    rows += [[name, *[""] * (len(splits) - 1), f"{value:.2f}"] for name, value in beside.items()]
    return format_lines([description["task"], *splits], rows, style)


def _share(facts: Mapping[str, Any]) -> str:
    return f"{facts['unseen_answers']:,} ({100 * facts['unseen_answers'] / facts['questions']:.1f} %)"
