"""The thread that thinks later: it folds acknowledged events into memories, outside of every lock and transaction."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from remem.service import ledger
from remem.service.errors import Draining, ServiceError
from remem.service.events import cut_events
from remem.service.limits import StreamKey
from remem.service.network import Network
from remem.service.records import Row, verified_events, verified_memory
from remem.service.store import Store

_MOST_SEGMENTS = 64
_TRIES = 3
_RETRY_SECONDS = 0.05


def consolidate(store: Store, network: Network, key: StreamKey) -> bool:
    """Fold a stream's whole segments into its memory; returns whether more may be left to do.

    Nothing is held while the network computes. If the stream has moved on meanwhile, the result is dropped.
    """
    stored = store.read(key)
    if stored is None or stored.row.fingerprint != network.fingerprint:
        return False
    row = stored.row.verified(key)
    cut = cut_events(verified_events(row, stored.events, row.consolidated_seq), network.segment_events)
    if not cut.segments:
        return False
    segments = cut.segments[:_MOST_SEGMENTS]
    memory = network.fold(verified_memory(row, stored.memory), segments)
    plan = ledger.consolidating(
        row, memory=memory, events=sum(map(len, segments)), segments=len(segments), numerics=network.numerics
    )
    store.update(key, plan)
    return True


class Consolidator:
    """One worker over a queue of streams, each at most once in it."""

    def __init__(self, store: Store, network: Network, on_change: Callable[[], None]) -> None:
        self._store, self._network, self._on_change = store, network, on_change
        self._waiting: OrderedDict[StreamKey, int] = OrderedDict()
        self._busy: StreamKey | None = None
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="remem-consolidator", daemon=True)
        self._thread.start()

    def schedule(self, key: StreamKey) -> None:
        """Look at a stream soon."""
        with self._changed:
            if not self._stopping:
                self._waiting.setdefault(key, 0)
                self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Streams that wait for their turn."""
        with self._changed:
            return len(self._waiting) + (self._busy is not None)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and self._busy is None, timeout)

    def close(self) -> None:
        """Stop after the stream in hand; what is left is found again at the next start."""
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
                self._busy, failures = self._waiting.popitem(last=False)
            again = self._turn(self._busy, failures)
            with self._changed:
                if again is not None and not self._stopping:
                    self._waiting.setdefault(self._busy, again)
                self._busy = None
                self._changed.notify_all()
            self._on_change()

    def _turn(self, key: StreamKey, failures: int) -> int | None:
        """One consolidation; returns the failures so far if the stream must come again, else None."""
        start: Row | None = None
        try:
            stored = self._store.read(key)
            start = stored.row if stored else None
            return 0 if consolidate(self._store, self._network, key) else None
        except Draining:
            return None
        except Exception as error:  # one bad stream never stops the others
            if failures + 1 < _TRIES:
                time.sleep(_RETRY_SECONDS)
                return failures + 1
            self._give_up(key, start, error)
            return None

    def _give_up(self, key: StreamKey, start: Row | None, error: Exception) -> None:
        if start is None:
            return
        code = error.code if isinstance(error, ServiceError) else type(error).__name__
        try:
            self._store.update(key, ledger.failing(start, f"{code}: {error}"[:500]))
        except Exception:  # the store itself is gone: the next start finds the tail again
            return
