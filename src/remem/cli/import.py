"""`remem import STORE STREAM FILE --model MODEL`: a stream of the file that `remem export` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from remem.cli.remote import is_url, open_client, require_model, with_url
from remem.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Options:
    """Make a stream of an exported one; it goes on where that one was."""

    store: tyro.conf.Positional[str]
    """A store file, made if it is not there, redis://HOST:PORT/DB, or http://HOST:PORT of a server (also --url)."""
    stream: tyro.conf.Positional[str]
    """Its name from now on; a stream that is there is refused, unless it has the same events."""
    file: tyro.conf.Positional[Path]
    """What `remem export` wrote."""
    model: Path | None = None
    """Folder of the model that wrote the stream; a server has its own."""
    tenant: str = "default"
    """Whose stream it shall be."""
    durability: Literal["fsync", "os"] = "fsync"
    """Whether to survive a power cut, or the end of the process alone."""


def main(argv: list[str]) -> None:
    """Read, check, store."""
    options = tyro.cli(Options, args=with_url(argv), prog="remem import")
    try:
        archive = options.file.read_bytes()
    except OSError as error:
        raise BadInput(f"{options.file} can't be read ({error.strerror}).") from None
    if is_url(options.store):
        with open_client(options.store, tenant=options.tenant, model=options.model) as client:
            done = client.import_archive(options.stream, archive)
    else:
        from remem.service.engine import MemoryEngine

        model = require_model(options.model)
        with MemoryEngine.open(options.store, model, durability=options.durability) as engine:
            done = engine.import_archive(options.stream, archive, tenant=options.tenant)
    print(f"{options.stream}: {done.next_seq} events, {done.consolidated_seq} of them in the memory.")
