"""bAbI (Sec. 4.2): error over the tasks, all answered by one model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from remem.data.babi import TaskStories, as_split, build_codec, load_stories
from remem.data.babi_store import import_babi, read_manifest, read_stories
from remem.data.codec import TextCodec
from remem.data.dataset import Split
from remem.data.exchange import make_exchange
from remem.errors import BadInput
from remem.settings.tasks import BabiTask
from remem.tasks.base import Metrics, Tally, Task

FAILED_ABOVE = 5.0  # a task counts as failed above this error, as bAbI's authors count
NUM_TASKS = 20


def babi_task(settings: BabiTask, codec: TextCodec | None = None) -> Task:
    """The prepared stories of `settings.folder`; a trained model brings its codec, and needs no training file."""

    @cache
    def stories(split: str) -> list[TaskStories]:
        return load_stories(settings.folder, settings.tasks, split)

    if codec is None:
        if not settings.tasks:
            raise BadInput("No bAbI task is named; give at least one with --task.tasks.")
        if len({*settings.tasks}) < len(settings.tasks):
            raise BadInput(f"--task.tasks {' '.join(map(str, settings.tasks))} names one twice; give each once.")
        train = stories("train")
        missing = [part.task for part in train if not part.stories]
        if missing:
            raise BadInput(
                f"{settings.folder} has no training stories for task {', '.join(map(str, missing))}; "
                "import them with `remem data import`, or name the tasks you have with --task.tasks."
            )
        codec = build_codec(train, settings.segment_len)
    own = codec

    def load(split: str) -> Split:
        loaded = as_split(stories(split), own)
        if split != "train":
            return loaded
        loaded = replace(loaded, questions=settings.questions)
        if not settings.exchanges:
            return loaded
        told = {part.task - 1: part.stories for part in stories(split)}
        return replace(loaded, exchange=make_exchange(told, own, settings.exchanges, NUM_TASKS))

    return Task(
        name=settings.name,
        codec=own,
        part_names=tuple(f"qa{task}" for task in range(1, NUM_TASKS + 1)),
        load=load,
        read=lambda path: read_babi(path, own),
        metrics=errors,
        score=lambda metrics: -metrics["error"],
        part_errors=lambda metrics: {task - 1: metrics.get(f"qa{task}", 0.0) for task in settings.tasks},
        chance=100 / own.num_answers,
        sources=read_manifest(settings.folder),
    )


def read_babi(path: Path, codec: TextCodec) -> Split:
    """Test stories of a user's own bAbI files: a folder, an archive, a single file, or an already prepared folder."""
    tasks = tuple(range(1, NUM_TASKS + 1))
    if read_manifest(path):
        return as_split(_best_split(path, tasks), codec)
    with TemporaryDirectory() as scratch:
        import_babi(path, Path(scratch))
        return as_split(_best_split(Path(scratch), tasks), codec)


def _best_split(folder: Path, tasks: tuple[int, ...]) -> list[TaskStories]:
    """Test stories where there are any; a file of another split is read as it is."""
    for split in ("test", "valid", "train"):
        parts = [TaskStories(task, read_stories(folder, task, split)) for task in tasks]
        parts = [part for part in parts if part.stories]
        if parts:
            return parts
    return []


def errors(tally: Tally) -> Metrics:
    """Error of each task present, their mean, and how many fail (more than 5 % wrong)."""
    each = {f"qa{part + 1}": 100 - tally.accuracy_of(part) for part in sorted(tally.parts)}
    failed = sum(error > FAILED_ABOVE for error in each.values())
    return {"error": sum(each.values()) / len(each), "failed_tasks": float(failed), **each}
