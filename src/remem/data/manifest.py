"""Whether data is prepared, told without torch: a command that can't go on says so at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from remem.data.babi_store import need_manifest
from remem.errors import BadInput
from remem.settings.tasks import ActivityNetQATask, BabiTask, ClickTask, NarrativeQATask, SyntheticTask, Task

MANIFEST = "manifest.json"
FORMAT = 1
REPLACED = ".replaced"  # ends the name of what was there, until the new data stands in its place


def read_prepared(folder: Path, task: str, how: str) -> dict[str, Any]:
    """The manifest of a folder of arrays; a missing one, or of other data, is refused with how to make it."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except (OSError, json.JSONDecodeError):
        left = folder.with_name(folder.name + REPLACED)
        kept = f" What it held before an import was killed is in {left}: rename it to go on." if left.exists() else ""
        raise BadInput(f"{folder} holds no prepared {task} data; make it with `{how}`.{kept}") from None
    if manifest.get("task") != task or manifest.get("format") != FORMAT:
        raise BadInput(f"{folder} holds prepared data of another kind than {task}; import it again with `{how}`.")
    return manifest


def check_prepared(task: Task) -> None:
    """Refuse a task whose data was never imported; the synthetic one makes its own."""
    match task:
        case BabiTask():
            need_manifest(task.folder)
        case NarrativeQATask() | ActivityNetQATask() | ClickTask():
            kind = "clicks" if isinstance(task, ClickTask) else task.name
            read_prepared(task.folder, kind, f"remem data import PATH --task {task.name}")
        case SyntheticTask():
            pass
