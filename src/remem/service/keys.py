"""Calls with a key of their own: sent again, they are answered as the first time, and change nothing.

For calls that no sequence number protects. The last of them stand in the stream's row, which the call itself writes, so
that a key is known exactly if its call was stored: no crash comes between the two.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from remem.service.errors import InvalidValue, KeyReused
from remem.service.limits import shown

KEPT = 64
"""How many calls with keys a stream remembers."""
SECONDS = 86_400
"""For how long."""
_MOST_CHARACTERS = 256
# digest of the key, digest of the call, next_seq and number of events in its reply, second of the call
_ENTRY = struct.Struct("<8s8sQII")


@dataclass(frozen=True)
class KeyedCall:
    """A call and its key, as they are remembered."""

    key: bytes
    call: bytes


@dataclass(frozen=True)
class Recalled:
    """What was replied the first time."""

    accepted: int
    next_seq: int


def keyed_call(key: object, verb: str, *parts: bytes) -> KeyedCall | None:
    """A call by what it does and with what; None without a key."""
    if key is None:
        return None
    if (
        not isinstance(key, str)
        or not 1 <= len(key) <= _MOST_CHARACTERS
        or any(not "!" <= character <= "~" for character in key)
    ):
        raise InvalidValue(
            f"The key of the call is {shown(key)}; expected 1 to {_MOST_CHARACTERS} printable ASCII characters.",
            path="idempotency_key",
        )
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in (verb.encode(), *parts))
    return KeyedCall(_digest(key.encode()), _digest(framed))


def recall(ring: bytes, call: KeyedCall, now: float) -> Recalled | None:
    """The reply to this call, if it was made before; the same key with another call is refused."""
    for key, what, next_seq, accepted, second in _entries(ring):
        if key == call.key and second > now - SECONDS:
            if what != call.call:
                raise KeyReused("The key was used for another call on this stream; draw a new one for each call.")
            return Recalled(accepted, next_seq)
    return None


def remember(ring: bytes, call: KeyedCall | None, reply: Recalled, now: float) -> bytes:
    """The calls kept after this one; the oldest are dropped."""
    if call is None:
        return ring
    kept = [_ENTRY.pack(*entry) for entry in _entries(ring) if entry[4] > now - SECONDS]
    kept.append(_ENTRY.pack(call.key, call.call, reply.next_seq, reply.accepted, max(0, int(now)) & 0xFFFFFFFF))
    return b"".join(kept[-KEPT:])


def _entries(ring: bytes) -> Iterator[tuple[bytes, bytes, int, int, int]]:
    return _ENTRY.iter_unpack(ring)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()
