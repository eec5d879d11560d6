"""`remem verify STORE`: check every checksum, and fold retained events again; exit code 1 if anything is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import tyro

from remem.cli.remote import is_url, open_client, with_url
from remem.errors import RememError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Check a store, also while another process writes to it."""

    store: tyro.conf.Positional[str]
    """A store file, redis://HOST:PORT/DB, or http://HOST:PORT of a server (also --url)."""
    model: Path | None = None
    """Folder of the model that wrote it: streams that retain their events are folded again and compared bit by bit."""
    format: Literal["text", "json"] = "text"
    """How to print what was found."""


def main(argv: list[str]) -> None:
    """Check, print."""
    options = tyro.cli(Options, args=with_url(argv), prog="remem verify")
    if is_url(options.store):
        with open_client(options.store, model=options.model) as client:
            found = client.verify()
    else:
        from remem.service.engine import MemoryEngine

        with MemoryEngine.open(options.store, options.model, read_only=True) as engine:
            found = engine.verify()
    if options.format == "json":
        print(json.dumps(asdict(found), indent=1))
    else:
        for problem in found.problems:
            print(f"{problem.stream or 'the store'}: {problem.code}: {problem.message}")
        print(f"{found.streams} streams, {found.events} events kept, {found.refolded} streams folded again.")
    if not found.clean:
        raise RememError(f"{len(found.problems)} problems were found.")
