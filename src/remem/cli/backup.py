"""`remem backup STORE FILE`: a copy of a store, of one moment, while it is in use; the copy is a store itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from remem.cli.remote import is_url, open_client, with_url
from remem.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Options:
    """Copy a store file, also while another process writes to it. What is deleted later stays in the copy."""

    store: tyro.conf.Positional[str]
    """A store file, or http://HOST:PORT of a server (also --url), which writes the copy into its own folder."""
    file: tyro.conf.Positional[Path | None] = None
    """Where to; nothing is replaced."""


def main(argv: list[str]) -> None:
    """Copy, say what was written."""
    options = tyro.cli(Options, args=with_url(argv), prog="remem backup")
    if is_url(options.store):
        if options.file is not None:
            raise BadInput("A server chooses the copy's name; leave the file out.")
        with open_client(options.store) as client:
            made = client.backup()
        print(f"{made['file']}: {made['bytes']} bytes, in the server's folder for copies.")
        return
    if options.file is None:
        raise BadInput("There is no file to write to; give one after the store.")
    from remem.service.engine import MemoryEngine

    with MemoryEngine.open(options.store, None, read_only=True) as engine:
        size = engine.backup(options.file)
    print(f"{options.file}: {size} bytes; `remem verify {options.file}` checks it.")
