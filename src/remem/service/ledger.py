"""Exactly once: what an append, a consolidation or a replacement does to a stream's row. All of it pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from remem.service.errors import (
    Expired,
    ModelMismatch,
    QueueFull,
    SequenceConflict,
    SequenceGap,
    StreamChanged,
    StreamDegraded,
    StreamExists,
    UnknownStream,
)
from remem.service.events import event_digest, seal_event
from remem.service.keys import KeyedCall, Recalled, recall, remember
from remem.service.limits import StreamKey
from remem.service.records import Place, Row, digest_at, memory_check, with_digests
from remem.service.store import Change, Plan


@dataclass(frozen=True)
class Birth:
    """What a new stream starts from."""

    fingerprint: str
    numerics: str
    memory: bytes
    retention: str
    ttl: float = 0.0


def living(row: Row | None, now: float) -> Row | None:
    """A stream whose time is up is as if deleted."""
    return row if row is not None and row.expires > now else None


def require_living(row: Row, now: float) -> None:
    """Refuse a stream whose time is up."""
    if row.expires <= now:
        raise Expired(
            f"Stream {row.stream!r} has expired: its last append is more than {row.ttl:g} s ago. An append begins it "
            "anew, with number 0.",
            stream=row.stream,
        )


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
        ttl=birth.ttl,
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
    """The plan of one append. After the store ran it, its attributes tell what it found."""

    def __init__(
        self,
        key: StreamKey,
        birth: Birth,
        payloads: Sequence[bytes],
        seq: int | None,
        tail_limit: int,
        now: float,
        call: KeyedCall | None = None,
    ) -> None:
        self.key, self.birth, self.payloads, self.seq = key, birth, payloads, seq
        self.tail_limit, self.now, self.call = tail_limit, now, call
        self.duplicates = 0
        """How many events were there already."""
        self.recalled: Recalled | None = None
        """What was replied to the same call before."""

    def __call__(self, row: Row | None) -> Change | None:
        """Refuse a gap, a conflict or another model's stream; drop what is there already; add the rest."""
        alive = living(row, self.now)
        before = alive or new_row(self.key, self.birth, self.now)
        require_model(before, self.birth.fingerprint)
        self.recalled = recall(before.keyed, self.call, self.now) if self.call else None
        if self.recalled is not None:
            return None
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
            keyed=remember(before.keyed, self.call, Recalled(len(fresh), before.next_seq + len(fresh)), self.now),
            updated=self.now,
        )
        memory = self.birth.memory if alive is None else None
        return Change(row=after.sealed(), memory=memory, events=sealed, anew=row is not None and alive is None)

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
        if living(row, now) is not None:
            return None
        return Change(row=new_row(key, birth, now).sealed(), memory=birth.memory, anew=row is not None)

    return plan


def living_for(key: StreamKey, ttl: float, now: float) -> Plan:
    """Set how many seconds a stream lives after its last append, 0 for ever; its time may be up at once."""

    def plan(row: Row | None) -> Change | None:
        if row is None:
            raise UnknownStream(f"There is no stream {key.stream!r} to set a ttl of.", stream=key.stream)
        require_living(row, now)
        return None if row.ttl == ttl else Change(row=replace(row, ttl=ttl).sealed())

    return plan


def remembering(start: Row, call: KeyedCall, now: float) -> Plan:
    """Note that a call was made that leaves the stream as it is."""

    def plan(row: Row | None) -> Change | None:
        if row is None or row.birth != start.birth:
            return None
        keyed = remember(row.keyed, call, Recalled(0, row.next_seq), now)
        return Change(row=replace(row, keyed=keyed).sealed())

    return plan


def consolidating(start: Place, *, memory: bytes, events: int, segments: int, numerics: str) -> Plan:
    """Put in a memory computed from `start`; if the stream is no longer there, the result is dropped."""

    def plan(row: Row | None) -> Change | None:
        if row is None or row.place != start:
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
    numerics_changes: int = 0

    def sealed_events(self) -> list[bytes]:
        """The events as they are stored."""
        first = self.next_seq - len(self.payloads)
        return [seal_event(seq, payload) for seq, payload in enumerate(self.payloads, start=first)]

    def put_into(self, row: Row, now: float) -> Row:
        """A stream's counters with this content."""
        return replace(
            row,
            version=self.version,
            next_seq=self.next_seq,
            consolidated_seq=self.consolidated_seq,
            fingerprint=self.fingerprint,
            numerics=self.numerics,
            numerics_changes=self.numerics_changes,
            digests=self.digests,
            memory_check=memory_check(self.memory),
            updated=now,
            error="",
        )


def replacing(start: Row, new: Replacement, now: float, call: KeyedCall | None = None) -> Plan:
    """Swap a stream's content; refused if anything happened to it since `start` was read."""

    def plan(row: Row | None) -> Change | None:
        if row is None:
            raise UnknownStream(f"There is no stream {start.key}: it was deleted meanwhile.")
        require_living(row, now)
        if (row.birth, row.generation, row.next_seq) != (start.birth, start.generation, start.next_seq):
            raise StreamChanged(f"Stream {row.key} changed meanwhile; nothing was replaced. Try again.")
        after = replace(
            new.put_into(row, now),
            generation=row.generation + 1,
            keyed=remember(row.keyed, call, Recalled(0, new.next_seq), now),
        )
        return Change(row=after.sealed(), memory=new.memory, events=new.sealed_events(), drop_all=True)

    return plan


def importing(key: StreamKey, birth: Birth, new: Replacement, now: float) -> Plan:
    """Make a stream of a content; one that exists is left alone, and refused unless it has the same events."""

    def plan(row: Row | None) -> Change | None:
        if (there := living(row, now)) is not None:
            # its tail may have been consolidated since, so the memories need not be the same
            same = (there.fingerprint, there.next_seq, there.digests) == (new.fingerprint, new.next_seq, new.digests)
            if same and (there.version != new.version or there.memory_check == memory_check(new.memory)):
                return None
            raise StreamExists(f"Stream {key} exists with other events; delete it first, or choose another name.")
        after = new.put_into(new_row(key, birth, now), now)
        return Change(row=after.sealed(), memory=new.memory, events=new.sealed_events(), anew=row is not None)

    return plan
