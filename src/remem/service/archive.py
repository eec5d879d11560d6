"""A stream as one safetensors file: its memory's tensors, and in the header its counters and events.

What `export` returns and snapshots keep. Any reader of safetensors opens it; nothing in it can run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remem.service.errors import IncompatibleFormat, MemoryDamaged
from remem.service.records import FORMAT_VERSION, Row

_MOST_HEADER = 64 * 2**20
_FIELDS = ("tenant", "stream", "generation", "version", "next_seq", "consolidated_seq", "fingerprint", "numerics",
           "retention", "created", "updated")  # fmt: skip
_LATER_FIELDS = {"ttl": 0.0, "numerics_changes": 0}
"""What the first archives did not have, with what it was then."""


@dataclass(frozen=True)
class Archive:
    """What a file holds of a stream."""

    row: dict[str, Any]
    digests: bytes
    memory: bytes
    payloads: list[bytes]
    """Events that were kept: the tail, or all of them."""
    ttl: float = 0.0
    numerics_changes: int = 0


def write_archive(row: Row, memory: bytes, payloads: Sequence[bytes]) -> bytes:
    """The memory's own file, with the stream in its header."""
    about: dict[str, Any] = {name: getattr(row, name) for name in (*_FIELDS, *_LATER_FIELDS)}
    about |= {"format_version": FORMAT_VERSION, "digests": row.digests.hex()}
    about["events"] = [base64.b64encode(payload).decode() for payload in payloads]
    header, tensors = split_tensors(memory)
    kept = header.get("__metadata__", {})
    about["check"] = _check(about, memory)
    return _joined(header | {"__metadata__": kept | {"remem-stream": json.dumps(about)}}, tensors)


def read_archive(data: bytes) -> Archive:
    """What `write_archive` wrote; anything else, or a damaged one, is refused."""
    try:
        header, tensors = split_tensors(data)
        metadata = dict(header["__metadata__"])
        about = json.loads(metadata.pop("remem-stream"))
        rest = {name: value for name, value in header.items() if name != "__metadata__"}
        memory = _joined(rest | ({"__metadata__": metadata} if metadata else {}), tensors)
        version, check = about["format_version"], about.pop("check")
        payloads = [base64.b64decode(event, validate=True) for event in about["events"]]
        digests = bytes.fromhex(about["digests"])
        row, later = {name: about[name] for name in _FIELDS}, {**_LATER_FIELDS, **about}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, struct.error) as error:
        raise MemoryDamaged(f"The archive is not one that remem wrote, or it is damaged ({error}).") from None
    if version != FORMAT_VERSION:
        raise IncompatibleFormat(f"The archive has the format {version}; this release reads {FORMAT_VERSION}.")
    if _check(about, memory) != check:
        raise MemoryDamaged("The archive does not fit its checksum.")
    return Archive(row, digests, memory, payloads, later["ttl"], later["numerics_changes"])


def _check(about: dict[str, Any], memory: bytes) -> str:
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
    digest.update(memory)
    return digest.hexdigest()


def split_tensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the numbers of a safetensors file."""
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(_MOST_HEADER, len(data)):
        raise ValueError(f"a header of {length} bytes")
    header = json.loads(data[8 : 8 + length])
    if not isinstance(header, dict):
        raise TypeError("a header that is no object")
    return header, data[8 + length :]


def _joined(header: dict[str, Any], tensors: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    # tensors begin at a multiple of eight bytes
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + tensors
