"""MemoryEngine: durable streams in this process. Nothing that was acknowledged is ever lost or doubled.

    engine = MemoryEngine.open("memories.db", model="models/babi")
    engine.append("story", ["Mary went to the garden."], seq=0)
    engine.query("story", "Where is Mary?").answer

An append returns when its events are on disk; a thread of the engine's own folds them into the memory afterwards.
Every method may be called from many threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from remem.service import ledger
from remem.service.asking import Question, answers
from remem.service.consolidate import Outcome, Prepare, prepare
from remem.service.errors import InvalidValue, NotCaughtUp, QueueFull, StreamExists
from remem.service.events import FLUSH, ends_segment
from remem.service.expiry import SWEEP_SECONDS, checked_ttl
from remem.service.inputs import checked_events, checked_seq
from remem.service.keys import keyed_call
from remem.service.limits import DEFAULT_TENANT, Limits, StreamKey, stream_key
from remem.service.network import Network
from remem.service.reading import Clock
from remem.service.records import Retention, Row
from remem.service.results import Answered, Appended
from remem.service.store import Change, Durability, Store
from remem.service.upkeep import StreamKeeper

if TYPE_CHECKING:
    from remem.bundle import Bundle

__all__ = ["DEFAULT_TENANT", "MemoryEngine"]

_MANY_SEGMENTS = 4  # more than these and a question takes notice of them


class MemoryEngine(StreamKeeper):
    """The verbs of the service on one store and one model; those on whole streams are in `StreamKeeper`."""

    def __init__(
        self,
        store: Store,
        network: Network,
        *,
        limits: Limits | None = None,
        retention: Retention = "tail",
        ttl: float | None = None,
        strict_numerics: bool = False,
        read_only: bool = False,
        sweep_seconds: float = SWEEP_SECONDS,
        clock: Clock = time.time,
    ) -> None:
        self._birth = ledger.Birth(
            network.fingerprint, network.numerics, network.initial_memory(), retention, checked_ttl(ttl)
        )
        super().__init__(
            store, network, limits=limits or Limits(), strict_numerics=strict_numerics, read_only=read_only,
            sweep_seconds=sweep_seconds, clock=clock,
        )  # fmt: skip

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
        ttl: float | None = None,
        strict_numerics: bool = False,
        sweep_seconds: float = SWEEP_SECONDS,
        clock: Clock = time.time,
    ) -> MemoryEngine:
        """Open a store with a model, test that the model's bits can be relied on, and take up unfinished work.

        Args:
            store: a file, `redis://…`, `:memory:`, or a store.
            model: the folder of a saved model, a bundle, or any `Network`; None to look after the store alone.
            durability: `fsync` survives a power cut, `os` the end of the process alone.
            read_only: leave the store to its writer; `query`, `inspect`, `list`, `export` and `verify` work.
            retention: what new streams keep: `tail`, or `all` events, which makes them rebuildable.
            ttl: how many seconds new streams live after their last append; None for ever.
            strict_numerics: refuse to go on with memories that were computed with other numerics.
            sweep_seconds: how often streams whose time is up are taken out of the store's files.
            clock: what tells the time, in seconds since 1970.
        """
        from remem.service.opening import open_network, open_store

        network = open_network(model)
        network.self_test()
        opened = open_store(store, durability=durability, read_only=read_only)
        try:
            return cls(
                opened, network, limits=limits, retention=retention, ttl=ttl, strict_numerics=strict_numerics,
                read_only=read_only, sweep_seconds=sweep_seconds, clock=clock,
            )  # fmt: skip
        except BaseException:
            opened.close()
            raise

    def __enter__(self) -> MemoryEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create(
        self,
        stream: str,
        *,
        retention: Retention | None = None,
        ttl: float | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> bool:
        """Make a stream without events; False if it was there. `append` makes streams by itself, with the defaults.

        With a `ttl` the stream is as if deleted once so many seconds have passed since its last append.
        """
        key = stream_key(stream, tenant)
        if retention not in (None, "tail", "all"):
            raise InvalidValue(f"{retention!r} is no retention; expected 'tail' or 'all'.", path="retention")
        if not self.network.fingerprint:
            raise InvalidValue("The store was opened without a model; give one to make streams.", path="model")
        seconds = checked_ttl(ttl)
        birth = replace(self._birth, retention=retention or self._birth.retention, ttl=seconds or self._birth.ttl)
        made, now = False, self._clock()

        def plan(row: Row | None) -> Change | None:
            nonlocal made
            there = ledger.living(row, now)
            made = there is None
            if there is not None and retention is not None and there.retention != retention:
                raise StreamExists(f"Stream {key} exists with the retention {there.retention!r}, not {retention!r}.")
            if there is not None and seconds and there.ttl != seconds:
                raise StreamExists(f"Stream {key} exists with a ttl of {there.ttl:g} s, not {seconds:g} s.")
            return ledger.creating(key, birth, now)(row)

        self._update(key, plan)
        return made

    def set_ttl(self, stream: str, ttl: float | None, *, tenant: str = DEFAULT_TENANT) -> None:
        """How many seconds a stream lives after its last append, whatever it was made with; None for ever.

        Counted from the last append, not from now: a ttl shorter than that is ago ends the stream at once.
        """
        key = stream_key(stream, tenant)
        self._update(key, ledger.living_for(key, checked_ttl(ttl), self._clock()))

    def append(
        self,
        stream: str,
        events: Sequence[Any],
        *,
        seq: int | None = None,
        idempotency_key: str | None = None,
        tenant: str = DEFAULT_TENANT,
        timeout: float = 5.0,
    ) -> Appended:
        """Add events, all or none; returns when they are durable.

        `seq` is the number of the first. With it, sending the same events again changes nothing, so that a lost reply
        is answered by a retry. Without it they get the next numbers, and a retry would double them, unless the call has
        a key: a stream knows the keys of its last 64 calls for a day.
        """
        plan = self._appending(stream, events, seq, idempotency_key, tenant)
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._appended(plan, self._update(plan.key, plan))
            except QueueFull:
                # an earlier try may have been given up, with a store that failed for a moment
                if self._consolidator is not None:
                    self._consolidator.schedule(plan.key, urgent=True)
                if not self._wait(deadline):
                    raise

    def begin_append(
        self,
        stream: str,
        events: Sequence[Any],
        *,
        seq: int | None = None,
        idempotency_key: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Future[Appended]:
        """As `append`, for a caller that must not wait: the result comes when the events are durable.

        A full tail is refused at once. Only on a store with `submit`, such as a SQLite file.
        """
        plan = self._appending(stream, events, seq, idempotency_key, tenant)
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

    def _appending(
        self, stream: str, events: Sequence[Any], seq: int | None, idempotency_key: str | None, tenant: str
    ) -> ledger.Appending:
        key = stream_key(stream, tenant)
        payloads = checked_events(self.network, self.limits, events)
        first = checked_seq(seq, "seq", room=len(payloads))
        # a number says more than a key does
        call = keyed_call(idempotency_key, "append", *payloads) if first is None else None
        return ledger.Appending(key, self._birth, payloads, first, self.limits.tail_events, self._clock(), call)

    def _appended(self, plan: ledger.Appending, row: Row | None) -> Appended:
        assert row is not None
        # without a mark there is a whole segment only once N events wait; older marks were seen when they came
        marked, waiting = any(map(ends_segment, plan.payloads)), row.tail_events // self.network.segment_events
        if (marked or waiting) and row.tail_events and self._consolidator is not None:
            self._consolidator.schedule(plan.key, urgent=marked or waiting >= _MANY_SEGMENTS)
        self._tell()
        before = plan.recalled
        return Appended(
            accepted=len(plan.payloads) - plan.duplicates if before is None else before.accepted,
            duplicates=plan.duplicates,
            next_seq=row.next_seq if before is None else before.next_seq,
            consolidated_seq=row.consolidated_seq,
            memory_version=row.version,
        )

    def flush(
        self,
        stream: str,
        *,
        seq: int | None = None,
        idempotency_key: str | None = None,
        tenant: str = DEFAULT_TENANT,
        timeout: float = 5.0,
    ) -> Appended:
        """Close the segment at hand, however short, and wait until it is in the memory.

        It is an event with a number of its own, so that a replay closes the same segment.
        """
        key = stream_key(stream, tenant)
        deadline = time.monotonic() + timeout
        done = self.append(stream, [FLUSH], seq=seq, idempotency_key=idempotency_key, tenant=tenant, timeout=timeout)
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

    def prepare(self, keys: Sequence[StreamKey]) -> dict[StreamKey, Outcome]:
        """Fold the whole segments of some streams into copies of their memories, without putting them in."""
        if self._consolidator is not None:
            return self._consolidator.prepare_here(keys)
        return prepare(self.store, self.network, keys)

    def prepare_by(self, compute: Prepare) -> None:
        """Let somebody else compute what this engine puts in: `prepare` of an engine with the same store and model."""
        if self._consolidator is not None:
            self._consolidator.prepare = compute

    def settle(self, timeout: float | None = 30.0) -> bool:
        """Wait until every whole segment is consolidated; False if that takes longer."""
        return self._consolidator is None or self._consolidator.settle(timeout)

    @property
    def backlog(self) -> int:
        """Streams that wait for consolidation."""
        return 0 if self._consolidator is None else self._consolidator.waiting

    @property
    def given_up(self) -> int:
        """How often a stream became degraded since this engine was opened."""
        return 0 if self._consolidator is None else self._consolidator.given_up

    def close(self) -> None:
        """Stop consolidating and close the store; acknowledged events are safe, and their folding goes on next time."""
        self._closed = True
        self._tell()
        if self._sweeper is not None:
            self._sweeper.close()
        if self._consolidator is not None:
            self._consolidator.close()
        self.store.close()
