"""A store in this process's memory, for tests and trials: the contract, and nothing that outlives the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from remem.service.errors import StaleEpoch
from remem.service.limits import StreamKey
from remem.service.records import Row
from remem.service.store import Change, Deleted, Plan, Stored, is_doomed


@dataclass
class _Stream:
    row: Row
    memory: bytes
    events: list[bytes] = field(default_factory=list)
    snapshots: dict[str, bytes] = field(default_factory=dict)


@dataclass
class Backing:
    """What a `MemoryStore` keeps; a second store opened on it takes it over, as a restart would."""

    streams: dict[StreamKey, _Stream] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    epoch: int = 0


class MemoryStore:
    """Streams in a dict, behind one lock."""

    def __init__(self, backing: Backing | None = None) -> None:
        self._backing = backing if backing is not None else Backing()
        with self._backing.lock:
            self._backing.epoch += 1
            self._epoch = self._backing.epoch

    @property
    def description(self) -> str:
        """Kind and durability."""
        return "memory, nothing outlives the process"

    def update(self, key: StreamKey, plan: Plan) -> Row | None:
        """Decide and write under the lock."""
        with self._backing.lock:
            self._require_epoch()
            stream = self._backing.streams.get(key)
            change = plan(stream.row if stream else None)
            if change is None:
                return stream.row if stream else None
            self._backing.streams[key] = _applied(stream, change)
            return change.row

    def update_many(self, plans: Sequence[tuple[StreamKey, Plan]]) -> None:
        """One after the other."""
        for key, plan in plans:
            self.update(key, plan)

    def read(self, key: StreamKey, *, log: bool = False) -> Stored | None:
        """A copy of one moment."""
        with self._backing.lock:
            if (stream := self._backing.streams.get(key)) is None:
                return None
            tail = stream.row.tail_events
            events = stream.events if log else stream.events[len(stream.events) - tail :]
            return Stored(stream.row, stream.memory, list(events))

    def delete(self, key: StreamKey) -> Deleted:
        """Forget the stream."""
        with self._backing.lock:
            self._require_epoch()
            return Deleted(self._backing.streams.pop(key, None) is not None, "done")

    def expired(self, now: float, most: int) -> list[StreamKey]:
        """Streams whose time is up."""
        with self._backing.lock:
            found = [(stream.row.expires, key) for key, stream in self._backing.streams.items()]
        return [key for expires, key in sorted(found) if expires <= now][:most]

    def discard(self, keys: Sequence[StreamKey], doomed: Callable[[Row], bool]) -> list[Row]:
        """Forget the doomed."""
        with self._backing.lock:
            self._require_epoch()
            gone = []
            for key in keys:
                stream = self._backing.streams.get(key)
                if stream is not None and is_doomed(stream.row, doomed):
                    gone.append(self._backing.streams.pop(key).row)
            return gone

    def page(self, tenant: str, prefix: str, after: str, limit: int, now: float) -> list[str]:
        """A page of names."""
        with self._backing.lock:
            streams = self._backing.streams.items()
            names = sorted(key.stream for key, stream in streams if key.tenant == tenant and stream.row.expires > now)
            return [name for name in names if name.startswith(prefix) and name > after][:limit]

    def keys(self) -> Iterator[StreamKey]:
        """All streams."""
        with self._backing.lock:
            return iter(sorted(self._backing.streams))

    def pending(self) -> list[StreamKey]:
        """Streams with a tail."""
        with self._backing.lock:
            return sorted(key for key, stream in self._backing.streams.items() if stream.row.tail_events)

    def put_snapshot(self, of: Row, name: str, archive: bytes, most: int) -> bool:
        """Keep a copy."""
        with self._backing.lock:
            self._require_epoch()
            stream = self._backing.streams.get(of.key)
            if stream is None or stream.row.birth != of.birth:
                return False
            if name not in stream.snapshots and len(stream.snapshots) >= most:
                return False
            stream.snapshots[name] = archive
            return True

    def snapshots(self, key: StreamKey) -> list[str]:
        """Names of copies."""
        with self._backing.lock:
            stream = self._backing.streams.get(key)
            return sorted(stream.snapshots) if stream else []

    def get_snapshot(self, key: StreamKey, name: str) -> bytes | None:
        """A copy."""
        with self._backing.lock:
            stream = self._backing.streams.get(key)
            return stream.snapshots.get(name) if stream else None

    def num_bytes(self, key: StreamKey) -> int:
        """Memory, events and copies."""
        with self._backing.lock:
            if (stream := self._backing.streams.get(key)) is None:
                return 0
            kept = [stream.memory, stream.row.digests, stream.row.keyed, *stream.events, *stream.snapshots.values()]
            return sum(map(len, kept))

    def purge_pending(self, seconds: float = 0.0) -> bool:
        """There are no files."""
        return False

    def require_writable(self) -> None:
        """Whether the store is still ours."""
        with self._backing.lock:
            self._require_epoch()

    def problems(self) -> list[str]:
        """There are no files."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""

    def _require_epoch(self) -> None:
        if self._epoch != self._backing.epoch:
            raise StaleEpoch("Another engine has taken over this store; this one must not write any more.")


def _applied(stream: _Stream | None, change: Change) -> _Stream:
    old = stream if stream and not change.anew else _Stream(change.row, b"")
    events = [*([] if change.drop_all else old.events), *change.events]
    first = change.row.next_seq - len(events)
    memory = old.memory if change.memory is None else change.memory
    return _Stream(change.row, memory, events[max(0, change.keep_from - first) :], old.snapshots)
