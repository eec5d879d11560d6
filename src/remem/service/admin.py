"""Inspecting, restoring, rebuilding and verifying: what an operator does to whole streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from remem.service.archive import Archive, read_archive
from remem.service.errors import LogNotRetained, MemoryDamaged, ServiceError
from remem.service.events import cut_events, event_digest, unpack_event
from remem.service.inputs import checked_replay
from remem.service.ledger import Replacement
from remem.service.limits import Limits, StreamKey
from remem.service.network import Network
from remem.service.records import Row, verified_events, verified_memory, with_digests
from remem.service.results import Inspected, Problem, State, Verified
from remem.service.store import Store, Stored


def inspected(store: Store, network: Network, key: StreamKey, stored: Stored) -> Inspected:
    """All about a stream but its content."""
    row = stored.row.verified(key)
    ours = row.fingerprint == network.fingerprint
    state: State = "compatible" if ours else "rebuild_needed" if network.fingerprint else "unknown"
    return Inspected(
        tenant=row.tenant,
        stream=row.stream,
        state="degraded" if row.error and state != "rebuild_needed" else state,
        next_seq=row.next_seq,
        consolidated_seq=row.consolidated_seq,
        tail_events=row.tail_events,
        memory_version=row.version,
        generation=row.generation,
        model=row.fingerprint,
        numerics=row.numerics,
        numerics_changes=row.numerics_changes,
        retention=row.retention,
        bytes=store.num_bytes(key),
        created=row.created,
        updated=row.updated,
        error=row.error,
        snapshots=store.snapshots(key),
        memory=network.describe(verified_memory(row, stored.memory)) if ours else {},
        purge_pending=store.purge_pending(),
        ttl=row.ttl or None,
        expires=row.expires if row.ttl else None,
    )


def restored(archive: bytes, row: Row) -> Replacement:
    """A snapshot as the content of the stream it was taken of."""
    found = read_archive(archive)
    about = found.row
    if (about["tenant"], about["stream"]) != row.key:
        raise MemoryDamaged(f"The snapshot of {row.key} is one of {about['tenant']}/{about['stream']}.")
    return content_of(found)


def content_of(found: Archive) -> Replacement:
    """What an archive holds, as a stream's content."""
    about = found.row
    return Replacement(
        fingerprint=about["fingerprint"],
        numerics=about["numerics"],
        version=about["version"],
        consolidated_seq=about["consolidated_seq"],
        memory=found.memory,
        digests=found.digests,
        payloads=found.payloads,
        next_seq=about["next_seq"],
        numerics_changes=found.numerics_changes,
    )


def rebuilt(stored: Stored, given: Sequence[bytes] | None, network: Network, limits: Limits) -> Replacement:
    """All events folded again from the first, those that were given or those that the stream retained."""
    row = stored.row
    if given is None:
        row = row.verified(row.key)
        if len(stored.events) != row.next_seq:
            raise LogNotRetained(
                f"Stream {row.key} keeps its last {len(stored.events)} of {row.next_seq} events; give all events from "
                "0 on to rebuild it."
            )
        # another model may have taken what this one does not know, in the open segment too, which is not folded here
        given = checked_replay(network, limits, map(unpack_event, verified_events(row, stored.events, 0)))
    cut = cut_events(given, network.segment_events)
    return Replacement(
        fingerprint=network.fingerprint,
        numerics=network.numerics,
        version=len(cut.segments),
        consolidated_seq=cut.events,
        memory=network.fold(network.initial_memory(), cut.segments),
        digests=with_digests(b"", [event_digest(seq, payload) for seq, payload in enumerate(given)]),
        payloads=given if row.retention == "all" else cut.rest,
        next_seq=len(given),
    )


def verified(store: Store, network: Network, keys: Iterator[StreamKey]) -> Verified:
    """Every checksum of these streams, and of the store itself; retained events folded again and compared."""
    problems = [Problem("", "memory_damaged", line) for line in store.problems()]
    streams = events = refolded = 0
    try:
        for key in keys:
            streams += 1
            try:
                seen, folded = _verified_stream(store, network, key)
                events, refolded = events + seen, refolded + folded
            except ServiceError as error:
                problems.append(Problem(str(key), error.code, str(error)))
    except ServiceError as error:
        problems.append(Problem("", error.code, str(error)))
    return Verified(streams=streams, events=events, refolded=refolded, problems=problems)


def _verified_stream(store: Store, network: Network, key: StreamKey) -> tuple[int, bool]:
    stored = store.read(key, log=True)
    if stored is None:  # deleted while we looked at others
        return 0, False
    row = stored.row.verified(key)
    memory = verified_memory(row, stored.memory)
    first = row.next_seq - len(stored.events)
    if first > row.consolidated_seq or (row.retention == "tail" and first != row.consolidated_seq):
        raise MemoryDamaged(f"Stream {key} keeps events from {first} on; expected from {row.consolidated_seq} on.")
    payloads = verified_events(row, stored.events, first)
    for name in store.snapshots(key):
        if (archive := store.get_snapshot(key, name)) is not None:  # else deleted while we looked
            read_archive(archive)
    ours = (row.fingerprint, row.numerics, row.numerics_changes) == (network.fingerprint, network.numerics, 0)
    if first or row.retention != "all" or not ours:
        return len(payloads), False
    cut = cut_events(payloads[: row.consolidated_seq], network.segment_events)
    if cut.rest or network.fold(network.initial_memory(), cut.segments) != memory:
        raise MemoryDamaged(f"The memory of stream {key} is not what its retained events give.")
    return len(payloads), True
