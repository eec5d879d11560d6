"""Events as bytes: what a stream consists of, and where its segments end.

A payload is one byte for its kind, one that says whether it ends its segment, then the item. Borders of segments depend
on the events alone, never on a clock or on how events came in, so that any chunking gives the same memory.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remem.service.errors import MemoryDamaged

TEXT, ITEM, VECTOR, FLUSH_KIND = b"t", b"i", b"v", b"f"
DIGEST_BYTES = 8


@dataclass(frozen=True)
class Event:
    """One item of a stream: a sentence, an item's number, or a vector.

    `ends_segment` closes the segment after it, however short. An item of None adds nothing but the end of the segment.
    """

    item: Any
    ends_segment: bool = False


FLUSH = Event(None, ends_segment=True)


def pack_event(item: Any, ends_segment: bool) -> bytes:
    """The payload of a checked item: text, an integer, or floats; None for a flush."""
    mark = b"\1" if ends_segment else b"\0"
    if item is None:
        return FLUSH_KIND + b"\1"
    if isinstance(item, str):
        return TEXT + mark + item.encode()
    if isinstance(item, int):
        return ITEM + mark + item.to_bytes(8, "little")
    return VECTOR + mark + struct.pack(f"<{len(item)}f", *item)


def unpack_event(payload: bytes) -> Event:
    """The event a payload holds."""
    kind, ends, body = payload[:1], payload[1:2] == b"\1", payload[2:]
    if kind == TEXT:
        return Event(body.decode(), ends)
    if kind == ITEM:
        return Event(int.from_bytes(body, "little"), ends)
    if kind == VECTOR:
        return Event(list(struct.unpack(f"<{len(body) // 4}f", body)), ends)
    if kind == FLUSH_KIND:
        return FLUSH
    raise MemoryDamaged(f"An event has the unknown kind {kind!r}.")


def event_digest(seq: int, payload: bytes) -> bytes:
    """Tells two events apart, and an event from the same one at another place."""
    return hashlib.blake2b(seq.to_bytes(8, "little") + payload, digest_size=DIGEST_BYTES).digest()


def seal_event(seq: int, payload: bytes) -> bytes:
    """An event as it is stored: damage shows."""
    return event_digest(seq, payload) + payload


def open_event(seq: int, sealed: bytes) -> bytes:
    """The payload of a stored event; damage is refused."""
    payload = sealed[DIGEST_BYTES:]
    if sealed[:DIGEST_BYTES] != event_digest(seq, payload):
        raise MemoryDamaged(f"Event {seq} does not have the digest it was stored with.", seq=seq)
    return payload


def ends_segment(payload: bytes) -> bool:
    """Whether the writer closed the segment here."""
    return payload[1:2] == b"\1"


@dataclass(frozen=True)
class Cut:
    """A tail cut into segments."""

    segments: list[Sequence[bytes]]
    rest: Sequence[bytes]
    """Fewer than N events of a segment that has not ended."""

    @property
    def events(self) -> int:
        """How many events are in whole segments."""
        return sum(map(len, self.segments))


def cut_events(payloads: Sequence[bytes], segment_events: int) -> Cut:
    """Cut the events that follow a border into segments: after N of them, or where the writer closed one."""
    segments: list[Sequence[bytes]] = []
    start = 0
    for position, payload in enumerate(payloads, start=1):
        if position - start == segment_events or ends_segment(payload):
            segments.append(payloads[start:position])
            start = position
    return Cut(segments, payloads[start:])
