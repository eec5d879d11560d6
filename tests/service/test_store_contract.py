"""The contract of a store, below the engine: one atomic, durable read-decide-write at a time. Run on every store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from service_parts import Place

from remem.service.errors import MemoryDamaged, ServiceError
from remem.service.events import seal_event
from remem.service.ledger import Birth, new_row
from remem.service.limits import StreamKey
from remem.service.records import Row, memory_check
from remem.service.store import Change, Store

KEY = StreamKey("tenant", "stream")
BIRTH = Birth("model", "exact", b"memory 0", "tail")


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    opened = place.open()
    yield opened
    opened.close()


def make(store: Store, key: StreamKey = KEY, events: int = 0) -> Row:
    """A stream with this many events."""
    row = replace(new_row(key, BIRTH, now=1.0), next_seq=events).sealed()
    sealed = [seal_event(seq, b"event %d" % seq) for seq in range(events)]
    made = store.update(key, lambda before: Change(row=row, memory=b"memory 0", events=sealed))
    assert made == row
    return row


def test_a_change_is_read_back_whole(store: Store) -> None:
    assert store.read(KEY) is None
    assert store.update(KEY, lambda row: None) is None
    row = make(store, events=5)
    stored = store.read(KEY)
    assert stored is not None
    assert (stored.row, stored.memory) == (row, b"memory 0")
    assert stored.row.verified(KEY)
    assert stored.events == [seal_event(seq, b"event %d" % seq) for seq in range(5)]
    assert store.num_bytes(KEY) == len(b"memory 0") + 5 * (8 + 7)


def test_whether_it_can_be_written_to_is_found_without_writing(place: Place, store: Store) -> None:
    row = make(store, events=2)
    store.require_writable()
    assert (store.update(KEY, lambda row: None), list(store.keys())) == (row, [KEY])
    place.crash(store)
    successor = place.open()
    with pytest.raises(ServiceError):
        store.require_writable()
    successor.require_writable()
    successor.close()


def test_an_exception_writes_nothing(store: Store) -> None:
    row = make(store, events=2)

    def refuse(before: Row | None) -> Change:
        assert before == row
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.update(KEY, refuse)
    stored = store.read(KEY)
    assert stored is not None
    assert stored.row == row


def test_consolidated_events_are_trimmed_or_kept(store: Store) -> None:
    for key, keep_from, kept in ((KEY, 3, 2), (StreamKey("tenant", "log"), 0, 5)):
        make(store, key, events=5)

        def consolidate(row: Row | None, keep_from: int = keep_from) -> Change:
            assert row is not None
            after = replace(row, consolidated_seq=3, version=1, memory_check=memory_check(b"memory 1")).sealed()
            return Change(row=after, memory=b"memory 1", keep_from=keep_from)

        store.update(key, consolidate)
        tail, log = store.read(key), store.read(key, log=True)
        assert tail is not None
        assert log is not None
        assert tail.events == [seal_event(seq, b"event %d" % seq) for seq in (3, 4)]
        assert len(log.events) == kept
        assert tail.memory == b"memory 1"


def test_a_replacement_drops_what_was(store: Store) -> None:
    row = make(store, events=5)
    after = replace(row, next_seq=9, consolidated_seq=8, generation=1).sealed()
    store.update(KEY, lambda before: Change(row=after, memory=b"new", events=[b"last"], drop_all=True))
    stored = store.read(KEY, log=True)
    assert stored is not None
    assert (stored.row, stored.memory, stored.events) == (after, b"new", [b"last"])


def test_streams_with_a_tail_are_found(store: Store) -> None:
    make(store, StreamKey("a", "empty"))
    make(store, StreamKey("a", "tail"), events=1)
    make(store, StreamKey("b", "tail"), events=2)
    assert sorted(store.pending()) == [("a", "tail"), ("b", "tail")]
    assert sorted(store.keys()) == [("a", "empty"), ("a", "tail"), ("b", "tail")]
    store.delete(StreamKey("a", "tail"))
    assert store.pending() == [("b", "tail")]


def test_names_are_paged_by_prefix(store: Store) -> None:
    names = ["A", "a", "a:1", "a:2", "a@", "ab", "b"]
    for name in names:
        make(store, StreamKey("t", name))
    make(store, StreamKey("t2", "a:3"))
    assert store.page("t", "", "", 100, 0.0) == sorted(names)
    assert store.page("t", "a:", "", 100, 0.0) == ["a:1", "a:2"]
    assert store.page("t", "a", "a:1", 2, 0.0) == ["a:2", "a@"]
    assert store.page("t", "a:", "ab", 9, 0.0) == []
    assert store.page("t", "b", "a:1", 9, 0.0) == ["b"]
    assert store.page("none", "", "", 9, 0.0) == []


def test_the_expired_are_found_in_order_and_left_out_of_pages(store: Store) -> None:
    for name, ttl in (("for-ever", 0.0), ("late", 30.0), ("early", 10.0), ("middle", 20.0)):
        key = StreamKey("t", name)
        row = replace(new_row(key, replace(BIRTH, ttl=ttl), now=100.0), next_seq=0).sealed()
        store.update(key, lambda before, row=row: Change(row=row, memory=b"memory 0"))
    assert store.expired(109.9, 10) == []
    assert store.expired(110.0, 10) == [("t", "early")]
    assert store.expired(1000.0, 10) == [("t", "early"), ("t", "middle"), ("t", "late")]
    assert store.expired(1000.0, 2) == [("t", "early"), ("t", "middle")]
    assert store.page("t", "", "", 10, 110.0) == ["for-ever", "late", "middle"]
    assert store.page("t", "", "", 1, 1000.0) == ["for-ever"]
    assert store.page("t", "l", "", 1, 1000.0) == []

    def renew(row: Row | None) -> Change:
        assert row is not None
        return Change(row=replace(row, updated=200.0).sealed())

    store.update(StreamKey("t", "early"), renew)
    assert store.expired(125.0, 10) == [("t", "middle")]
    store.delete(StreamKey("t", "middle"))
    assert store.expired(1000.0, 10) == [("t", "late"), ("t", "early")]


def test_the_doomed_alone_are_discarded(store: Store) -> None:
    keys = [StreamKey("t", name) for name in ("a", "b", "c")]
    rows = [make(store, key, events=2) for key in keys]
    store.put_snapshot(rows[0], "one", b"copy", 2)

    def doomed(row: Row) -> bool:
        if row.stream == "b":
            raise MemoryDamaged("not this one")
        return row.stream == "a"

    assert store.discard([*keys, StreamKey("t", "none")], doomed) == rows[:1]
    assert store.read(keys[0]) is None
    assert sorted(store.keys()) == keys[1:] == sorted(store.pending())
    make(store, keys[0])
    assert store.snapshots(keys[0]) == []
    assert store.problems() == []


def test_a_stream_that_begins_anew_keeps_nothing(store: Store) -> None:
    store.put_snapshot(make(store, events=5), "one", b"copy", 2)
    row = replace(new_row(KEY, replace(BIRTH, ttl=60.0), now=2.0), next_seq=1, keyed=b"\0\xff").sealed()
    store.update(KEY, lambda before: Change(row=row, memory=b"memory 1", events=[b"first"], anew=True))
    stored = store.read(KEY, log=True)
    assert stored is not None
    assert (stored.row, stored.memory, stored.events) == (row, b"memory 1", [b"first"])
    assert stored.row.verified(KEY).expires == 62.0
    assert store.snapshots(KEY) == []
    assert store.problems() == []


def test_snapshots_belong_to_their_stream(store: Store) -> None:
    assert not store.put_snapshot(new_row(KEY, BIRTH, now=1.0), "one", b"copy", 2)
    row = make(store)
    assert store.put_snapshot(row, "one", b"copy", 2)
    assert store.put_snapshot(row, "two", b"copy 2", 2)
    assert not store.put_snapshot(row, "three", b"copy 3", 2)
    assert store.put_snapshot(row, "one", b"newer", 2)
    assert (store.snapshots(KEY), store.get_snapshot(KEY, "one")) == (["one", "two"], b"newer")
    assert store.get_snapshot(KEY, "none") is None
    assert store.delete(KEY).existed
    make(store)
    assert not store.put_snapshot(row, "one", b"of the stream that is gone", 2)
    assert store.snapshots(KEY) == []


def test_binary_content_of_any_size_is_kept(store: Store) -> None:
    memory, event = secrets.token_bytes(300_000) + b"\0\r\n", bytes(range(256)) * 40
    row = replace(new_row(KEY, BIRTH, now=1.5), next_seq=1, digests=bytes(range(200, 256))).sealed()
    store.update(KEY, lambda before: Change(row=row, memory=memory, events=[event]))
    stored = store.read(KEY)
    assert stored is not None
    assert (stored.row, stored.memory, stored.events) == (row, memory, [event])


def test_no_update_is_lost_among_many(store: Store) -> None:
    make(store)

    def count(row: Row | None) -> Change:
        assert row is not None
        return Change(row=replace(row, version=row.version + 1).sealed())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.update(KEY, count), range(160)))
    stored = store.read(KEY)
    assert stored is not None
    assert stored.row.version == 160


def test_all_is_there_after_a_restart_and_after_a_crash(place: Place) -> None:
    store = place.open()
    store.put_snapshot(make(store, events=3), "one", b"copy", 2)
    store.close()
    again = place.open()
    make(again, StreamKey("tenant", "second"), events=1)
    place.crash(again)
    third = place.open()
    for name, events in (("stream", 3), ("second", 1)):
        stored = third.read(StreamKey("tenant", name))
        assert stored is not None
        assert len(stored.events) == events
    assert third.get_snapshot(KEY, "one") == b"copy"
    assert third.problems() == []
    again.close()
    third.close()
