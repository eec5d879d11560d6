"""Reading streams: opened with every check, and waited for until they are as far as wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from remem.service import ledger
from remem.service.errors import Draining, InvalidValue, NotCaughtUp, NumericsMismatch, UnknownStream
from remem.service.limits import StreamKey
from remem.service.network import Network
from remem.service.records import Row, verified_events, verified_memory
from remem.service.store import Plan, Store, Stored

Clock = Callable[[], float]
"""Seconds since 1970."""
# another process may be the writer, so nobody relies on being told
_LOOK_AGAIN_SECONDS = 0.05


class StreamReader:
    """A store and the model that reads it."""

    def __init__(self, store: Store, network: Network, *, strict_numerics: bool, read_only: bool, clock: Clock) -> None:
        self.store, self.network, self._clock = store, network, clock
        self.read_only, self._strict = read_only, strict_numerics
        self._moved = threading.Condition()
        self._closed = False

    def _read(self, key: StreamKey, *, log: bool = False) -> Stored:
        if self._closed:
            raise Draining("The engine is closed.")
        stored = self.store.read(key, log=log)
        if stored is None:
            raise _unknown(key)
        self._require_living(key, stored.row)
        return stored

    def _row(self, key: StreamKey) -> Row:
        """The counters alone, for who puts other content in place of what there is, which may be damaged."""
        row = self._writable().update(key, lambda _: None)
        if row is None:
            raise _unknown(key)
        self._require_living(key, row)
        return row

    def _require_living(self, key: StreamKey, row: Row) -> None:
        if row.expires <= (now := self._clock()):
            ledger.require_living(row.verified(key), now)

    def _opened(self, key: StreamKey, stored: Stored) -> tuple[Row, bytes, Sequence[bytes]]:
        row = stored.row.verified(key)
        ledger.require_model(row, self.network.fingerprint)
        if self._strict and row.numerics != self.network.numerics:
            raise NumericsMismatch(
                f"The memory of stream {key} was computed with {row.numerics}, not {self.network.numerics}."
            )
        return row, verified_memory(row, stored.memory), verified_events(row, stored.events, row.consolidated_seq)

    def _read_when(self, key: StreamKey, reached: Callable[[Row], bool], deadline: float) -> Stored:
        """Read a stream once it is as far as wanted."""
        while True:
            stored = self._read(key)
            if reached(stored.row):
                return stored
            if stored.row.fingerprint != self.network.fingerprint:
                ledger.require_model(stored.row, self.network.fingerprint)
            if not self._wait(deadline):
                raise NotCaughtUp(
                    f"Stream {key} has {stored.row.next_seq} events, {stored.row.consolidated_seq} of them "
                    "consolidated; that is less than was asked for.",
                    as_of_seq=stored.row.next_seq,
                    consolidated_seq=stored.row.consolidated_seq,
                )

    def _wait(self, deadline: float) -> bool:
        """Wait a little for any stream to move; False once the time is up."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        with self._moved:
            self._moved.wait(min(left, _LOOK_AGAIN_SECONDS))
        return True

    def _tell(self) -> None:
        with self._moved:
            self._moved.notify_all()

    def _update(self, key: StreamKey, plan: Plan) -> Row | None:
        return self._writable().update(key, lambda row: plan(row.verified(key) if row else None))

    def _writable(self) -> Store:
        if self._closed:
            raise Draining("The engine is closed.")
        if self.read_only:
            raise InvalidValue("The store was opened read-only; open it without read_only to change it.")
        return self.store


def _unknown(key: StreamKey) -> UnknownStream:
    return UnknownStream(f"There is no stream {key.stream!r}; an append creates it.", stream=key.stream)
