"""Bounds on everything a caller can make large."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from remem.service.errors import InvalidValue

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@~-]{0,255}")
# sequence numbers stay exact in every JSON reader, and in Redis
LAST_SEQ = 2**53 - 1
DEFAULT_TENANT = "default"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is refused as too large. All bounds are per call or per stream."""

    events: int = 1000
    """Most events of one append."""
    text_bytes: int = 8192
    """Longest sentence, as UTF-8."""
    vector_abs: float = 1e4
    """Largest number in a vector, either side of zero."""
    tail_events: int = 4096
    """Most events waiting for consolidation in one stream; appends wait, then are refused."""
    snapshots: int = 16
    """Most snapshots of one stream."""
    list_page: int = 1000
    """Most streams of one page."""
    archive_bytes: int = 16 * 2**20
    """Largest archive that is imported."""


class StreamKey(NamedTuple):
    """A stream's whole name: the tenant is part of it, so no filter stands between tenants."""

    tenant: str
    stream: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.stream}"


def checked_name(value: object, what: str) -> str:
    """A tenant, stream or snapshot name; refused unless it is plain enough for keys, paths and logs."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidValue(
            f"{shown(value)} is no name of a {what}; expected 1 to 256 of the characters A-Z a-z 0-9 . _ : @ ~ -, "
            "of which the first is a letter or a digit.",
            path=what,
        )
    return value


def stream_key(stream: object, tenant: object) -> StreamKey:
    """The checked key of a stream."""
    return StreamKey(checked_name(tenant, "tenant"), checked_name(stream, "stream"))


def shown(value: object) -> str:
    """A value as a message may quote it: short, and in plain characters whatever it holds."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of hundreds of digits"
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
