"""MemoryEngine: durable streams in this process. Nothing that was acknowledged is ever lost or doubled.

    engine = MemoryEngine.open("memories.db", model="models/babi")
    engine.append("story", ["Mary went to the garden."], seq=0)
    engine.query("story", "Where is Mary?").answer

An append returns when its events are on disk; a thread of the engine's own folds them into the memory afterwards.
Every method may be called from many threads at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from remem.service import ledger
from remem.service.admin import inspected, rebuilt, restored, verified
from remem.service.archive import write_archive
from remem.service.asking import Question, answers
from remem.service.consolidate import Consolidator
from remem.service.errors import (
    Draining,
    InvalidValue,
    NotCaughtUp,
    NumericsMismatch,
    OverQuota,
    QueueFull,
    StreamExists,
    UnknownSnapshot,
    UnknownStream,
)
from remem.service.events import FLUSH, ends_segment
from remem.service.inputs import checked_event, checked_events, checked_seq
from remem.service.limits import Limits, StreamKey, checked_name, stream_key
from remem.service.network import Network
from remem.service.records import Retention, Row, verified_events, verified_memory
from remem.service.results import Answered, Appended, Inspected, Listed, Verified
from remem.service.store import Change, Deleted, Durability, Plan, Store, Stored

if TYPE_CHECKING:
    from remem.bundle import Bundle

DEFAULT_TENANT = "default"


class MemoryEngine:
    """The verbs of the service on one store and one model."""

    def __init__(
        self,
        store: Store,
        network: Network,
        *,
        limits: Limits | None = None,
        retention: Retention = "tail",
        strict_numerics: bool = False,
        read_only: bool = False,
    ) -> None:
        self.store, self.network, self.limits = store, network, limits or Limits()
        self.read_only, self._strict = read_only, strict_numerics
        self._birth = ledger.Birth(network.fingerprint, network.numerics, network.initial_memory(), retention)
        self._moved = threading.Condition()
        self._closed = False
        self._consolidator: Consolidator | None = None
        if not read_only and network.fingerprint:
            self._consolidator = Consolidator(store, network, self._tell)
            for key in store.pending():
                self._consolidator.schedule(key)

    @classmethod
    def open(
        cls,
        store: str | Path | Store,
        model: str | Path | Bundle | Network | None,
        *,
        durability: Durability = "fsync",
        read_only: bool = False,
        limits: Limits | None = None,
        retention: Retention = "tail",
        strict_numerics: bool = False,
    ) -> MemoryEngine:
        """Open a store with a model, test that the model's bits can be relied on, and take up unfinished work.

        Args:
            store: a file, `redis://…`, `:memory:`, or a store.
            model: the folder of a saved model, a bundle, or any `Network`; None to look after the store alone.
            durability: `fsync` survives a power cut, `os` the end of the process alone.
            read_only: leave the store to its writer; `query`, `inspect`, `list`, `export` and `verify` work.
            retention: what new streams keep: `tail`, or `all` events, which makes them rebuildable.
            strict_numerics: refuse to go on with memories that were computed with other numerics.
        """
        from remem.service.opening import open_network, open_store

        network = open_network(model)
        network.self_test()
        opened = open_store(store, durability=durability, read_only=read_only)
        try:
            return cls(
                opened, network, limits=limits, retention=retention, strict_numerics=strict_numerics,
                read_only=read_only,
            )  # fmt: skip
        except BaseException:
            opened.close()
            raise

    def __enter__(self) -> MemoryEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create(self, stream: str, *, retention: Retention | None = None, tenant: str = DEFAULT_TENANT) -> bool:
        """Make a stream without events; False if it was there. `append` makes streams by itself, with the defaults."""
        key = stream_key(stream, tenant)
        if retention not in (None, "tail", "all"):
            raise InvalidValue(f"{retention!r} is no retention; expected 'tail' or 'all'.", path="retention")
        if not self.network.fingerprint:
            raise InvalidValue("The store was opened without a model; give one to make streams.", path="model")
        wanted = retention or self._birth.retention
        birth = ledger.Birth(self.network.fingerprint, self.network.numerics, self._birth.memory, wanted)
        made = False

        def plan(row: Row | None) -> Change | None:
            nonlocal made
            made = row is None
            if row is not None and retention is not None and row.retention != retention:
                raise StreamExists(f"Stream {key} exists with the retention {row.retention!r}, not {retention!r}.")
            return ledger.creating(key, birth, time.time())(row)

        self._update(key, plan)
        return made

    def append(
        self,
        stream: str,
        events: Sequence[Any],
        *,
        seq: int | None = None,
        tenant: str = DEFAULT_TENANT,
        timeout: float = 5.0,
    ) -> Appended:
        """Add events, all or none; returns when they are durable.

        `seq` is the number of the first. With it, sending the same events again changes nothing, so that a lost reply
        is answered by a retry. Without it they get the next numbers, and a retry would double them.
        """
        plan = self._appending(stream, events, seq, tenant)
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._appended(plan, self._update(plan.key, plan))
            except QueueFull:
                if not self._wait(deadline):
                    raise

    def begin_append(
        self, stream: str, events: Sequence[Any], *, seq: int | None = None, tenant: str = DEFAULT_TENANT
    ) -> Future[Appended]:
        """As `append`, for a caller that must not wait: the result comes when the events are durable.

        A full tail is refused at once. Only on a store with `submit`, such as a SQLite file.
        """
        plan = self._appending(stream, events, seq, tenant)
        begun: Future[Appended] = Future()
        begun.set_running_or_notify_cancel()  # who stops waiting can't stop the append

        def finish(written: Future[Row | None]) -> None:
            try:
                begun.set_result(self._appended(plan, written.result()))
            except Exception as refused:
                begun.set_exception(refused)

        submit = self._writable().submit  # type: ignore[attr-defined]
        submit(plan.key, lambda row: plan(row.verified(plan.key) if row else None)).add_done_callback(finish)
        return begun

    def _appending(self, stream: str, events: Sequence[Any], seq: int | None, tenant: str) -> ledger.Appending:
        key = stream_key(stream, tenant)
        payloads = checked_events(self.network, self.limits, events)
        first = checked_seq(seq, "seq", room=len(payloads))
        return ledger.Appending(key, self._birth, payloads, first, self.limits.tail_events, time.time())

    def _appended(self, plan: ledger.Appending, row: Row | None) -> Appended:
        assert row is not None
        # without a mark there is a whole segment only once N events wait; older marks were seen when they came
        whole = row.tail_events >= self.network.segment_events or any(map(ends_segment, plan.payloads))
        if whole and row.tail_events and self._consolidator is not None:
            self._consolidator.schedule(plan.key)
        self._tell()
        return Appended(
            accepted=len(plan.payloads) - plan.duplicates,
            duplicates=plan.duplicates,
            next_seq=row.next_seq,
            consolidated_seq=row.consolidated_seq,
            memory_version=row.version,
        )

    def flush(
        self, stream: str, *, seq: int | None = None, tenant: str = DEFAULT_TENANT, timeout: float = 5.0
    ) -> Appended:
        """Close the segment at hand, however short, and wait until it is in the memory.

        It is an event with a number of its own, so that a replay closes the same segment.
        """
        key = stream_key(stream, tenant)
        deadline = time.monotonic() + timeout
        done = self.append(stream, [FLUSH], seq=seq, tenant=tenant, timeout=timeout)
        # sent again, the mark may stand before events that are no whole segment yet
        mark = done.next_seq if seq is None else seq + 1
        stored = self._read_when(key, lambda row: row.consolidated_seq >= mark, deadline)
        return Appended(
            accepted=done.accepted,
            duplicates=done.duplicates,
            next_seq=stored.row.next_seq,
            consolidated_seq=stored.row.consolidated_seq,
            memory_version=stored.row.version,
        )

    def query(
        self,
        stream: str,
        question: Any,
        *,
        top: int = 5,
        tail: Literal["include", "exclude"] = "include",
        min_seq: int | None = None,
        tenant: str = DEFAULT_TENANT,
        timeout: float = 5.0,
    ) -> Answered:
        """Answer from the memory; changes nothing.

        The tail is written to a copy that is thrown away, unless it is excluded. `min_seq` waits until all events below
        it are taken into account: pass an append's `next_seq` to read what was written.
        """
        deadline = time.monotonic() + timeout
        while True:
            (found,) = self.query_many([Question(stream, question, top, tail, min_seq, tenant)])
            if isinstance(found, Answered):
                return found
            if not isinstance(found, NotCaughtUp) or not self._wait(deadline):
                raise found

    def query_many(self, questions: Sequence[Question]) -> list[Answered | Exception]:
        """Answer several questions side by side, which costs less than one after the other.

        Each gets its answer or what stands against it; none waits for its stream to catch up.
        """
        return answers(questions, lambda key: self._opened(key, self._read(key)), self.network, self.limits)

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
        deleted = self._writable().delete(key)
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

    def settle(self, timeout: float | None = 30.0) -> bool:
        """Wait until every whole segment is consolidated; False if that takes longer."""
        return self._consolidator is None or self._consolidator.settle(timeout)

    @property
    def backlog(self) -> int:
        """Streams that wait for consolidation."""
        return 0 if self._consolidator is None else self._consolidator.waiting

    def close(self) -> None:
        """Stop consolidating and close the store; acknowledged events are safe, and their folding goes on next time."""
        self._closed = True
        self._tell()
        if self._consolidator is not None:
            self._consolidator.close()
        self.store.close()

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

    def _update(self, key: StreamKey, plan: Plan) -> Row | None:
        return self._writable().update(key, lambda row: plan(row.verified(key) if row else None))

    def _writable(self) -> Store:
        if self._closed:
            raise Draining("The engine is closed.")
        if self.read_only:
            raise InvalidValue("The store was opened read-only; open it without read_only to change it.")
        return self.store

    def _read(self, key: StreamKey, *, log: bool = False) -> Stored:
        if self._closed:
            raise Draining("The engine is closed.")
        stored = self.store.read(key, log=log)
        if stored is None:
            raise UnknownStream(f"There is no stream {key.stream!r}; an append creates it.", stream=key.stream)
        return stored

    def _opened(self, key: StreamKey, stored: Stored) -> tuple[Row, bytes, Sequence[bytes]]:
        row = stored.row.verified(key)
        ledger.require_model(row, self.network.fingerprint)
        if self._strict and row.numerics != self.network.numerics:
            raise NumericsMismatch(
                f"The memory of stream {key} was computed with {row.numerics}, not {self.network.numerics}."
            )
        return row, verified_memory(row, stored.memory), verified_events(row, stored.events, row.consolidated_seq)

    def _read_when(self, key: StreamKey, reached: Any, deadline: float) -> Stored:
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
            # another process may be the writer, so nobody relies on being told
            self._moved.wait(min(left, 0.05))
        return True

    def _tell(self) -> None:
        with self._moved:
            self._moved.notify_all()
