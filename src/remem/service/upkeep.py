"""What is done to whole streams: look, list, copy, go back, fold again, take out, delete, check."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from remem.service import ledger
from remem.service.admin import inspected, rebuilt, restored, verified
from remem.service.archive import write_archive
from remem.service.consolidate import Consolidator
from remem.service.errors import InvalidValue, OverQuota, UnknownSnapshot
from remem.service.inputs import checked_event
from remem.service.limits import DEFAULT_TENANT, Limits, StreamKey, checked_name, stream_key
from remem.service.network import Network
from remem.service.peek import Peeks
from remem.service.reading import StreamReader
from remem.service.records import verified_events, verified_memory
from remem.service.results import Appended, Inspected, Listed, Verified
from remem.service.store import Deleted, Plan, Store


class StreamKeeper(StreamReader):
    """The verbs of who looks after streams, and the threads that do so by themselves."""

    def __init__(
        self, store: Store, network: Network, *, limits: Limits, strict_numerics: bool, read_only: bool
    ) -> None:
        super().__init__(store, network, strict_numerics=strict_numerics, read_only=read_only)
        self.limits, self._peeks = limits, Peeks(network)
        self._consolidator: Consolidator | None = None
        if not read_only and network.fingerprint:
            self._consolidator = Consolidator(store, network, self._tell)
            for key in store.pending():
                self._consolidator.schedule(key)

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
        names = self.store.page(tenant, prefix, cursor or "", limit + 1)
        return Listed(streams=names[:limit], cursor=names[limit - 1] if len(names) > limit else None)

    def delete(self, stream: str, *, tenant: str = DEFAULT_TENANT) -> Deleted:
        """Remove memory, events and snapshots from the store's files; also answers when there was nothing."""
        key = stream_key(stream, tenant)
        stored = self._writable().read(key)
        deleted = self._writable().delete(key)
        if stored is not None:  # what is deleted is gone from this process as well
            self._peeks.forget(stored.row.birth)
        self._tell()
        return deleted

    def snapshot(self, stream: str, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """Keep a named copy of the stream as it is now; an older one of that name is replaced."""
        key, name = stream_key(stream, tenant), checked_name(name, "snapshot")
        archive = self.export(stream, tenant=tenant)
        if not self._writable().put_snapshot(key, name, archive, self.limits.snapshots):
            self._read(key)
            raise OverQuota(f"Stream {key} has {self.limits.snapshots} snapshots, which is the most it may have.")

    def restore(self, stream: str, name: str, *, tenant: str = DEFAULT_TENANT) -> Appended:
        """Put a snapshot in place of what the stream holds; the writer goes on from the `next_seq` returned."""
        key, name = stream_key(stream, tenant), checked_name(name, "snapshot")
        start = self._read(key).row
        if (archive := self.store.get_snapshot(key, name)) is None:
            raise UnknownSnapshot(f"Stream {key} has no snapshot {name!r}.")
        return self._swapped(key, ledger.replacing(start, restored(archive, start), time.time()))

    def rebuild(self, stream: str, events: Iterable[Any] | None = None, *, tenant: str = DEFAULT_TENANT) -> Appended:
        """Fold a stream again with this engine's model, from the events it retained, or from those given.

        Those given are the stream from now on, from number 0. The old memory serves until the new one takes its place;
        if events came in meanwhile, nothing is changed and `StreamChanged` is raised.
        """
        key = stream_key(stream, tenant)
        stored = self._read(key, log=True)
        given = (
            None
            if events is None
            else [checked_event(self.network, self.limits, event, i) for i, event in enumerate(events)]
        )
        return self._swapped(key, ledger.replacing(stored.row, rebuilt(stored, given, self.network), time.time()))

    def export(self, stream: str, *, tenant: str = DEFAULT_TENANT) -> bytes:
        """The stream as one safetensors file: memory, counters, and the events that are kept."""
        key = stream_key(stream, tenant)
        stored = self._read(key, log=True)
        row = stored.row.verified(key)
        payloads = verified_events(row, stored.events, row.next_seq - len(stored.events))
        return write_archive(row, verified_memory(row, stored.memory), payloads)

    def verify(self, stream: str | None = None, *, tenant: str = DEFAULT_TENANT) -> Verified:
        """Check every checksum of one stream or of the whole store, and fold retained events again."""
        keys = self.store.keys() if stream is None else iter([self._read(stream_key(stream, tenant)).row.key])
        return verified(self.store, self.network, keys)

    def _swapped(self, key: StreamKey, plan: Plan) -> Appended:
        row = self._writable().update(key, plan)
        assert row is not None
        if self._consolidator is not None:
            self._consolidator.schedule(key)
        self._tell()
        return Appended(
            accepted=0,
            duplicates=0,
            next_seq=row.next_seq,
            consolidated_seq=row.consolidated_seq,
            memory_version=row.version,
        )
