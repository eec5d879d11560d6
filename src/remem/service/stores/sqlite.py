"""Streams in one SQLite file: write-ahead log, every commit synced, many writers' changes in one commit.

One thread writes. While it waits for the disk, further changes queue up and share the next commit, and with it the
price of a sync. Readers have connections of their own and wait for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from remem.service.errors import Draining, MemoryDamaged, StoreUnavailable
from remem.service.limits import StreamKey
from remem.service.records import ROW_FIELDS, Row, row_of
from remem.service.store import Change, Deleted, Durability, Plan, Stored, is_doomed
from remem.service.stores.sqlite_copy import copy_store
from remem.service.stores.sqlite_file import DISK_ERRORS, FileLock, connect, prepare, require_format, set_remains
from remem.service.stores.sqlite_gaps import Gaps, enter, leave
from remem.service.stores.sqlite_writer import Writer

T = TypeVar("T")

_COLUMNS = ", ".join(f'"{name}"' for name in ROW_FIELDS)
_SELECT = f"SELECT id, {_COLUMNS} FROM streams"
_INSERT = f"INSERT INTO streams ({_COLUMNS}) VALUES ({', '.join('?' * len(ROW_FIELDS))})"
_UPDATE = f"UPDATE streams SET {', '.join(f'{chr(34)}{name}{chr(34)} = ?' for name in ROW_FIELDS)} WHERE id = ?"
_MOST_READERS = 8
_PARTS = ("memories", "events", "snapshots")


class SqliteStore:
    """A store file. One process writes at a time; others may open it with `read_only`."""

    def __init__(
        self, path: Path | str, *, durability: Durability = "fsync", read_only: bool = False, busy_seconds: float = 5.0
    ) -> None:
        # by its real name, as SQLite has it: through a link it is the same file, with the same lock
        self.path, self.durability, self._busy_seconds = Path(path).resolve(), durability, busy_seconds
        self._readers: queue.LifoQueue[sqlite3.Connection | None] = queue.LifoQueue()
        for _ in range(_MOST_READERS):
            self._readers.put(None)  # connected when first needed
        self._closing, self._closed = threading.Lock(), False
        self._lock: FileLock | None = None
        self._writer: Writer | None = None
        self._gaps: Gaps | None = None
        enter(self.path)
        try:
            if read_only:
                require_format(self.path)
            else:
                self._open_writer()
        except BaseException:
            leave(self.path)
            raise

    def _open_writer(self) -> None:
        self._lock = FileLock(self.path)
        try:
            connection = self._connect_writer()
            epoch = prepare(connection, self.path)
            self._gaps = Gaps(self.path)
        except BaseException:
            self._lock.release()
            raise
        self._writer = Writer(connection, epoch, self._gaps)

    def _connect_writer(self) -> sqlite3.Connection:
        return connect(self.path, busy_seconds=self._busy_seconds, durability=self.durability)

    @property
    def description(self) -> str:
        """Kind, place and durability."""
        return f"sqlite {self.path.name}, durability {self.durability if self._writer else 'read-only'}"

    def update(self, key: StreamKey, plan: Plan) -> Row | None:
        """Decide and write inside the writer's transaction."""
        return self._write(lambda connection: self._updated(connection, key, plan))

    def submit(self, key: StreamKey, plan: Plan) -> Future[Row | None]:
        """As `update`, without waiting for the commit."""
        return self._writing().submit(lambda connection: self._updated(connection, key, plan))

    def lend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let an event loop run what is submitted; until it is closed, the store relies on the loop going on."""
        self._writing().lend(loop)

    def update_many(self, plans: Sequence[tuple[StreamKey, Plan]]) -> None:
        """All in one transaction; where the store is lent to a loop, not to be called from there."""
        if plans:
            job = self._writing().submit(lambda connection: [self._updated(connection, *each) for each in plans])
            job.result()

    def read(self, key: StreamKey, *, log: bool = False) -> Stored | None:
        """Row, memory and events of one read transaction."""
        with self._reading() as connection:
            number, row = _find(connection, key)
            if row is None:
                return None
            memory = connection.execute("SELECT memory FROM memories WHERE id = ?", (number,)).fetchone()
            first = 0 if log else row.consolidated_seq
            found = connection.execute(
                "SELECT seq, event FROM events WHERE id = ? AND seq BETWEEN ? AND ? ORDER BY seq",
                (number, first, row.next_seq - 1),
            ).fetchall()
        if [seq for seq, _ in found] != list(range(row.next_seq - len(found), row.next_seq)):
            raise MemoryDamaged(f"The numbers of the events of stream {key} have a hole.", stream=key.stream)
        return Stored(row, _bytes(memory), [_bytes((event,)) for _, event in found])

    def delete(self, key: StreamKey) -> Deleted:
        """Overwrite the stream's rows with zeros, and what is left of them in the log and between rows."""

        existed = self._write(lambda connection: self._removed(connection, _number(connection, key)))
        purged = self._writing().purge() if existed else not self.purge_pending()
        return Deleted(existed, "done" if purged else "pending")

    def expired(self, now: float, most: int) -> list[StreamKey]:
        """By the index of those that expire."""
        query = """SELECT tenant, stream FROM streams
            WHERE ttl > 0 AND updated + ttl <= ? ORDER BY updated + ttl LIMIT ?"""
        with self._reading() as connection:
            return [StreamKey(*names) for names in connection.execute(query, (now, most)).fetchall()]

    def discard(self, keys: Sequence[StreamKey], doomed: Callable[[Row], bool]) -> list[Row]:
        """All in one transaction, then the files are cleared once."""

        def job(connection: sqlite3.Connection) -> list[Row]:
            gone = []
            for key in keys:
                with contextlib.suppress(MemoryDamaged):
                    number, row = _find(connection, key)
                    if row is not None and is_doomed(row, doomed):
                        gone += [row] if self._removed(connection, number) else []
            return gone

        gone = self._write(job)
        if gone:
            self._writing().purge()
        return gone

    def page(self, tenant: str, prefix: str, after: str, limit: int, now: float) -> list[str]:
        """A page of names, by their index."""
        # names are ASCII, so every name with the prefix lies below the prefix followed by the last ASCII character
        query = """SELECT stream FROM streams WHERE tenant = ? AND stream > ? AND stream >= ? AND stream < ?
            AND (ttl = 0 OR updated + ttl > ?) ORDER BY stream LIMIT ?"""
        with self._reading() as connection:
            found = connection.execute(query, (tenant, after, prefix, prefix + "\x7f", now, limit)).fetchall()
            return [name for (name,) in found]

    def keys(self) -> Iterator[StreamKey]:
        """All streams, a thousand at a time."""
        last: tuple[str, str] = ("", "")
        while True:
            with self._reading() as connection:
                found = connection.execute(
                    "SELECT tenant, stream FROM streams WHERE (tenant, stream) > (?, ?) "
                    "ORDER BY tenant, stream LIMIT 1000",
                    last,
                ).fetchall()
            if not found:
                return
            for last in found:
                yield StreamKey(*last)

    def pending(self) -> list[StreamKey]:
        """Streams with a tail, by the index of those alone."""
        with self._reading() as connection:
            found = connection.execute("SELECT tenant, stream FROM streams WHERE next_seq > consolidated_seq")
            return [StreamKey(*names) for names in found.fetchall()]

    def put_snapshot(self, of: Row, name: str, archive: bytes, most: int) -> bool:
        """Keep a copy."""

        def job(connection: sqlite3.Connection) -> bool:
            number, row = _find(connection, of.key)
            others = connection.execute("SELECT count(*) FROM snapshots WHERE id = ? AND name <> ?", (number, name))
            if row is None or row.birth != of.birth or others.fetchone()[0] >= most:
                return False
            connection.execute("REPLACE INTO snapshots (id, name, archive) VALUES (?, ?, ?)", (number, name, archive))
            return True

        return self._write(job)

    def snapshots(self, key: StreamKey) -> list[str]:
        """Names of copies."""
        with self._reading() as connection:
            number = _number(connection, key)
            found = connection.execute("SELECT name FROM snapshots WHERE id = ? ORDER BY name", (number,))
            return [name for (name,) in found.fetchall()]

    def get_snapshot(self, key: StreamKey, name: str) -> bytes | None:
        """A copy."""
        with self._reading() as connection:
            number = _number(connection, key)
            found = connection.execute("SELECT archive FROM snapshots WHERE id = ? AND name = ?", (number, name))
            row = found.fetchone()
            return _bytes(row) if row else None

    def num_bytes(self, key: StreamKey) -> int:
        """Bytes of all columns that hold content."""
        with self._reading() as connection:
            number, row = _find(connection, key)
            if row is None:
                return 0
            sizes = [("memories", "memory"), ("events", "event"), ("snapshots", "archive")]
            return (
                len(row.digests)
                + len(row.keyed)
                + sum(
                    connection.execute(
                        f"SELECT coalesce(sum(length({column})), 0) FROM {table} WHERE id = ?", (number,)
                    ).fetchone()[0]
                    for table, column in sizes
                )
            )

    def purge_pending(self, seconds: float = 0.0) -> bool:
        """Whether the files still hold bytes of deleted streams; tries again to clear a piece of them, or more."""
        return self._writer is not None and self._writer.purge_wanted and not self._writer.purge(seconds)

    def require_writable(self) -> None:
        """A transaction like any other, with nothing in it."""
        self._write(lambda connection: None)

    def problems(self) -> list[str]:
        """SQLite's own check of pages and indexes, and rows without their parts."""
        try:
            with self._reading() as connection:
                found = [line for (line,) in connection.execute("PRAGMA integrity_check(20)").fetchall()]
                for table in _PARTS:
                    orphans = connection.execute(
                        f"SELECT count(*) FROM {table} WHERE id NOT IN (SELECT id FROM streams)"
                    ).fetchone()[0]
                    found += [f"{orphans} rows of {table} belong to no stream"] * bool(orphans)
            return [line for line in found if line != "ok"]
        except StoreUnavailable as error:
            return [str(error)]

    def backup(self, target: Path) -> int:
        """A copy of one moment, itself a store; writers go on meanwhile."""
        try:
            enter(self.path)
            try:
                with contextlib.closing(connect(self.path, busy_seconds=self._busy_seconds)) as connection:
                    return copy_store(connection, target)
            finally:
                leave(self.path)
        except (*DISK_ERRORS, OSError) as error:
            raise StoreUnavailable(f"{self.path.name} can't be copied to {target} ({error}).") from None

    def close(self) -> None:
        """Commit what is queued, fold the log into the file, let the next process in."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        for _ in range(_MOST_READERS):  # reads under way come back first
            if (reader := self._readers.get()) is not None:
                reader.close()
        for _ in range(_MOST_READERS):
            self._readers.put(None)
        if self._writer is not None:
            self._writer.close()
        if self._gaps is not None:
            self._gaps.close()
        leave(self.path)
        if self._lock is not None:
            self._lock.release()

    def _updated(self, connection: sqlite3.Connection, key: StreamKey, plan: Plan) -> Row | None:
        number, row = _find(connection, key)
        change = plan(row)
        if change is None:
            return row
        if change.anew and self._removed(connection, number):
            number = -1
        _apply(connection, number, change)
        return change.row

    def _removed(self, connection: sqlite3.Connection, number: int) -> bool:
        """Everything of a stream; False if there is none."""
        if number < 0:
            return False
        for table in (*_PARTS, "streams"):
            connection.execute(f"DELETE FROM {table} WHERE id = ?", (number,))
        set_remains(connection, True)
        self._writing().want_purge()
        return True

    def _writing(self) -> Writer:
        if self._writer is None:
            raise StoreUnavailable(f"{self.path.name} is open for reading only.")
        return self._writer

    def _write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        return self._writing().run(job)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A reader's connection in a transaction of its own."""
        connection = self._readers.get()
        try:
            if self._closed:
                raise Draining("The store is closed.")
            if connection is None:
                connection = connect(self.path, busy_seconds=self._busy_seconds, query_only=True)
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("COMMIT")
        except DISK_ERRORS as error:
            raise StoreUnavailable(f"{self.path.name} can't be read ({error}).") from error
        finally:
            self._readers.put(connection)


def _number(connection: sqlite3.Connection, key: StreamKey) -> int:
    """The stream's number in the other tables; none has -1."""
    found = connection.execute("SELECT id FROM streams WHERE tenant = ? AND stream = ?", key).fetchone()
    return found[0] if found else -1


def _bytes(values: tuple[object] | None) -> bytes:
    """A column of bytes; what damage has made of it has no checksum that fits."""
    return values[0] if values and isinstance(values[0], bytes) else b""


def _find(connection: sqlite3.Connection, key: StreamKey) -> tuple[int, Row | None]:
    values = connection.execute(f"{_SELECT} WHERE tenant = ? AND stream = ?", key).fetchone()
    return (values[0], row_of(dict(zip(ROW_FIELDS, values[1:], strict=True)))) if values else (-1, None)


def _apply(connection: sqlite3.Connection, number: int, change: Change) -> None:
    values = tuple(getattr(change.row, name) for name in ROW_FIELDS)
    if number < 0:
        found = connection.execute(_INSERT, values).lastrowid
        assert found is not None
        number = found
    else:
        connection.execute(_UPDATE, (*values, number))
    if change.memory is not None:
        connection.execute("REPLACE INTO memories (id, memory) VALUES (?, ?)", (number, change.memory))
    if change.drop_all:
        connection.execute("DELETE FROM events WHERE id = ?", (number,))
    if change.keep_from:
        connection.execute("DELETE FROM events WHERE id = ? AND seq < ?", (number, change.keep_from))
    first = change.row.next_seq - len(change.events)
    added = [(number, seq, event) for seq, event in enumerate(change.events, start=first)]
    # damage may have put an event where this one belongs: its own place is empty now, which whoever reads it finds, and
    # a refusal by SQLite would pass for a failing disk and stop every stream
    connection.executemany("REPLACE INTO events (id, seq, event) VALUES (?, ?, ?)", added)
