"""What is stored of a stream: a row of counters with its checks, a memory, and the events not yet consolidated."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from remem.service.errors import MemoryDamaged
from remem.service.events import DIGEST_BYTES, open_event
from remem.service.limits import StreamKey

FORMAT_VERSION = 1
"""Of memories and archives. It is part of every model's fingerprint: to change it is to make all memories foreign."""
STORE_VERSION = 2
"""Of stores. Format 1 had neither a time to live nor keys of calls."""
WINDOW = 64
"""How many events back a repeated number with other content is recognised as a conflict."""
Retention = Literal["tail", "all"]
Place = tuple[str, int, int, int]
"""Birth, generation, version and consolidated_seq of a stream."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The counters of one stream. Sequence numbers count events: all below are in.

    `check` covers every other field, and `memory_check` the memory's bytes: no field can change unseen.
    """

    tenant: str
    stream: str
    birth: str
    """Drawn when the stream is made: a late result for a deleted stream never meets its successor."""
    generation: int
    """How often the memory was rebuilt or restored."""
    version: int
    """How many segments were consolidated into this memory."""
    next_seq: int
    """The number the next event must have."""
    consolidated_seq: int
    """Events below are in the memory; those from here on are the tail."""
    fingerprint: str
    numerics: str
    numerics_changes: int
    retention: str
    digests: bytes
    """Digests of the last events, 8 bytes each."""
    memory_check: str
    created: float
    updated: float
    error: str
    """Why the tail can't be consolidated; empty while all is well."""
    ttl: float = 0.0
    """Seconds after the last append that the stream lives; 0 for ever."""
    keyed: bytes = b""
    """The last calls that came with a key of their own, as `remem.service.keys` has them."""
    check: str = ""

    @property
    def key(self) -> StreamKey:
        """The stream's name."""
        return StreamKey(self.tenant, self.stream)

    @property
    def tail_events(self) -> int:
        """Acknowledged events that are not in the memory yet."""
        return self.next_seq - self.consolidated_seq

    @property
    def place(self) -> Place:
        """What a consolidation starts from; it counts only if the row is still there."""
        return self.birth, self.generation, self.version, self.consolidated_seq

    @property
    def expires(self) -> float:
        """The moment from which on the stream is as if deleted."""
        return self.updated + self.ttl if self.ttl else math.inf

    def sealed(self) -> Row:
        """With its own check."""
        # every append comes here, and replace() takes thrice as long
        return Row(**(vars(self) | {"check": self._digest()}))

    def verified(self, key: StreamKey) -> Row:
        """Itself, if no field was changed since it was sealed and it is this stream's."""
        if self.check != self._digest() or self.key != key:
            raise MemoryDamaged(f"The counters of stream {key} do not fit their checksum.", stream=key.stream)
        return self

    def _digest(self) -> str:
        values = vars(self) | {"digests": self.digests.hex(), "keyed": self.keyed.hex(), "check": None}
        for name in ("ttl", "keyed"):  # what format 1 did not have leaves its checks as they were
            if not values[name]:
                del values[name]
        return hashlib.blake2b(_ENCODER.encode(values).encode(), digest_size=16).hexdigest()


_ENCODER = json.JSONEncoder(sort_keys=True)
ROW_FIELDS = tuple(field.name for field in fields(Row))
_TYPES = {"str": str, "int": int, "float": float, "bytes": bytes}
_ROW_TYPES = {field.name: _TYPES[str(field.type)] for field in fields(Row)}


def row_of(values: Mapping[str, Any]) -> Row:
    """A row as it was stored; a damaged page may hold values of any type, which are refused."""
    if values.keys() != _ROW_TYPES.keys() or any(type(values[name]) is not kind for name, kind in _ROW_TYPES.items()):
        raise MemoryDamaged("A stream's counters can't be read.")
    return Row(**values)


def memory_check(memory: bytes) -> str:
    """A memory's checksum."""
    return hashlib.blake2b(memory, digest_size=16).hexdigest()


def verified_memory(row: Row, memory: bytes) -> bytes:
    """The memory, if it is the one its row speaks of."""
    if memory_check(memory) != row.memory_check:
        raise MemoryDamaged(f"The memory of stream {row.key} does not fit its checksum.", stream=row.stream)
    return memory


def verified_events(row: Row, sealed: Sequence[bytes], first_seq: int) -> list[bytes]:
    """The payloads of stored events from `first_seq` on, if each is whole and none is missing."""
    if first_seq < 0 or first_seq + len(sealed) != row.next_seq:
        raise MemoryDamaged(
            f"Stream {row.key} has {len(sealed)} events from {first_seq} on; expected {row.next_seq - first_seq}.",
            stream=row.stream,
        )
    return [open_event(seq, event) for seq, event in enumerate(sealed, start=first_seq)]


def with_digests(before: bytes, added: Sequence[bytes]) -> bytes:
    """The window after these events, the oldest dropped."""
    return (before + b"".join(added))[-WINDOW * DIGEST_BYTES :]


def digest_at(row: Row, seq: int) -> bytes | None:
    """The digest of an earlier event; None once it has left the window."""
    start = len(row.digests) - (row.next_seq - seq) * DIGEST_BYTES
    return row.digests[start : start + DIGEST_BYTES] if start >= 0 else None
