"""The tail as a question sees it: written to a copy of the memory, which is never stored but kept for the next one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from remem.service.events import cut_events
from remem.service.network import Fold, Network
from remem.service.records import Row

_MOST_BYTES = 32 * 2**20
_Key = tuple[str, int, int, int]


def _key(row: Row) -> _Key:
    return row.birth, row.generation, row.consolidated_seq, row.next_seq


class Peeks:
    """Memories with their tails in them, the least used dropped. An event never changes, so nothing here goes stale."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def memory(self, row: Row, memory: bytes, payloads: Sequence[bytes]) -> bytes:
        """The memory after all events of a stream."""
        key = _key(row)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        seen = self._network.fold(*self._fold(memory, payloads))
        self._keep(key, seen)
        return seen

    def fill(self, streams: Sequence[tuple[Row, bytes, Sequence[bytes]]]) -> None:
        """Fold the tails of several streams side by side, for those that ask next."""
        missing = [(_key(row), memory, payloads) for row, memory, payloads in streams if _key(row) not in self._kept]
        folded = self._network.fold_many([self._fold(memory, payloads) for _, memory, payloads in missing])
        for (key, _, _), seen in zip(missing, folded, strict=True):
            if not isinstance(seen, Exception):
                self._keep(key, seen)

    def _fold(self, memory: bytes, payloads: Sequence[bytes]) -> Fold:
        cut = cut_events(payloads, self._network.segment_events)
        return Fold(memory, [*cut.segments, *([cut.rest] if cut.rest else [])])

    def _keep(self, key: _Key, seen: bytes) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = seen
                self._bytes += len(seen)
            while self._bytes > _MOST_BYTES:
                self._bytes -= len(self._kept.popitem(last=False)[1])

    def forget(self, birth: str) -> None:
        """Drop what is kept of a stream."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == birth]:
                self._bytes -= len(self._kept.pop(key))
