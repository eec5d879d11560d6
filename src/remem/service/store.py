"""The contract of a store: atomic, durable read-decide-write on one stream at a time. What is decided lives elsewhere.

Every store passes the same suite (tests/service/test_store_contract.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from remem.service.errors import ServiceError
from remem.service.limits import StreamKey
from remem.service.records import Row

Durability = Literal["fsync", "os"]
"""`fsync` survives a power cut; `os` survives the end of the process alone."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What becomes of a stream in one step, all of it or nothing."""

    row: Row
    """The new counters, sealed."""
    memory: bytes | None = None
    """The new memory; None keeps the old one."""
    events: Sequence[bytes] = ()
    """Sealed events to add, with numbers up to `row.next_seq`."""
    drop_all: bool = False
    """Drop the events that are there before adding."""
    keep_from: int = 0
    """Then drop those with smaller numbers."""
    anew: bool = False
    """Drop all that is there first, snapshots as well: the stream before was another one."""


Plan = Callable[[Row | None], Change | None]
"""Decides from the stream's row, None where there is none; None writes nothing; an exception refuses."""


@dataclass(frozen=True)
class Stored:
    """A stream as one read transaction saw it; nothing in it is verified yet."""

    row: Row
    memory: bytes
    events: list[bytes]
    """Sealed, the last of them with number `row.next_seq - 1`."""


@dataclass(frozen=True)
class Deleted:
    """What a delete did. `purge` is `pending` while a reader or a rewrite still holds old pages."""

    existed: bool
    purge: Literal["done", "pending"]


def is_doomed(row: Row, doomed: Callable[[Row], bool]) -> bool:
    """What `discard` asks; a row that is refused stays."""
    try:
        return doomed(row)
    except ServiceError:
        return False


class Store(Protocol):
    """Where streams are kept. Every method may be called from many threads at once."""

    @property
    def description(self) -> str:
        """Kind, place and durability, for logs and `inspect`."""
        ...

    def update(self, key: StreamKey, plan: Plan) -> Row | None:
        """Read the row, decide, write: one atomic step, durable when this returns. Returns the row as it is then.

        `plan` must be pure: it may be called again when another writer came between.
        """
        ...

    def update_many(self, plans: Sequence[tuple[StreamKey, Plan]]) -> None:
        """Several streams, each as by `update`, in as few commits as possible; the plans must not refuse."""
        ...

    def read(self, key: StreamKey, *, log: bool = False) -> Stored | None:
        """Row, memory and tail of one moment; with `log` all events that are kept."""
        ...

    def delete(self, key: StreamKey) -> Deleted:
        """Remove everything of a stream, from the files as well."""
        ...

    def expired(self, now: float, most: int) -> list[StreamKey]:
        """Streams whose time is up, those first whose time was up first."""
        ...

    def discard(self, keys: Sequence[StreamKey], doomed: Callable[[Row], bool]) -> list[Row]:
        """Remove each of these streams if its row, as it is in that moment, is doomed; from the files as well.

        A row that can't be read, or that `doomed` refuses with a `ServiceError`, stays. Returns the rows removed.
        """
        ...

    def page(self, tenant: str, prefix: str, after: str, limit: int, now: float) -> list[str]:
        """Names of living streams in order, of those that begin with `prefix` and come after `after`."""
        ...

    def keys(self) -> Iterator[StreamKey]:
        """Every stream of every tenant."""
        ...

    def pending(self) -> list[StreamKey]:
        """Streams with a tail: what consolidation has to look at after a restart."""
        ...

    def put_snapshot(self, of: Row, name: str, archive: bytes, most: int) -> bool:
        """Keep a named copy beside the stream; False if it is gone, also if another was born since, or has `most`."""
        ...

    def snapshots(self, key: StreamKey) -> list[str]:
        """Names of a stream's copies, in order."""
        ...

    def get_snapshot(self, key: StreamKey, name: str) -> bytes | None:
        """A named copy."""
        ...

    def num_bytes(self, key: StreamKey) -> int:
        """Bytes kept of a stream, snapshots and retained events included."""
        ...

    def purge_pending(self, seconds: float = 0.0) -> bool:
        """Whether bytes of deleted streams may still be in the files; spends about `seconds` on clearing them."""
        ...

    def require_writable(self) -> None:
        """Go through a commit that changes nothing; raises what stands against one."""
        ...

    def problems(self) -> list[str]:
        """What the store itself finds wrong with its files."""
        ...

    def close(self) -> None:
        """Finish what was begun, and let go."""
        ...
