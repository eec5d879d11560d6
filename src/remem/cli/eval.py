"""`remem eval MODEL`: test a saved model, on its own test set or on any data of its task."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from remem.data.manifest import check_prepared
from remem.errors import BadInput
from remem.header import model_path, read_header
from remem.settings.codec import from_json
from remem.settings.run import Run


@dataclass(frozen=True, kw_only=True)
class Options:
    """Test a saved model and print its metrics, by part and overall."""

    model: tyro.conf.Positional[Path]
    """Folder of a run or of a saved model."""
    data: Path | None = None
    """Data of the task's format: bAbI files (some tasks missing is fine), synthetic JSON lines, a prepared folder."""
    format: Literal["text", "json"] = "text"
    """How to print them."""
    batch_size: int = 128
    """Streams at a time."""
    limit: int | None = None
    """Test about this many streams alone, in whole batches; by default all."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""


def main(argv: list[str]) -> None:
    """Load, test, print."""
    options = tyro.cli(Options, args=argv, prog="remem eval")
    if options.limit is not None and options.limit < 1:
        raise BadInput(f"--limit {options.limit}: expected at least one stream.")
    if options.batch_size < 1:
        raise BadInput(f"--batch-size {options.batch_size}: expected at least one stream at a time.")
    # what can't be tested is refused before torch is loaded, which takes seconds
    task_settings = from_json(Run, read_header(model_path(options.model), "run")["run"]).task
    if options.data is None:
        check_prepared(task_settings)
    from remem.bundle import load_bundle
    from remem.tasks.base import plain
    from remem.tasks.load import load_task
    from remem.training.evaluate import evaluate
    from remem.training.log import StageLog
    from remem.training.run import pick_device

    device = pick_device(options.device)
    bundle = load_bundle(options.model)
    task = load_task(bundle.run.task, bundle.codec)
    split = (task.load("test") if options.data is None else task.read(options.data)).to(device)
    seen = 0

    def progress(done: int) -> None:
        nonlocal seen
        seen = done
        log.step(done)

    title, model = f"{task.name}/{bundle.run.method}", bundle.model.to(device)
    with StageLog(title, total=min(len(split), options.limit or len(split)), unit="stream") as log:
        tally = evaluate(model, split, batch_size=options.batch_size, limit=options.limit, progress=progress)
    metrics = task.metrics(tally)
    # they are of the task's own test streams, and say nothing about others
    beside = task.beside() if options.data is None else {}
    if options.format == "json":
        parts = {task.part_names[p]: {"right": plain(r), "total": n} for p, (r, n) in sorted(tally.parts.items())}
        ages = [[age, plain(right), total] for age, (right, total) in sorted(tally.ages.items())]
        print(
            json.dumps(
                {
                    "task": task.name,
                    "method": bundle.run.method,
                    "metrics": metrics,
                    "beside": beside,
                    "parts": parts,
                    "by_age": ages,
                },
                indent=1,
            )
        )
        return
    print(f"{title}, {tally.questions} questions on {seen} streams")
    for name, value in (metrics | beside).items():
        print(f"{name:<20} {value:8.2f}")
