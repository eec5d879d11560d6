"""The store file itself: who may write to it, its format, and how a connection is set up."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from remem.service.errors import IncompatibleFormat, ServiceError, StoreInUse, StoreUnavailable
from remem.service.records import STORE_VERSION
from remem.service.store import Durability
from remem.service.stores.sqlite_copy import copy_store, sync
from remem.service.stores.sqlite_upgrade import STEPS, upgrade

# a damaged file may also break the text of SQLite's own messages
DISK_ERRORS = (sqlite3.Error, UnicodeDecodeError)
_WAL_BYTES = 16 * 2**20
SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    """CREATE TABLE streams (
        id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, stream TEXT NOT NULL, birth TEXT NOT NULL,
        generation INTEGER NOT NULL, version INTEGER NOT NULL, next_seq INTEGER NOT NULL,
        consolidated_seq INTEGER NOT NULL, fingerprint TEXT NOT NULL, numerics TEXT NOT NULL,
        numerics_changes INTEGER NOT NULL, retention TEXT NOT NULL, digests BLOB NOT NULL, memory_check TEXT NOT NULL,
        created REAL NOT NULL, updated REAL NOT NULL, error TEXT NOT NULL, "check" TEXT NOT NULL,
        ttl REAL NOT NULL DEFAULT 0, keyed BLOB NOT NULL DEFAULT x'', UNIQUE (tenant, stream))""",
    # apart from the counters, so that an append need not rewrite the memory
    "CREATE TABLE memories (id INTEGER PRIMARY KEY, memory BLOB NOT NULL)",
    "CREATE TABLE events (id INTEGER, seq INTEGER, event BLOB NOT NULL, PRIMARY KEY (id, seq)) WITHOUT ROWID",
    "CREATE TABLE snapshots (id INTEGER, name TEXT, archive BLOB NOT NULL, PRIMARY KEY (id, name))",
    "CREATE INDEX with_tail ON streams (tenant, stream) WHERE next_seq > consolidated_seq",
    "CREATE INDEX expiring ON streams (updated + ttl) WHERE ttl > 0",
)


class FileLock:
    """One writing process to a store file; the system lets go of it when the process ends, however it ends."""

    def __init__(self, store: Path) -> None:
        try:
            self._file = os.open(store.with_name(store.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"{store} can't be opened for writing ({error.strerror}).") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise StoreInUse(
                f"Another process writes to {store.name}; stop it first, use its server, or open the store read-only."
            ) from None

    def release(self) -> None:
        """Let the next process in."""
        os.close(self._file)


def connect(
    path: Path, *, busy_seconds: float, durability: Durability = "fsync", query_only: bool = False
) -> sqlite3.Connection:
    """A connection without automatic transactions. A store that is read must be there; a writer makes it."""
    try:
        mode = "rw" if query_only else "rwc"
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False,
            timeout=busy_seconds,
        )  # fmt: skip
        # freed pages are overwritten with zeros: what is deleted leaves the file
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'fsync' else 'NORMAL'}")
        if query_only:
            connection.execute("PRAGMA query_only = ON")
    except DISK_ERRORS as error:
        raise StoreUnavailable(f"{path} can't be opened ({error}).") from None
    return connection


def prepare(connection: sqlite3.Connection, path: Path) -> int:
    """Set up a new store or check an old one; returns this writer's epoch."""
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        connection.execute("BEGIN IMMEDIATE")
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in SCHEMA:
                connection.execute(statement)
            values = [("format_version", STORE_VERSION), ("epoch", 0)]
            connection.executemany("INSERT INTO meta (name, value) VALUES (?, ?)", values)
        elif (found := _version(connection, path)) in STEPS:
            # nobody else writes, so what was copied is what will be changed
            connection.execute("ROLLBACK")
            copy_store(connection, path.with_name(f"{path.name}.format-{found}.backup"), replace=True)
            connection.execute("BEGIN IMMEDIATE")
            upgrade(connection, found)
        _require_version(connection, path)
        connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
        epoch = int(connection.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()[0])
        connection.execute("COMMIT")
    except (*DISK_ERRORS, OSError) as error:
        connection.close()
        raise StoreUnavailable(f"{path} can't be used as a store ({error}).") from None
    except ServiceError:
        connection.close()
        raise
    sync(path.parent)  # the file's own name must survive a power cut too
    return epoch


def require_format(path: Path) -> None:
    """Refuse a file that is no store of ours, or one of another release's format."""
    if not path.is_file():
        raise StoreUnavailable(f"{path} does not exist; an append creates it.")
    connection = connect(path, busy_seconds=5.0, query_only=True)
    try:
        _require_version(connection, path)
    except DISK_ERRORS as error:
        raise StoreUnavailable(f"{path} can't be used as a store ({error}).") from None
    finally:
        connection.close()


def _version(connection: sqlite3.Connection, path: Path) -> object:
    if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'meta'").fetchone()[0]:
        raise IncompatibleFormat(f"{path} is an SQLite file of something else; it was left as it is.")
    found = connection.execute("SELECT value FROM meta WHERE name = 'format_version'").fetchone()
    return found and found[0]


def _require_version(connection: sqlite3.Connection, path: Path) -> None:
    found = _version(connection, path)
    if found in STEPS:
        raise IncompatibleFormat(
            f"{path} has the older format {found}; open it once for writing, which makes a copy and brings it to "
            f"format {STORE_VERSION}."
        )
    if found != STORE_VERSION:
        raise IncompatibleFormat(
            f"{path} has the format {found}; this release reads {STORE_VERSION}. The file was left as it is; open it "
            "with the release that wrote it."
        )


def has_remains(connection: sqlite3.Connection) -> bool:
    """Whether bytes of what was deleted may still be in the files; a process that was killed can't tell the next."""
    return connection.execute("SELECT 1 FROM meta WHERE name = 'remains'").fetchone() is not None


def set_remains(connection: sqlite3.Connection, remain: bool) -> None:
    """Note it: in the transaction that deletes, and once the files are clear."""
    if remain:
        connection.execute("REPLACE INTO meta (name, value) VALUES ('remains', 1)")
    else:
        connection.execute("DELETE FROM meta WHERE name = 'remains'")
