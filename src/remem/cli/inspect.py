"""`remem inspect STORE [STREAM]`: where a stream is and how it fares, or the names of all; never what they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from remem.cli.remote import is_url, open_client, with_url

if TYPE_CHECKING:
    from remem.service.results import Inspected, Listed

_PAGE = 1000


@dataclass(frozen=True, kw_only=True)
class Options:
    """Look at a store or at one of its streams, also while another process writes to it."""

    store: tyro.conf.Positional[str]
    """A store file, redis://HOST:PORT/DB, or http://HOST:PORT of a server (also --url)."""
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
    options = tyro.cli(Options, args=with_url(argv), prog="remem inspect")
    from remem.service.engine import MemoryEngine

    look: Callable[[str], Inspected]
    page: Callable[..., Listed]
    with (
        open_client(options.store, tenant=options.tenant, model=options.model)
        if is_url(options.store)
        else MemoryEngine.open(options.store, options.model, read_only=True)
    ) as opened:
        if isinstance(opened, MemoryEngine):
            look, page = partial(opened.inspect, tenant=options.tenant), partial(opened.list, tenant=options.tenant)
        else:
            look, page = opened.inspect, opened.list
        if options.stream is not None:
            _show(asdict(look(options.stream)), options.format)
            return
        names, cursor = list[str](), None
        while True:
            found = page(cursor=cursor, limit=_PAGE)
            names, cursor = names + found.streams, found.cursor
            if cursor is None:
                break
    print(json.dumps(names) if options.format == "json" else "\n".join(names))


def _show(about: dict[str, Any], form: str) -> None:
    if form == "json":
        print(json.dumps(about, indent=1))
        return
    for name, value in about.items():
        print(f"{name:<17} {json.dumps(value) if isinstance(value, dict | list) else value}")
