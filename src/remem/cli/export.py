"""`remem export STORE STREAM FILE`: a stream as one safetensors file: memory, counters, and the events kept of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import tyro

from remem.cli.remote import is_url, open_client, with_url
from remem.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Options:
    """Take a stream out of a store, also while another process writes to it. The file gives its events away."""

    store: tyro.conf.Positional[str]
    """A store file, redis://HOST:PORT/DB, or http://HOST:PORT of a server (also --url)."""
    stream: tyro.conf.Positional[str]
    """The stream's name."""
    file: tyro.conf.Positional[Path]
    """Where to write it; nothing is replaced."""
    tenant: str = "default"
    """Whose stream it is."""


def main(argv: list[str]) -> None:
    """Read, write."""
    options = tyro.cli(Options, args=with_url(argv), prog="remem export")
    if options.file.exists():
        raise BadInput(f"{options.file} is there already; an export replaces nothing.")
    if is_url(options.store):
        with open_client(options.store, tenant=options.tenant) as client:
            archive = client.export(options.stream)
    else:
        from remem.service.engine import MemoryEngine

        with MemoryEngine.open(options.store, None, read_only=True) as engine:
            archive = engine.export(options.stream, tenant=options.tenant)
    try:
        with os.fdopen(os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(archive)
    except OSError as error:
        raise BadInput(f"{options.file} can't be written ({error.strerror}).") from None
    print(f"{options.stream}: {len(archive)} bytes written to {options.file}.")
