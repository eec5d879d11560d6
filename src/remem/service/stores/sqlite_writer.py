"""The one thread that writes to a store file, and gathers what waits into one commit."""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from remem.service.errors import Draining, StaleEpoch, StoreUnavailable
from remem.service.stores.sqlite_file import DISK_ERRORS

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], Any]

_MOST_JOBS = 128
_GATHERING = 0.002
_PURGE_SECONDS = 0.25
# after these nothing was written and the next commit may succeed; after any other failure nobody knows what the disk
# holds, and to go on as if nothing had happened is how databases lose data
_HARMLESS = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY}


class Writer:
    """Runs jobs in order; each returns to its caller after the commit that holds it has reached the disk."""

    def __init__(self, connection: sqlite3.Connection, epoch: int) -> None:
        self._connection, self._epoch = connection, epoch
        self._jobs: queue.SimpleQueue[tuple[Job | None, Future[Any]]] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._broken: str | None = None
        self.purge_wanted = False
        self.commits = 0
        self._thread = threading.Thread(target=self._work, name="remem-sqlite-writer", daemon=True)
        self._thread.start()

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job in a transaction; its refusal comes back as the exception it raised."""
        return self.submit(job).result()

    def submit(self, job: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queue a job; the future is done after the commit that holds it."""
        return self._submit(job)

    def purge(self) -> bool:
        """Fold the log into the file and cut it to nothing; False while a reader holds it."""
        future = self._submit(None)
        purged: bool = future.result()
        return purged

    def close(self) -> None:
        """Finish the queue, then close the file."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._jobs.put((None, Future()))
        self._thread.join()
        self._connection.close()

    def _submit(self, job: Job | None) -> Future[Any]:
        future: Future[Any] = Future()
        with self._closing:
            if self._closed:
                raise Draining("The store is closed.")
            self._jobs.put((job, future))
        return future

    def _work(self) -> None:
        crowded = False
        while True:
            group = [self._jobs.get()]
            if crowded and not self._closed:  # a sync shared by more; somebody who writes alone never waits
                time.sleep(_GATHERING)
            while group[-1][0] is not None and len(group) < _MOST_JOBS:
                try:
                    group.append(self._jobs.get_nowait())
                except queue.Empty:
                    break
            last = group.pop() if group[-1][0] is None else None
            crowded = len(group) > 1
            if group:
                self._commit(group)
            if last is not None:
                last[1].set_result(self._purged())
                if self._closed and self._jobs.empty():
                    return

    def _commit(self, group: list[tuple[Job | None, Future[Any]]]) -> None:
        """All jobs in one transaction. One that is refused before it writes leaves nothing to undo."""
        outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            if self._broken:
                raise StoreUnavailable(self._broken)
            self._connection.execute("BEGIN IMMEDIATE")
            self._require_epoch()
            for job, future in group:
                assert job is not None
                written = self._connection.total_changes
                try:
                    outcomes.append((future, job(self._connection), None))
                except Exception as refused:
                    if isinstance(refused, DISK_ERRORS) or self._connection.total_changes != written:
                        raise
                    outcomes.append((future, None, refused))
            self._connection.execute("COMMIT")
            self.commits += 1
        except Exception as error:
            refusal = self._rolled_back(error)
            for _, future in group:
                future.set_exception(refusal)
            return
        for future, result, failure in outcomes:
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)

    def _rolled_back(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code not in _HARMLESS:
                self._broken = f"Writing has stopped after a failure of the disk ({error}); open the store again."
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as second:
            self._broken = f"Writing has stopped after a failure of the disk ({second}); open the store again."
        if isinstance(error, sqlite3.Error):
            return StoreUnavailable(self._broken or f"Nothing was written: {error}.")
        return error

    def _require_epoch(self) -> None:
        found = self._connection.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
        if found is None or found[0] != self._epoch:
            raise StaleEpoch("Another process has taken over this store; this one must not write any more.")

    def _purged(self) -> bool:
        self.purge_wanted = True
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * _PURGE_SECONDS)}")
            busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._connection.execute("PRAGMA busy_timeout = 5000")
        except sqlite3.Error:
            return False
        self.purge_wanted = bool(busy)
        return not busy
