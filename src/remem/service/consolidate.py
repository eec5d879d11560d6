"""The thread that thinks later: it folds acknowledged events into memories, outside of every lock and transaction."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from remem.service import ledger
from remem.service.errors import Draining, ServiceError
from remem.service.events import cut_events
from remem.service.limits import StreamKey
from remem.service.network import Fold, Network
from remem.service.records import Row, verified_events, verified_memory
from remem.service.store import Store

_MOST_STREAMS = 16
_MOST_SEGMENTS = 64
_TRIES = 3
_RETRY_SECONDS = 0.05


class _Work(NamedTuple):
    row: Row
    fold: Fold


def _work_of(store: Store, network: Network, key: StreamKey) -> _Work | None:
    """A stream's whole segments, from one consistent read; None if there are none, or another model's."""
    stored = store.read(key)
    if stored is None or stored.row.fingerprint != network.fingerprint:
        return None
    row = stored.row.verified(key)
    cut = cut_events(verified_events(row, stored.events, row.consolidated_seq), network.segment_events)
    if not cut.segments:
        return None
    return _Work(row, Fold(verified_memory(row, stored.memory), cut.segments[:_MOST_SEGMENTS]))


def consolidate(store: Store, network: Network, keys: Sequence[StreamKey]) -> dict[StreamKey, bool | Exception]:
    """Fold the whole segments of some streams into their memories.

    Nothing is held while the network computes. Where a stream has moved on meanwhile, the result is dropped. Returns
    for each whether more may be left to do, or why it could not be done.
    """
    done: dict[StreamKey, bool | Exception] = {}
    work: dict[StreamKey, _Work] = {}
    for key in keys:
        try:
            found = _work_of(store, network, key)
        except Exception as error:  # one bad stream never stops the others
            done[key] = error
            continue
        done[key] = found is not None
        if found is not None:
            work[key] = found
    plans = {}
    for (key, (row, fold)), memory in zip(
        work.items(), network.fold_many([each.fold for each in work.values()]), strict=True
    ):
        if isinstance(memory, Exception):
            done[key] = memory
            continue
        events = sum(map(len, fold.segments))
        plans[key] = ledger.consolidating(
            row, memory=memory, events=events, segments=len(fold.segments), numerics=network.numerics
        )
    store.update_many(list(plans.items()))
    return done


class Consolidator:
    """One worker over a queue of streams, each at most once in it; it takes several at a time."""

    def __init__(self, store: Store, network: Network, on_change: Callable[[], None]) -> None:
        self._store, self._network, self._on_change = store, network, on_change
        self._waiting: OrderedDict[StreamKey, int] = OrderedDict()
        self._busy: dict[StreamKey, int] = {}
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
            return len(self._waiting) + len(self._busy)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def close(self) -> None:
        """Stop after the streams in hand; what is left is found again at the next start."""
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
                while self._waiting and len(self._busy) < _MOST_STREAMS:
                    key, failures = self._waiting.popitem(last=False)
                    self._busy[key] = failures
            again = self._turn(dict(self._busy))
            with self._changed:
                self._busy = {}
                if not self._stopping:
                    for key, failures in again.items():
                        self._waiting.setdefault(key, failures)
                self._changed.notify_all()
            self._on_change()

    def _turn(self, streams: dict[StreamKey, int]) -> dict[StreamKey, int]:
        """One consolidation of each; returns those that must come again, with their failures so far."""
        try:
            done = consolidate(self._store, self._network, list(streams))
        except Draining:
            return {}
        except Exception as whole:  # of the network or the store as a whole: whose fault it is shows one by one
            if len(streams) > 1:
                return {key: again for each in streams for key, again in self._turn({each: streams[each]}).items()}
            done = dict.fromkeys(streams, whole)
        again = {key: 0 for key, outcome in done.items() if outcome is True}
        failed = {key: outcome for key, outcome in done.items() if isinstance(outcome, Exception)}
        for key, error in failed.items():
            if streams[key] + 1 < _TRIES:
                again[key] = streams[key] + 1
            else:
                self._give_up(key, error)
        if any(again.get(key) for key in failed):
            time.sleep(_RETRY_SECONDS)
        return again

    def _give_up(self, key: StreamKey, error: Exception) -> None:
        """Mark the stream as one that can't be consolidated; its memory stays the last good one."""
        code = error.code if isinstance(error, ServiceError) else type(error).__name__
        try:
            stored = self._store.read(key)
            if stored is not None:
                self._store.update(key, ledger.failing(stored.row, f"{code}: {error}"[:500]))
        except Exception:  # the store itself is gone: the next start finds the tail again
            return
