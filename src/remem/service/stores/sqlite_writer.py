"""The one who writes to a store file, and gathers what waits into one commit."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from remem.service.errors import Draining, StaleEpoch, StoreUnavailable
from remem.service.stores.sqlite_file import DISK_ERRORS, has_remains, set_remains
from remem.service.stores.sqlite_gaps import Gaps

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], Any]
_Queued = tuple[Job | None, Future[Any]]
_Outcome = tuple[Future[Any], Any, BaseException | None]

_MOST_JOBS = 128
_GATHERING = 0.002
_PURGE_SECONDS = 0.25
_CLEARING_SECONDS = 1.0
# after these nothing was written and the next commit may succeed; after any other failure nobody knows what the disk
# holds, and to go on as if nothing had happened is how databases lose data
_HARMLESS = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY}


class Writer:
    """Runs jobs in order; each returns to its caller after the commit that holds it has reached the disk.

    A thread does it all, unless the writer is lent to an event loop. Python's threads take turns at every statement,
    and a thread that writes beside a busy loop spends its time waiting for the next turn; so the loop then runs quick
    jobs itself, tells their callers, and leaves only the commit, which waits for the disk, to a thread.
    """

    def __init__(self, connection: sqlite3.Connection, epoch: int, gaps: Gaps) -> None:
        self._connection, self._epoch, self._gaps = connection, epoch, gaps
        self._jobs: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._broken: str | None = None
        self._cleared = (0, 0)
        """Where clearing has come to: how often through the file, and the page that is next."""
        self._clear_until = (1, 0) if has_remains(connection) else (0, 0)
        self.commits = 0
        self._connection_free = threading.Lock()
        self._thread_waits = False
        """The thread wants the connection: the loop, which could take it again at once, lets it go first."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread, self._called, self._crowded = 0, False, False
        self._quick: deque[_Queued] = deque()
        self._commits = ThreadPoolExecutor(1, "remem-sqlite-commit")
        self._thread = threading.Thread(target=self._work, name="remem-sqlite-writer", daemon=True)
        self._thread.start()

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job in a transaction; its refusal comes back as the exception it raised."""
        result: T = self._submit(job).result()
        return result

    def submit(self, job: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queue a quick job; the future is done after the commit that holds it."""
        return self._submit(job, quick=True)

    @property
    def purge_wanted(self) -> bool:
        """Whether bytes of what was deleted may be in the files."""
        return self._cleared < self._clear_until

    def want_purge(self) -> None:
        """For a job that deletes: what it leaves may be anywhere, so the file is to be gone through once from here."""
        again, page = self._cleared
        self._clear_until = (again + 1, page)

    def purge(self, seconds: float = _CLEARING_SECONDS) -> bool:
        """Clear the files of what was deleted until now, in pieces, between which others write.

        False while a reader holds the log, and if it takes long; whoever asks again goes on.
        """
        until, end = self._clear_until, time.monotonic() + seconds
        while (free := bool(self._submit(None).result())) and self._cleared < until and time.monotonic() < end:
            pass
        return free and self._cleared >= until

    def lend(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """From now on quick jobs run in this loop, the running one; it must go on until the writer is taken back.

        None takes it back.
        """
        with self._closing:
            self._loop, self._called = loop, False
            self._loop_thread = threading.get_ident() if loop is not None else 0
        if loop is None:
            with self._connection_free:  # the loop may be about to take some
                while self._quick:
                    self._jobs.put(self._quick.popleft())

    def close(self) -> None:
        """Finish the queue, then close the file."""
        self.lend(None)
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._jobs.put((None, Future()))
        self._thread.join()
        self._commits.shutdown()
        self._connection.close()

    def _submit(self, job: Job | None, *, quick: bool = False) -> Future[Any]:
        future: Future[Any] = Future()
        with self._closing:
            if self._closed:
                raise Draining("The store is closed.")
            if quick and self._loop is not None:
                self._quick.append((job, future))
                if threading.get_ident() != self._loop_thread:
                    self._loop.call_soon_threadsafe(self._run_quick)
                else:
                    self._call_quick(self._loop)
            else:
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
            self._thread_waits = True
            with self._connection_free:
                self._thread_waits = False
                if group and (outcomes := self._begin(group)) is not None:
                    _tell(self._committed(outcomes))
                if last is not None:
                    last[1].set_result(self._purged())
            self._look_again()
            if last is not None and self._closed and self._jobs.empty():
                return

    def _call_quick(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the loop: run quick jobs soon, once for all that come until then."""
        if self._called:
            return
        self._called = True
        if self._crowded:  # as above
            loop.call_later(_GATHERING, self._run_quick)
        else:
            loop.call_soon(self._run_quick)

    def _run_quick(self) -> None:
        """In the loop: all quick jobs that wait, if the connection is free; if not, whoever has it calls again."""
        self._called = False
        if not self._quick or self._thread_waits or not self._connection_free.acquire(blocking=False):
            return
        loop = self._loop
        group = [self._quick.popleft() for _ in range(min(_MOST_JOBS, len(self._quick)))]
        self._crowded = len(group) > 1
        outcomes = self._begin(group) if group else None
        if outcomes is None or loop is None:
            if outcomes is not None:  # taken back meanwhile
                _tell(self._committed(outcomes))
            self._connection_free.release()
            self._look_again()
            return

        def commit() -> None:
            told = self._committed(outcomes)
            try:
                loop.call_soon_threadsafe(self._finish_quick, told)
            except RuntimeError:  # a loop that has ended against its promise
                self._connection_free.release()
                _tell(told)

        self._commits.submit(commit)

    def _finish_quick(self, outcomes: list[_Outcome]) -> None:
        self._connection_free.release()
        _tell(outcomes)
        if self._quick and self._loop is not None:
            self._call_quick(self._loop)

    def _look_again(self) -> None:
        loop = self._loop
        if self._quick and loop is not None:
            loop.call_soon_threadsafe(self._run_quick)

    def _begin(self, group: list[_Queued]) -> list[_Outcome] | None:
        """All jobs in one transaction; None if it came to nothing, which every job has been told.

        A job that is refused before it writes leaves nothing to undo.
        """
        outcomes: list[_Outcome] = []
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
        except Exception as error:
            self._refuse(group, error)
            return None
        return outcomes

    def _committed(self, outcomes: list[_Outcome]) -> list[_Outcome]:
        """To the disk; only then may anybody hear of it. What to tell them, which is a refusal if it failed."""
        try:
            self._connection.execute("COMMIT")
            self.commits += 1
        except Exception as error:
            refusal = self._rolled_back(error)
            return [(future, None, refusal) for future, _, _ in outcomes]
        return outcomes

    def _refuse(self, group: list[_Queued], error: Exception) -> None:
        refusal = self._rolled_back(error)
        for _, future in group:
            future.set_exception(refusal)

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
        """Fold the log into the file and cut it to nothing, if nobody holds it; then clear a piece of the file."""
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * _PURGE_SECONDS)}")
            busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._connection.execute("PRAGMA busy_timeout = 5000")
            return not busy and (not self.purge_wanted or self._clear_gaps())
        except (sqlite3.Error, OSError, StaleEpoch):
            return False

    def _clear_gaps(self) -> bool:
        again, page = self._cleared
        self._connection.execute("BEGIN IMMEDIATE")  # nobody writes meanwhile
        try:
            self._require_epoch()  # another's log is not empty, and may be folded in meanwhile
            following = self._gaps.clear(page)
        finally:
            self._connection.execute("ROLLBACK")
        self._connection.execute("PRAGMA shrink_memory")  # pages that are kept in memory still have theirs
        if following is None:
            return False
        self._cleared = (again, following) if following else (again + 1, 0)
        if not self.purge_wanted:
            try:
                set_remains(self._connection, False)
            except sqlite3.Error as error:  # a commit like any other
                self._rolled_back(error)
        return True


def _tell(outcomes: list[_Outcome]) -> None:
    for future, result, failure in outcomes:
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(result)
