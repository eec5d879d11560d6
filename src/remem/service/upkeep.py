"""What is done to whole streams: look, list, copy, go back, fold again, take out and in, delete, check."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from remem.service import ledger
from remem.service.admin import inspected, rebuilt, restored, verified
from remem.service.archive import write_archive
from remem.service.consolidate import Consolidator
from remem.service.errors import Draining, InvalidValue, MemoryDamaged, StreamChanged, TooManySnapshots, UnknownSnapshot
from remem.service.expiry import Sweeper
from remem.service.importing import checked_import
from remem.service.inputs import checked_replay
from remem.service.keys import KeyedCall, keyed_call, recall
from remem.service.limits import DEFAULT_TENANT, Limits, StreamKey, checked_name, stream_key
from remem.service.network import Network
from remem.service.reading import Clock, StreamReader
from remem.service.records import Row, verified_events, verified_memory
from remem.service.results import Appended, Inspected, Listed, Verified
from remem.service.store import Deleted, Plan, Store, Stored

_MOST_SWEPT = 256
_CLEARING_SECONDS = 1.0


class StreamKeeper(StreamReader):
    """The verbs of who looks after streams, and the threads that do so by themselves."""

    def __init__(
        self,
        store: Store,
        network: Network,
        *,
        limits: Limits,
        strict_numerics: bool,
        read_only: bool,
        sweep_seconds: float,
        clock: Clock,
    ) -> None:
        super().__init__(store, network, strict_numerics=strict_numerics, read_only=read_only, clock=clock)
        self.limits = limits
        self._consolidator: Consolidator | None = None
        if not read_only and network.fingerprint:
            self._consolidator = Consolidator(store, network, self._tell)
            for key in store.pending():
                self._consolidator.schedule(key)
        self._sweeper = None if read_only else Sweeper(self.sweep, sweep_seconds)

    def inspect(self, stream: str, *, tenant: str = DEFAULT_TENANT) -> Inspected:
        """Where a stream is, how it fares, what it takes; never what it holds."""
        key = stream_key(stream, tenant)
        stored = self._read(key)
        return inspected(self.store, self.network, key, stored)

    def list(
        self, *, prefix: str = "", cursor: str | None = None, limit: int = 100, tenant: str = DEFAULT_TENANT
    ) -> Listed:
        """Names of a tenant's streams, in order, a page at a time."""
        checked_name(tenant, "tenant")
        if prefix:
            checked_name(prefix, "prefix")
        if cursor:
            checked_name(cursor, "cursor")
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= self.limits.list_page:
            raise InvalidValue(f"limit is {limit!r}; expected 1 to {self.limits.list_page}.", path="limit")
        names = self.store.page(tenant, prefix, cursor or "", limit + 1, self._clock())
        return Listed(streams=names[:limit], cursor=names[limit - 1] if len(names) > limit else None)

    def delete(self, stream: str, *, tenant: str = DEFAULT_TENANT) -> Deleted:
        """Remove memory, events and snapshots from the store's files; also answers when there was nothing."""
        key = stream_key(stream, tenant)
        try:
            stored = self._writable().read(key)
        except MemoryDamaged:  # which is no reason to keep it
            stored = None
        deleted = self._writable().delete(key)
        self._tell()
        expired = stored is not None and stored.row.expires <= self._clock()
        return Deleted(deleted.existed and not expired, deleted.purge)

    def sweep(self) -> int:
        """Take streams whose time is up out of the store's files; returns how many. A thread does so by itself."""
        swept, now = 0, self._clock()
        while True:
            keys = self._writable().expired(now, _MOST_SWEPT)
            # looked at again in the transaction that removes it: an append may have come between
            gone = self.store.discard(keys, lambda row: row.verified(row.key).expires <= now) if keys else []
            swept += len(gone)
            if len(gone) < _MOST_SWEPT:
                self.store.purge_pending(_CLEARING_SECONDS)
                return swept

    def snapshot(
        self, stream: str, name: str, *, idempotency_key: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> None:
        """Keep a named copy of the stream as it is now; an older one of that name is replaced."""
        key, name = stream_key(stream, tenant), checked_name(name, "snapshot")
        call = keyed_call(idempotency_key, "snapshot", name.encode())
        start = self._read(key).row
        if self._recalled(start, call) is not None:
            return
        start, archive = self._exported(key)
        if not self._writable().put_snapshot(start, name, archive, self.limits.snapshots):
            if self._read(key).row.birth != start.birth:
                raise StreamChanged(f"Stream {key} was deleted meanwhile; nothing was copied. Try again.")
            raise TooManySnapshots(
                f"Stream {key} has {self.limits.snapshots} snapshots, the most it may have; a snapshot {name!r} would "
                "be one more. Take the name of one that may go: it is replaced."
            )
        if call is not None:
            self._update(key, ledger.remembering(start, call, self._clock()))

    def restore(
        self, stream: str, name: str, *, idempotency_key: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> Appended:
        """Put a snapshot in place of what the stream holds; the writer goes on from the `next_seq` returned."""
        key, name = stream_key(stream, tenant), checked_name(name, "snapshot")
        call = keyed_call(idempotency_key, "restore", name.encode())
        start = self._row(key)
        if (done := self._recalled(start, call)) is not None:
            return done
        if (archive := self.store.get_snapshot(key, name)) is None:
            raise UnknownSnapshot(f"Stream {key} has no snapshot {name!r}.")
        return self._swapped(key, ledger.replacing(start, restored(archive, start), self._clock(), call))

    def rebuild(
        self,
        stream: str,
        events: Iterable[Any] | None = None,
        *,
        idempotency_key: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Appended:
        """Fold a stream again with this engine's model, from the events it retained, or from those given.

        Those given are the stream from now on, from number 0. The old memory serves until the new one takes its place;
        if events came in meanwhile, nothing is changed and `StreamChanged` is raised.
        """
        key = stream_key(stream, tenant)
        stored = self._read(key, log=True) if events is None else Stored(self._row(key), b"", [])
        given = None if events is None else checked_replay(self.network, self.limits, events)
        call = keyed_call(idempotency_key, "rebuild", *([] if given is None else [b"given", *given]))
        if (done := self._recalled(stored.row, call)) is not None:
            return done
        new = rebuilt(stored, given, self.network, self.limits)
        return self._swapped(key, ledger.replacing(stored.row, new, self._clock(), call))

    def export(self, stream: str, *, tenant: str = DEFAULT_TENANT) -> bytes:
        """The stream as one safetensors file: memory, counters, and the events that are kept."""
        return self._exported(stream_key(stream, tenant))[1]

    def import_archive(self, stream: str, archive: bytes, *, tenant: str = DEFAULT_TENANT) -> Appended:
        """Make a stream of what `export` returned, here or elsewhere; the writer goes on from the `next_seq` returned.

        It keeps its retention and its time to live, which counts from now. A stream that is there already is refused,
        unless it has the same events: to repeat an import does no harm.
        """
        key = stream_key(stream, tenant)
        found = checked_import(archive, self.network, self.limits, strict_numerics=self._strict)
        return self._swapped(key, ledger.importing(key, found.birth, found.content, self._clock()))

    def backup(self, target: str | Path) -> int:
        """Copy the whole store, as it is in one moment, into a file that is a store itself; returns its bytes.

        Writing goes on meanwhile. For a store file; other stores have their own ways.
        """
        if self._closed:
            raise Draining("The engine is closed.")
        if (copy := getattr(self.store, "backup", None)) is None:
            raise InvalidValue(f"The store ({self.store.description}) is no file; back it up by its own means.")
        size: int = copy(Path(target))
        return size

    def verify(self, stream: str | None = None, *, tenant: str = DEFAULT_TENANT) -> Verified:
        """Check every checksum of one stream or of the whole store, and fold retained events again."""
        keys = self.store.keys() if stream is None else iter([self._read(stream_key(stream, tenant)).row.key])
        return verified(self.store, self.network, keys)

    def _exported(self, key: StreamKey) -> tuple[Row, bytes]:
        stored = self._read(key, log=True)
        row = stored.row.verified(key)
        payloads = verified_events(row, stored.events, row.next_seq - len(stored.events))
        return row, write_archive(row, verified_memory(row, stored.memory), payloads)

    def _recalled(self, row: Row, call: KeyedCall | None) -> Appended | None:
        """What was replied when this call came before."""
        if call is None or (before := recall(row.verified(row.key).keyed, call, self._clock())) is None:
            return None
        return _standing(row, accepted=before.accepted, next_seq=before.next_seq)

    def _swapped(self, key: StreamKey, plan: Plan) -> Appended:
        row = self._writable().update(key, plan)
        assert row is not None
        if self._consolidator is not None:
            self._consolidator.schedule(key)
        self._tell()
        return _standing(row, accepted=0, next_seq=row.next_seq)


def _standing(row: Row, *, accepted: int, next_seq: int) -> Appended:
    return Appended(
        accepted=accepted,
        duplicates=0,
        next_seq=next_seq,
        consolidated_seq=row.consolidated_seq,
        memory_version=row.version,
    )
