"""Calls with a key of their own, on every store: made once, answered again, remembered across crashes, and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from service_parts import Clock, HashChain, Place, assert_refused, folded

from remem.service import MemoryEngine
from remem.service.archive import read_archive
from remem.service.keys import KEPT, SECONDS
from remem.service.limits import StreamKey


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(place: Place, clock: Clock) -> Iterator[MemoryEngine]:
    with MemoryEngine.open(place.open(), HashChain(), clock=clock, sweep_seconds=3600) as opened:
        yield opened


def test_an_append_with_a_key_is_made_once(engine: MemoryEngine) -> None:
    first = engine.append("s", ["a", "b"], idempotency_key="one")
    engine.append("s", ["c"], idempotency_key="two")
    engine.append("s", ["c"])
    again = engine.append("s", ["a", "b"], idempotency_key="one")
    assert (again.accepted, again.duplicates, again.next_seq) == (2, 0, 2) == (first.accepted, 0, first.next_seq)
    assert engine.query("s", "?").answer == folded(["a", "b", "c", "c"])
    refused = assert_refused("key_reused", lambda: engine.append("s", ["a"], idempotency_key="one"))
    assert not refused.retry
    assert_refused("key_reused", lambda: engine.rebuild("s", ["a", "b"], idempotency_key="one"))
    assert engine.append("t", ["z"], idempotency_key="one").accepted == 1  # a key belongs to its stream
    assert engine.inspect("s").next_seq == 4


def test_with_a_number_the_number_counts(engine: MemoryEngine) -> None:
    engine.append("s", ["a"], seq=0, idempotency_key="one")
    assert engine.append("s", ["b"], seq=1, idempotency_key="one").accepted == 1
    assert engine.append("s", ["c"], idempotency_key="one").accepted == 1  # no number was kept under the key


def test_a_flush_with_a_key_closes_one_segment(engine: MemoryEngine) -> None:
    engine.append("s", ["a"], seq=0)
    assert engine.flush("s", idempotency_key="k").consolidated_seq == 2
    engine.append("s", ["b"], seq=2)
    again = engine.flush("s", idempotency_key="k")
    assert (again.accepted, again.next_seq, again.consolidated_seq) == (1, 3, 2)
    assert engine.inspect("s").tail_events == 1


def test_keys_outlive_the_process(place: Place) -> None:
    store = place.open()
    engine = MemoryEngine.open(store, HashChain())
    engine.append("s", ["a", "b"], idempotency_key="one")
    place.crash(store)
    with MemoryEngine.open(place.open(), HashChain()) as again:
        assert again.append("s", ["a", "b"], idempotency_key="one").next_seq == 2
        assert again.query("s", "?").answer == folded(["a", "b"])
        assert again.verify().clean
    engine.close()


def test_restore_and_rebuild_with_a_key_undo_nothing_that_came_later(engine: MemoryEngine) -> None:
    engine.append("s", ["a", "b"], seq=0)
    engine.snapshot("s", "copy", idempotency_key="snap")
    engine.append("s", ["bad"], seq=2)
    engine.snapshot("s", "copy", idempotency_key="snap")  # not taken again: the copy stays what it was
    assert engine.restore("s", "copy", idempotency_key="back").next_seq == 2
    engine.append("s", ["good"], seq=2)
    assert engine.restore("s", "copy", idempotency_key="back").next_seq == 2
    assert engine.query("s", "?").answer == folded(["a", "b", "good"])
    assert engine.rebuild("s", ["x"], idempotency_key="again").next_seq == 1
    engine.append("s", ["y"], seq=1)
    assert engine.rebuild("s", ["x"], idempotency_key="again").next_seq == 1
    assert engine.query("s", "?").answer == folded(["x", "y"])
    assert engine.inspect("s").generation == 2
    for call in (
        lambda: engine.rebuild("s", ["other"], idempotency_key="again"),
        lambda: engine.rebuild("s", idempotency_key="again"),
        lambda: engine.restore("s", "other", idempotency_key="back"),
        lambda: engine.snapshot("s", "other", idempotency_key="snap"),
        lambda: engine.snapshot("s", "copy", idempotency_key="back"),
    ):
        assert_refused("key_reused", call)


def test_many_at_once_with_one_key_are_one(engine: MemoryEngine) -> None:
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: engine.append("s", ["a", "b"], idempotency_key="k"), range(24)))
    assert {each.next_seq for each in done} == {2}
    assert engine.inspect("s").next_seq == 2


def test_keys_are_bounded_in_number_and_in_time(engine: MemoryEngine, clock: Clock) -> None:
    for number in range(KEPT + 1):
        engine.append("s", [f"{number}"], idempotency_key=f"key-{number}")
    assert engine.append("s", ["1"], idempotency_key="key-1").next_seq == 2
    assert engine.inspect("s").next_seq == KEPT + 1
    assert engine.append("s", ["0"], idempotency_key="key-0").next_seq == KEPT + 2  # the oldest was forgotten
    size = engine.inspect("s").bytes
    for number in range(30):
        engine.append("s", [f"{number:04}"], idempotency_key=f"more-{number}")
    engine.settle()
    assert engine.inspect("s").bytes <= size + 100
    clock.now += SECONDS - 1
    assert engine.append("s", ["0029"], idempotency_key="more-29").next_seq == KEPT + 32
    clock.now += 2
    assert engine.append("s", ["0029"], idempotency_key="more-29").next_seq == KEPT + 33  # a day has passed
    stored = engine.store.read(StreamKey("default", "s"))
    assert stored is not None
    assert len(stored.row.keyed) < 100  # that of a day ago went with the call


def test_a_deleted_stream_has_no_keys_and_an_export_has_none(engine: MemoryEngine) -> None:
    engine.append("s", ["a"], idempotency_key="k")
    archive = engine.export("s")
    assert b"keyed" not in archive
    engine.delete("s")
    engine.append("s", ["b"], idempotency_key="k")
    assert engine.query("s", "?").answer == folded(["b"])
    engine.delete("s")
    engine.import_archive("s", archive)
    assert engine.append("s", ["a"], idempotency_key="k").next_seq == 2
    assert read_archive(engine.export("s")).row["next_seq"] == 2


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 257, "a\n", 7, b"k", True, ["k"]])
def test_a_key_that_is_none_is_refused(key: Any) -> None:
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        engine.append("s", ["a"], seq=0)
        for call in (
            lambda: engine.append("s", ["b"], idempotency_key=key),
            lambda: engine.snapshot("s", "copy", idempotency_key=key),
            lambda: engine.rebuild("s", ["b"], idempotency_key=key),
        ):
            assert_refused("invalid_value", call)
        assert engine.inspect("s").next_seq == 1
