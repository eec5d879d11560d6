"""An archive that somebody hands in, checked as if they had made it up: its checksum proves nothing about them."""

from __future__ import annotations

import array
import math
import struct
import sys
from typing import Any, NamedTuple

from remem.service.admin import content_of
from remem.service.archive import Archive, read_archive, split_tensors
from remem.service.errors import (
    InvalidValue,
    MemoryDamaged,
    ModelMismatch,
    NumericsMismatch,
    ServiceError,
    TooLarge,
)
from remem.service.events import cut_events, event_digest, unpack_event
from remem.service.expiry import checked_ttl
from remem.service.inputs import checked_event
from remem.service.ledger import Birth, Replacement
from remem.service.limits import LAST_SEQ, Limits
from remem.service.network import Network
from remem.service.records import WINDOW

_KINDS = {"F64": "d", "F32": "f"}
_COUNTERS = ("version", "next_seq", "consolidated_seq")
_MOST_NAME = 256


class Import(NamedTuple):
    """A stream to be made."""

    birth: Birth
    content: Replacement


def checked_import(archive: object, network: Network, limits: Limits, *, strict_numerics: bool) -> Import:
    """What an archive holds, if this model wrote it and every part of it is one that the engine would have written."""
    if not isinstance(archive, bytes):
        raise InvalidValue("An archive is bytes, as `export` returns them.", path="archive")
    if len(archive) > limits.archive_bytes:
        raise TooLarge(
            f"The archive has {len(archive)} bytes; at most {limits.archive_bytes} are taken.", limit="archive_bytes"
        )
    try:
        found = read_archive(archive)
        about = found.row
        _require(all(type(about[name]) is int and 0 <= about[name] <= LAST_SEQ for name in _COUNTERS), "counters")
        _require(type(found.numerics_changes) is int and 0 <= found.numerics_changes <= LAST_SEQ, "counters")
        _require(isinstance(about["fingerprint"], str) and _is_plain(about["numerics"]), "model")
        _require(about["retention"] in ("tail", "all"), "retention")
        ttl = checked_ttl(found.ttl or None)
    except MemoryDamaged as error:  # of ours it would be damage; of theirs it is bad input
        raise InvalidValue(str(error), path="archive") from None
    _require_model(about, network, strict_numerics)
    _require_events(found, network, limits)
    _require_memory(found, network)
    birth = Birth(network.fingerprint, network.numerics, network.initial_memory(), about["retention"], ttl)
    return Import(birth, content_of(found))


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvalidValue(f"The archive's {what} are not what an export has.", path="archive")


def _require_model(about: dict[str, Any], network: Network, strict_numerics: bool) -> None:
    if not network.fingerprint:
        raise InvalidValue("The store was opened without a model; give one to import.", path="model")
    if about["fingerprint"] != network.fingerprint:
        raise ModelMismatch(
            f"The archive was written by the model {about['fingerprint'][:64]!r}, not by {network.fingerprint}, which "
            "is loaded.",
            found=about["fingerprint"][:64],
            expected=network.fingerprint,
        )
    if strict_numerics and about["numerics"] != network.numerics:
        raise NumericsMismatch(f"The archive's memory was computed with other numerics than {network.numerics}.")


def _require_events(found: Archive, network: Network, limits: Limits) -> None:
    """As many as the counters say, each as it would be stored, with the digests the window has of them."""
    about, payloads = found.row, found.payloads
    tail = about["next_seq"] - about["consolidated_seq"]
    _require(len(payloads) == (about["next_seq"] if about["retention"] == "all" else tail), "events")
    if not 0 <= tail <= limits.tail_events:
        raise TooLarge(f"{tail} events of the archive are not consolidated; at most {limits.tail_events} may wait.")
    for number, payload in enumerate(payloads):
        try:
            event = unpack_event(payload)
        except (ServiceError, ValueError, struct.error):
            raise InvalidValue(f"Event {number} of the archive can't be read.", path="archive") from None
        _require(checked_event(network, limits, event, number) == payload, "events")
    first = about["next_seq"] - len(payloads)
    digests = b"".join(event_digest(seq, payload) for seq, payload in enumerate(payloads, start=first))[-8 * WINDOW :]
    _require(len(found.digests) == 8 * min(about["next_seq"], WINDOW), "digests")
    _require(found.digests.endswith(digests), "digests")


def _require_memory(found: Archive, network: Network) -> None:
    """The tensors of this model's memory and finite; where all events are there, the memory that they give."""
    try:
        header, tensors = split_tensors(found.memory)
        expected, initial = split_tensors(network.initial_memory())
        _require(header == expected and len(tensors) == len(initial), "tensors")
        _require(found.row["consolidated_seq"] > 0 or found.memory == network.initial_memory(), "tensors")
        _require(all(_is_finite(about, tensors) for about in _sizes(header).values()), "numbers")
    except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
        raise InvalidValue(f"The archive's memory can't be read ({error}).", path="archive") from None
    refold = found.row["retention"] == "all" and not found.numerics_changes
    if refold and found.row["numerics"] == network.numerics:
        cut = cut_events(found.payloads[: found.row["consolidated_seq"]], network.segment_events)
        _require(not cut.rest and len(cut.segments) == found.row["version"], "events")
        _require(network.fold(network.initial_memory(), cut.segments) == found.memory, "numbers")


def _is_plain(name: object) -> bool:
    """Whether it could be a numerics id, which every append writes with its row."""
    return isinstance(name, str) and len(name) <= _MOST_NAME and name.isascii() and name.isprintable()


def _sizes(header: dict[str, Any]) -> dict[str, Any]:
    """Kind, shape and place of each tensor."""
    return {name: about for name, about in header.items() if name != "__metadata__"}


def _is_finite(about: dict[str, Any], tensors: bytes) -> bool:
    begin, end = about["data_offsets"]
    if about["dtype"] not in _KINDS:
        return begin <= end <= len(tensors)
    numbers = array.array(_KINDS[about["dtype"]], tensors[begin:end])
    if sys.byteorder == "big":
        numbers.byteswap()
    return end <= len(tensors) and all(map(math.isfinite, numbers))
