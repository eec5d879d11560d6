"""`remem inspect STORE [STREAM]`: where a stream is and how it fares, or the names of all; never what they hold."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Options:
    """Look at a store or at one of its streams, also while another process writes to it."""

    store: tyro.conf.Positional[str]
    """A store file, or redis://HOST:PORT/DB."""
    stream: tyro.conf.Positional[str | None] = None
    """The stream's name; without it the streams are listed."""
    model: Path | None = None
    """Folder of a model: tells whether it wrote the stream, and the norms of its slots."""
    tenant: str = "default"
    """Whose streams they are."""
    format: Literal["text", "json"] = "text"
    """How to print it."""


def main(argv: list[str]) -> None:
    """Read, print."""
    options = tyro.cli(Options, args=argv, prog="remem inspect")
    from remem.service.engine import MemoryEngine

    with MemoryEngine.open(options.store, options.model, read_only=True) as engine:
        if options.stream is not None:
            _show(asdict(engine.inspect(options.stream, tenant=options.tenant)), options.format)
            return
        names, cursor = list[str](), None
        while True:
            page = engine.list(tenant=options.tenant, cursor=cursor, limit=engine.limits.list_page)
            names, cursor = names + page.streams, page.cursor
            if cursor is None:
                break
    print(json.dumps(names) if options.format == "json" else "\n".join(names))


def _show(about: dict[str, Any], form: str) -> None:
    if form == "json":
        print(json.dumps(about, indent=1))
        return
    for name, value in about.items():
        print(f"{name:<17} {json.dumps(value) if isinstance(value, dict | list) else value}")
