"""Exactly once: what an append, a consolidation or a replacement does to a stream's row. All of it pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from remem.service.errors import (
    ModelMismatch,
    QueueFull,
    SequenceConflict,
    SequenceGap,
    StreamChanged,
    StreamDegraded,
    UnknownStream,
)
from remem.service.events import event_digest, seal_event
from remem.service.limits import StreamKey
from remem.service.records import Row, digest_at, memory_check, with_digests
from remem.service.store import Change, Plan


@dataclass(frozen=True)
class Birth:
    """What a new stream starts from."""

    fingerprint: str
    numerics: str
    memory: bytes
    retention: str


def new_row(key: StreamKey, birth: Birth, now: float) -> Row:
    """The counters of a stream without events."""
    return Row(
        tenant=key.tenant,
        stream=key.stream,
        birth=secrets.token_hex(8),
        generation=0,
        version=0,
        next_seq=0,
        consolidated_seq=0,
        fingerprint=birth.fingerprint,
        numerics=birth.numerics,
        numerics_changes=0,
        retention=birth.retention,
        digests=b"",
        memory_check=memory_check(birth.memory),
        created=now,
        updated=now,
        error="",
    )


def require_model(row: Row, fingerprint: str) -> None:
    """A memory means nothing to another model."""
    if row.fingerprint != fingerprint:
        raise ModelMismatch(
            f"Stream {row.key} was written by the model {row.fingerprint}, not by {fingerprint}, which is loaded; "
            "rebuild the stream, or open the store with the model that wrote it.",
            found=row.fingerprint,
            expected=fingerprint,
        )


class Appending:
    """The plan of one append; after the store ran it, `duplicates` tells how many events were there already."""

    def __init__(
        self, key: StreamKey, birth: Birth, payloads: Sequence[bytes], seq: int | None, tail_limit: int, now: float
    ) -> None:
        self.key, self.birth, self.payloads, self.seq = key, birth, payloads, seq
        self.tail_limit, self.now, self.duplicates = tail_limit, now, 0

    def __call__(self, row: Row | None) -> Change | None:
        """Refuse a gap, a conflict or another model's stream; drop what is there already; add the rest."""
        before = row or new_row(self.key, self.birth, self.now)
        require_model(before, self.birth.fingerprint)
        first = before.next_seq if self.seq is None else self.seq
        if first > before.next_seq:
            raise SequenceGap(
                f"The next event of stream {self.key} is {before.next_seq}; given was {first}. "
                f"Send the events from {before.next_seq} on.",
                expected_seq=before.next_seq,
                given_seq=first,
            )
        self.duplicates = min(len(self.payloads), before.next_seq - first)
        for seq, payload in enumerate(self.payloads[: self.duplicates], start=first):
            if (known := digest_at(before, seq)) is not None and known != event_digest(seq, payload):
                raise SequenceConflict(
                    f"Event {seq} of stream {self.key} was stored with other content; number new events "
                    f"from {before.next_seq} on.",
                    seq=seq,
                    expected_seq=before.next_seq,
                )
        fresh = self.payloads[self.duplicates :]
        if not fresh:
            return None
        self._require_room(before, len(fresh))
        sealed = [seal_event(seq, payload) for seq, payload in enumerate(fresh, start=before.next_seq)]
        after = replace(
            before,
            next_seq=before.next_seq + len(fresh),
            digests=with_digests(before.digests, [event[:8] for event in sealed]),
            updated=self.now,
        )
        return Change(row=after.sealed(), memory=self.birth.memory if row is None else None, events=sealed)

    def _require_room(self, row: Row, added: int) -> None:
        if row.tail_events + added <= self.tail_limit:
            return
        if row.error:
            raise StreamDegraded(
                f"Stream {self.key} can't be consolidated ({row.error}) and its tail is full; restore a snapshot, "
                "rebuild it without the bad events, or delete it."
            )
        raise QueueFull(
            f"Stream {self.key} has {row.tail_events} events waiting for consolidation; at most {self.tail_limit} may "
            "wait. Try again shortly.",
            tail_events=row.tail_events,
        )


def creating(key: StreamKey, birth: Birth, now: float) -> Plan:
    """Make a stream without events; one that exists is left alone."""

    def plan(row: Row | None) -> Change | None:
        if row is not None:
            return None
        return Change(row=new_row(key, birth, now).sealed(), memory=birth.memory)

    return plan


def consolidating(start: Row, *, memory: bytes, events: int, segments: int, numerics: str) -> Plan:
    """Put in a memory computed from `start`; if the stream is no longer there, the result is dropped."""

    def plan(row: Row | None) -> Change | None:
        if row is None or row.place != start.place:
            return None
        consolidated = row.consolidated_seq + events
        after = replace(
            row,
            version=row.version + segments,
            consolidated_seq=consolidated,
            numerics=numerics,
            numerics_changes=row.numerics_changes + (numerics != row.numerics),
            memory_check=memory_check(memory),
            error="",
        )
        keep_from = 0 if row.retention == "all" else consolidated
        return Change(row=after.sealed(), memory=memory, keep_from=keep_from)

    return plan


def failing(start: Row, error: str) -> Plan:
    """Remember why a stream can't be consolidated; its memory stays the last good one."""

    def plan(row: Row | None) -> Change | None:
        if row is None or row.place != start.place or row.error == error:
            return None
        return Change(row=replace(row, error=error).sealed())

    return plan


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A whole new content for a stream: what a restore or a rebuild puts in its place."""

    fingerprint: str
    numerics: str
    version: int
    consolidated_seq: int
    memory: bytes
    digests: bytes
    payloads: Sequence[bytes]
    """Events to keep, the last of them with number `next_seq - 1`."""
    next_seq: int


def replacing(start: Row, new: Replacement, now: float) -> Plan:
    """Swap a stream's content; refused if anything happened to it since `start` was read."""

    def plan(row: Row | None) -> Change | None:
        if row is None:
            raise UnknownStream(f"There is no stream {start.key}: it was deleted meanwhile.")
        if (row.birth, row.generation, row.next_seq) != (start.birth, start.generation, start.next_seq):
            raise StreamChanged(f"Stream {row.key} changed meanwhile; nothing was replaced. Try again.")
        after = replace(
            row,
            generation=row.generation + 1,
            version=new.version,
            next_seq=new.next_seq,
            consolidated_seq=new.consolidated_seq,
            fingerprint=new.fingerprint,
            numerics=new.numerics,
            numerics_changes=0,
            digests=new.digests,
            memory_check=memory_check(new.memory),
            updated=now,
            error="",
        )
        first = new.next_seq - len(new.payloads)
        sealed = [seal_event(seq, payload) for seq, payload in enumerate(new.payloads, start=first)]
        return Change(row=after.sealed(), memory=new.memory, events=sealed, drop_all=True)

    return plan
