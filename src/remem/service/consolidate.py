"""The thread that thinks later: it folds acknowledged events into memories, outside of every lock and transaction."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from remem.service import ledger
from remem.service.errors import Draining, ServiceError, StoreUnavailable
from remem.service.events import cut_events
from remem.service.limits import StreamKey
from remem.service.network import Fold, Network
from remem.service.records import Place, verified_events, verified_memory
from remem.service.store import Store

_MOST_STREAMS = 16
_MOST_SEGMENTS = 64
_SIDE_BY_SIDE = 8
_TRIES = 3
_RETRY_SECONDS = 0.05
_GATHERING = 0.1
"""Seconds between two turns, for company: side by side streams cost a fraction. Nobody waits for a memory meanwhile."""


class Prepared(NamedTuple):
    """A memory to be put into its stream, if that is still at the place it was computed from."""

    place: Place
    memory: bytes
    events: int
    segments: int
    numerics: str
    more: bool
    """Whether further segments wait."""


class Failed(NamedTuple):
    """Why a stream could not be folded."""

    reason: str
    of_store: bool = False
    """Whether the store was at fault, which says nothing about the stream."""


Outcome = Prepared | Failed | None
"""None where a stream has nothing to fold."""
Prepare = Callable[[Sequence[StreamKey]], dict[StreamKey, Outcome]]


class _Work(NamedTuple):
    place: Place
    fold: Fold
    more: bool


def prepare(
    store: Store,
    network: Network,
    keys: Sequence[StreamKey],
    between: Callable[[], None] = lambda: None,
    slice_segments: int = _MOST_SEGMENTS,
) -> dict[StreamKey, Outcome]:
    """Fold the whole segments of some streams into copies of their memories; nothing is held and nothing is changed.

    Each stream is read once, consistently. One that fails stops no other. `between` is called after a few streams, and
    after so many segments of them, for who computes for others as well.
    """
    outcomes: dict[StreamKey, Outcome] = {}
    work: dict[StreamKey, _Work] = {}
    for key in keys:
        try:
            found = _work_of(store, network, key)
        except Exception as error:  # one bad stream never stops the others
            outcomes[key] = failed(error)
            continue
        outcomes[key] = None
        if found is not None:
            work[key] = found
    due = list(work.items())
    for group in (due[start : start + _SIDE_BY_SIDE] for start in range(0, len(due), _SIDE_BY_SIDE)):
        memories = _folded(network, [each.fold for _, each in group], between, slice_segments)
        for (key, (place, fold, more)), memory in zip(group, memories, strict=True):
            events, segments = sum(map(len, fold.segments)), len(fold.segments)
            outcomes[key] = (
                failed(memory)
                if isinstance(memory, Exception)
                else Prepared(place, memory, events, segments, network.numerics, more)
            )
    return outcomes


def put_in(store: Store, outcomes: Mapping[StreamKey, Outcome]) -> None:
    """Put in the memories that were prepared. Where a stream has moved on meanwhile, its result is dropped."""
    plans = [
        (key, ledger.consolidating(found.place, memory=found.memory, events=found.events, segments=found.segments,
                                   numerics=found.numerics))
        for key, found in outcomes.items() if isinstance(found, Prepared)
    ]  # fmt: skip
    store.update_many(plans)


def failed(error: Exception) -> Failed:
    """An error in the words that a stream's row keeps."""
    code = error.code if isinstance(error, ServiceError) else type(error).__name__
    return Failed(f"{code}: {error}"[:500], isinstance(error, StoreUnavailable))


def _work_of(store: Store, network: Network, key: StreamKey) -> _Work | None:
    """A stream's whole segments; None if there are none, or another model's."""
    stored = store.read(key)
    if stored is None or stored.row.fingerprint != network.fingerprint:
        return None
    row = stored.row.verified(key)
    found = cut_events(verified_events(row, stored.events, row.consolidated_seq), network.segment_events).segments
    if not found:
        return None
    fold = Fold(verified_memory(row, stored.memory), found[:_MOST_SEGMENTS])
    return _Work(row.place, fold, len(found) > _MOST_SEGMENTS)


def _folded(network: Network, folds: Sequence[Fold], between: Callable[[], None], step: int) -> list[bytes | Exception]:
    """The memories after all segments, a slice at a time: any chunking gives the same bits."""
    memories: list[bytes | Exception] = [fold.memory for fold in folds]
    for start in range(0, max(len(fold.segments) for fold in folds), step):
        going = {
            place: Fold(memory, fold.segments[start : start + step])
            for place, (fold, memory) in enumerate(zip(folds, memories, strict=True))
            if start < len(fold.segments) and isinstance(memory, bytes)
        }
        for place, memory in zip(going, _tried(network, list(going.values())), strict=True):
            memories[place] = memory
        between()
    return memories


def _tried(network: Network, folds: Sequence[Fold]) -> Sequence[bytes | Exception]:
    """Streams side by side; where that fails as a whole, whose fault it is shows one by one."""
    try:
        return network.fold_many(folds)
    except Exception as whole:
        return [each for fold in folds for each in _tried(network, [fold])] if len(folds) > 1 else [whole]


class Consolidator:
    """One worker over a queue of streams, each at most once in it; it takes several at a time."""

    def __init__(self, store: Store, network: Network, on_change: Callable[[], None]) -> None:
        self._store, self._network, self._on_change = store, network, on_change
        self.prepare: Prepare = self.prepare_here
        """What computes; somebody else may be put in its place."""
        self.given_up = 0
        """How often a stream was marked as one that can't be consolidated."""
        self._waiting: OrderedDict[StreamKey, int] = OrderedDict()
        self._busy: dict[StreamKey, int] = {}
        self._changed = threading.Condition()
        self._stopping, self._urgent, self._settling = False, False, 0
        self._thread = threading.Thread(target=self._work, name="remem-consolidator", daemon=True)
        self._thread.start()

    def prepare_here(self, keys: Sequence[StreamKey]) -> dict[StreamKey, Outcome]:
        """As `prepare`, unless the worker is told to stop."""
        return prepare(self._store, self._network, keys, self._require_going)

    def _require_going(self) -> None:
        if self._stopping:
            raise Draining("The engine is closed.")

    def schedule(self, key: StreamKey, *, urgent: bool = False) -> None:
        """Look at a stream soon, or at once if somebody waits for it."""
        with self._changed:
            if not self._stopping:
                self._waiting.setdefault(key, 0)
                self._urgent |= urgent
                self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Streams that wait for their turn."""
        with self._changed:
            return len(self._waiting) + len(self._busy)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do; False if that takes longer."""
        with self._changed:
            self._settling += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)
            finally:
                self._settling -= 1

    def close(self) -> None:
        """Stop after the streams in hand; what is left is found again at the next start."""
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        turned = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                # somebody who comes alone never waits for company
                self._changed.wait_for(self._is_due, turned + _GATHERING - time.monotonic())
                if self._stopping:
                    return
                self._urgent = False
                while self._waiting and len(self._busy) < _MOST_STREAMS:
                    key, failures = self._waiting.popitem(last=False)
                    self._busy[key] = failures
            again = self._turn(dict(self._busy))
            turned = time.monotonic()
            with self._changed:
                self._busy = {}
                if not self._stopping:
                    for key, failures in again.items():
                        self._waiting.setdefault(key, failures)
                        self._urgent = True
                self._changed.notify_all()
            self._on_change()

    def _is_due(self) -> bool:
        return self._stopping or self._urgent or self._settling > 0 or len(self._waiting) >= _MOST_STREAMS

    def _turn(self, streams: dict[StreamKey, int]) -> dict[StreamKey, int]:
        """One consolidation of each; returns those that must come again, with their failures so far."""
        try:
            outcomes = self.prepare(list(streams))
            put_in(self._store, outcomes)
        except Draining:
            return {}
        except Exception as whole:  # of the store: whose fault it is shows one by one
            if len(streams) > 1:
                return {key: again for each in streams for key, again in self._turn({each: streams[each]}).items()}
            outcomes = dict.fromkeys(streams, failed(whole))
        again = {key: 0 for key, found in outcomes.items() if isinstance(found, Prepared) and found.more}
        for key, found in outcomes.items():
            if not isinstance(found, Failed):
                continue
            if streams[key] + 1 < _TRIES:
                again[key] = streams[key] + 1
            else:
                self._give_up(key, found)
        if any(again.values()):
            time.sleep(_RETRY_SECONDS)
        return again

    def _give_up(self, key: StreamKey, found: Failed) -> None:
        """Mark the stream as one that can't be consolidated; its memory stays the last good one."""
        if found.of_store:  # the next append, or the next start, finds the tail again
            return
        try:
            stored = self._store.read(key)
            if stored is not None:
                self._store.update(key, ledger.failing(stored.row, found.reason))
                self.given_up += stored.row.error != found.reason
        except Exception:  # the store itself is gone: the next start finds the tail again
            return
