"""`remem data`: import what a user has on disk, look at it, export synthetic streams."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from remem.errors import BadInput
from remem.settings.tasks import SyntheticTask, data_root

TaskName = Literal["babi", "narrativeqa", "activitynetqa", "lastfm", "assistments", "xlong", "clicks"]
HELP = """usage: remem data import PATH... [--task NAME]    check and prepare a task's files: folder, archive, file
       remem data show [--task NAME]              what has been prepared
       remem data describe TASK...                count it, for the record that the task's page is made from
       remem data export FILE [--split test] ...  write synthetic streams as JSON lines"""


@dataclass(frozen=True, kw_only=True)
class Import:
    """Check the files at PATH and add them to the prepared data; nothing is written unless all are sound."""

    path: tyro.conf.Positional[tuple[Path, ...]]
    """Folders, archives (.tar.gz, .tar.xz, .zip) or single files, as they were published."""
    task: TaskName = "babi"
    """What they are; clicks is a log of your own with the columns user, item and time (.csv or .parquet)."""
    into: Path | None = None
    """Prepared folder; by default $REMEM_DATA/TASK, else data/TASK."""
    features: Path | None = None
    """activitynetqa: vectors of the frames, an HDF5 file or a folder of .npy, one array a video."""
    captions: Path | None = None
    """activitynetqa: captions in place of frames, a stand-in; needs the sentence encoder of docs/activitynetqa.md."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """List the prepared files with their sources and counts."""

    task: TaskName = "babi"
    """Which task's."""
    data: Path | None = None
    """Prepared folder; by default $REMEM_DATA/TASK, else data/TASK."""


@dataclass(frozen=True, kw_only=True)
class Describe:
    """Count what the prepared data of some tasks holds, print it, and keep it as a record."""

    task: tyro.conf.Positional[tuple[str, ...]]
    """Names of tasks."""
    results: Path = Path("results")
    """Where the records go, one a task."""
    table: bool = False
    """Print the records there are, and count nothing."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a split of the synthetic task as JSON lines, which `remem eval --data` reads back."""

    path: tyro.conf.Positional[Path]
    """File to write."""
    split: Literal["train", "valid", "test"] = "test"
    """Which streams."""
    task: SyntheticTask = field(default_factory=SyntheticTask)


def main(argv: list[str]) -> None:
    """Find the verb and run it."""
    verbs = {"import": _import, "show": _show, "describe": _describe, "export": _export}
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP)
        return
    if argv[0] not in verbs:
        raise BadInput(f"There is no `remem data {argv[0]}`. There are: {', '.join(verbs)}.")
    verbs[argv[0]](argv[1:])


def _import(argv: list[str]) -> None:
    options = tyro.cli(Import, args=argv, prog="remem data import")
    folder = options.into or data_root() / options.task
    if not options.path:
        raise BadInput("There is nothing to import; give a folder, an archive or a file.")
    if options.task != "activitynetqa" and (options.features or options.captions):
        raise BadInput("--features and --captions belong to --task activitynetqa.")
    if options.task == "babi":
        from remem.data.babi_store import import_babi

        _print_manifest(import_babi(options.path[0], folder, *options.path[1:]))
    else:
        _print_facts(_import_long(options, folder))
    print(f"prepared in {folder}")


def _import_long(options: Import, folder: Path) -> dict[str, Any]:
    if options.task == "narrativeqa":
        from remem.data.narrativeqa_files import import_narrativeqa

        return import_narrativeqa(options.path, folder)
    if options.task == "activitynetqa":
        from remem.data.activitynetqa_files import import_activitynetqa

        return import_activitynetqa(options.path, folder, features=options.features, captions=options.captions)
    from remem.data.click_files import import_clicks

    return import_clicks(options.task, options.path, folder)


def _show(argv: list[str]) -> None:
    options = tyro.cli(Show, args=argv, prog="remem data show")
    folder = options.data or data_root() / options.task
    if options.task != "babi":
        from remem.data.prepared import Prepared

        kind = options.task if options.task in ("narrativeqa", "activitynetqa") else "clicks"
        _print_facts(Prepared(folder, kind, f"remem data import PATH --task {options.task}").manifest)
        return
    from remem.data.babi_store import read_manifest

    manifest = read_manifest(folder)
    if not manifest:
        raise BadInput(f"{folder} holds no prepared data; make it with `remem data import PATH`.")
    _print_manifest(manifest)


def _describe(argv: list[str]) -> None:
    options = tyro.cli(Describe, args=argv, prog="remem data describe")
    from remem.experiments.describe import describe, format_description, publish, read

    if not options.task:
        raise BadInput("There is nothing to describe; give the names of tasks.")
    for number, task in enumerate(options.task):
        found = read(options.results, task) if options.table else describe(task)
        if not options.table:
            publish(found, options.results)
        print(("\n" if number else "") + format_description(found))


def _print_facts(manifest: dict[str, Any]) -> None:
    for name in ("stream", "counts", "videos", "num_items", "sources"):
        if name in manifest:
            print(f"{name:<10} {json.dumps(manifest[name])}")
    if lost := manifest.get("questions_without_summary"):
        print(f"left out   {lost} questions about documents without a summary")


def _print_manifest(manifest: dict[str, dict[str, object]]) -> None:
    for name, entry in sorted(manifest.items(), key=lambda pair: (int(pair[0][2:].split("_")[0]), pair[0])):
        print(f"{name:<12} {entry['stories']:>7} stories {entry['questions']:>7} questions   from {entry['source']}")


def _export(argv: list[str]) -> None:
    options = tyro.cli(Export, args=argv, prog="remem data export")
    from remem.data.synthetic import export_jsonl

    count = export_jsonl(options.task, options.split, options.path)
    print(json.dumps({"streams": count, "file": str(options.path)}))
