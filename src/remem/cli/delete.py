"""`remem delete STORE STREAM`: remove memory, events and snapshots of a stream, from the store's files as well."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tyro

from remem.cli.remote import is_url, open_client, with_url

_CLEARING_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Delete one stream for good."""

    store: tyro.conf.Positional[str]
    """A store file, redis://HOST:PORT/DB, or http://HOST:PORT of a server (also --url)."""
    stream: tyro.conf.Positional[str]
    """The stream's name."""
    tenant: str = "default"
    """Whose stream it is."""


def main(argv: list[str]) -> None:
    """Delete, say what was done."""
    options = tyro.cli(Options, args=with_url(argv), prog="remem delete")
    if is_url(options.store):
        with open_client(options.store, tenant=options.tenant) as client:
            deleted = client.delete(options.stream)
    else:
        from remem.service.engine import MemoryEngine
        from remem.service.opening import require_store

        require_store(options.store)
        with MemoryEngine.open(options.store, None) as engine:
            deleted = engine.delete(options.stream, tenant=options.tenant)
            # a large file is gone through here to its end: nobody stays who would go on
            if deleted.purge == "pending" and not engine.store.purge_pending(_CLEARING_SECONDS):
                deleted = replace(deleted, purge="done")
    done = "deleted." if deleted.existed else "there was no such stream."
    rest = " Bytes of what was deleted are still in the store's files; the same command later clears them out."
    print(f"{options.stream}: {done}{rest if deleted.purge == 'pending' else ''}")
