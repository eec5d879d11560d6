"""`remem data`: import what a user has on disk, look at it, export synthetic streams."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from remem.errors import BadInput
from remem.settings.tasks import BabiTask, SyntheticTask, data_root

HELP = """usage: remem data import PATH [--into DIR]        check and prepare bAbI files: folder, .tar.gz or one file
       remem data show [--data DIR]               what has been prepared
       remem data export FILE [--split test] ...  write synthetic streams as JSON lines"""


@dataclass(frozen=True, kw_only=True)
class Import:
    """Check the files at PATH and add them to the prepared data; nothing is written unless all are sound."""

    path: tyro.conf.Positional[Path]
    """A folder, a .tar.gz archive, or a single qaN_..._train.txt (also .gz or .xz)."""
    into: Path | None = None
    """Prepared folder; by default $REMEM_DATA/babi, else data/babi."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """List the prepared files with their sources and counts."""

    data: Path | None = None
    """Prepared folder; by default $REMEM_DATA/babi, else data/babi."""


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
    verbs = {"import": _import, "show": _show, "export": _export}
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP)
        return
    if argv[0] not in verbs:
        raise BadInput(f"There is no `remem data {argv[0]}`. There are: {', '.join(verbs)}.")
    verbs[argv[0]](argv[1:])


def _import(argv: list[str]) -> None:
    options = tyro.cli(Import, args=argv, prog="remem data import")
    from remem.data.babi_store import import_babi

    folder = options.into or data_root() / "babi"
    added = import_babi(options.path, folder)
    _print_manifest(added)
    print(f"prepared in {folder}")


def _show(argv: list[str]) -> None:
    options = tyro.cli(Show, args=argv, prog="remem data show")
    from remem.data.babi_store import read_manifest

    folder = BabiTask(data=options.data).folder
    manifest = read_manifest(folder)
    if not manifest:
        raise BadInput(f"{folder} holds no prepared data; make it with `remem data import PATH`.")
    _print_manifest(manifest)


def _print_manifest(manifest: dict[str, dict[str, object]]) -> None:
    for name, entry in sorted(manifest.items(), key=lambda pair: (int(pair[0][2:].split("_")[0]), pair[0])):
        print(f"{name:<12} {entry['stories']:>7} stories {entry['questions']:>7} questions   from {entry['source']}")


def _export(argv: list[str]) -> None:
    options = tyro.cli(Export, args=argv, prog="remem data export")
    from remem.data.synthetic import export_jsonl

    count = export_jsonl(options.task, options.split, options.path)
    print(json.dumps({"streams": count, "file": str(options.path)}))
