"""Whole streams on every store: copies, rebuilds and deletions, and what a bad or overtaken one does to others."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from service_parts import POISON, HashChain, Place, SlowChain, SqlitePlace, as_memory, assert_refused, folded

from remem.client import calls
from remem.errors import BadInput
from remem.service import Limits, MemoryEngine
from remem.service.archive import read_archive
from remem.service.errors import StoreUnavailable
from remem.service.events import pack_event
from remem.service.limits import StreamKey


def test_a_deleted_stream_begins_anew(engine: MemoryEngine) -> None:
    engine.append("s", ["a", "b", "c", "d"], seq=0)
    engine.snapshot("s", "kept")
    assert engine.delete("s").existed
    assert not engine.delete("s").existed
    assert_refused("unknown_stream", lambda: engine.query("s", "?"))
    assert engine.append("s", ["x"], seq=0).next_seq == 1
    assert engine.query("s", "?").answer == folded(["x"])
    assert engine.inspect("s").snapshots == []


def test_a_snapshot_brings_back_what_was(engine: MemoryEngine) -> None:
    engine.append("s", ["a", "b", "c", "d"], seq=0)
    engine.settle()
    engine.snapshot("s", "before")
    engine.append("s", ["bad", "worse"], seq=4)
    back = engine.restore("s", "before")
    assert (back.next_seq, back.consolidated_seq) == (4, 3)
    assert engine.query("s", "?").answer == folded(["a", "b", "c", "d"])
    assert engine.inspect("s").generation == 1
    engine.append("s", ["good"], seq=4)
    assert engine.query("s", "?").answer == folded(["a", "b", "c", "d", "good"])
    assert_refused("sequence_conflict", lambda: engine.append("s", ["other"], seq=3))
    assert_refused("unknown_snapshot", lambda: engine.restore("s", "after"))
    assert engine.verify().clean


def test_snapshots_are_bounded(place: Place) -> None:
    with MemoryEngine.open(place.open(), HashChain(), limits=Limits(snapshots=2)) as engine:
        engine.append("s", ["a"])
        for name in ("one", "two", "two"):
            engine.snapshot("s", name)
        refused = assert_refused("too_many_snapshots", lambda: engine.snapshot("s", "three"))
        assert not refused.retry  # a client that came back would wait in vain
        assert engine.inspect("s").snapshots == ["one", "two"]
        assert_refused("unknown_stream", lambda: engine.snapshot("t", "one"))


def test_a_stream_of_another_model_is_refused_until_it_is_rebuilt(place: Place) -> None:
    events: list[object] = ["a", "b", "c", "d", "e"]
    with MemoryEngine.open(place.open(), HashChain(3), retention="all") as engine:
        engine.append("kept", events, seq=0)
        engine.create("tail", retention="tail")
        engine.append("tail", events, seq=0)
        engine.settle()
    with MemoryEngine.open(place.open(), HashChain(2), retention="all") as engine:
        for name in ("kept", "tail"):
            assert engine.inspect(name).state == "rebuild_needed"
            assert_refused("model_mismatch", lambda name=name: engine.query(name, "?"))
            assert_refused("model_mismatch", lambda name=name: engine.append(name, ["f"], seq=5))
        done = engine.rebuild("kept")
        assert (done.next_seq, done.consolidated_seq, done.memory_version) == (5, 4, 2)
        assert_refused("log_not_retained", lambda: engine.rebuild("tail"))
        engine.rebuild("tail", events)
        for name in ("kept", "tail"):
            engine.append(name, ["f"], seq=5)
            assert engine.query(name, "?").answer == folded([*events, "f"], segment_events=2)
        engine.settle()
        checked = engine.verify()
        assert checked.clean
        assert checked.refolded == 1


class NarrowChain(HashChain):
    """A later model, which does not know every item that an earlier one took."""

    def checked_item(self, item: Any) -> Any:
        if item == "old":
            raise BadInput("'old' is no item of this model.")
        return super().checked_item(item)


@pytest.mark.parametrize("place_of_it", [1, 3], ids=["in a whole segment", "in the open one"])
def test_a_rebuild_is_refused_where_the_new_model_does_not_know_an_event(place: Place, place_of_it: int) -> None:
    events = ["a", "b", "c", "d"]
    events[place_of_it] = "old"
    with MemoryEngine.open(place.open(), HashChain(), retention="all") as engine:
        engine.append("s", events, seq=0)
    with MemoryEngine.open(place.open(), NarrowChain(salt="later"), retention="all") as engine:
        refused = assert_refused("invalid_value", lambda: engine.rebuild("s"))
        assert refused.details["path"] == f"events[{place_of_it}]"
        assert engine.inspect("s").state == "rebuild_needed"  # as it was
        engine.rebuild("s", [event for event in events if event != "old"])
        assert engine.query("s", "?").as_of_seq == 3


@pytest.mark.parametrize("events", ["dog", b"dog", 3])
def test_a_rebuild_from_what_is_no_list_of_events_changes_nothing(engine: MemoryEngine, events: Any) -> None:
    engine.append("s", ["a"], seq=0)
    assert_refused("invalid_value", lambda: engine.rebuild("s", events))
    assert_refused("invalid_value", lambda: calls.rebuild("s", events))
    assert engine.query("s", "?").answer == folded(["a"])


def test_a_rebuild_may_leave_an_event_out(engine: MemoryEngine) -> None:
    engine.append("s", ["a", "secret", "c", "d"], seq=0)
    engine.rebuild("s", ["a", "c", "d"])
    assert engine.query("s", "?").answer == folded(["a", "c", "d"])
    assert engine.append("s", ["e"], seq=3).next_seq == 4


def test_a_broken_segment_degrades_its_stream_alone(place: Place) -> None:
    with MemoryEngine.open(place.open(), HashChain(), limits=Limits(tail_events=8)) as engine:
        engine.append("bad", ["a", "b", "c"], seq=0)
        engine.settle()
        engine.append("bad", ["d", POISON, "f"], seq=3)
        engine.append("good", ["a", "b", "c"], seq=0)
        assert engine.settle()
        about = engine.inspect("bad")
        assert (about.state, about.consolidated_seq, about.tail_events) == ("degraded", 3, 3)
        assert "NotFinite" in about.error
        said = engine.query("bad", "?")
        assert (said.answer, said.stale, said.as_of_seq) == (folded(["a", "b", "c"]), True, 3)
        assert engine.inspect("good").consolidated_seq == 3
        engine.append("bad", list(range(5)), seq=6)
        assert_refused("stream_degraded", lambda: engine.append("bad", ["x"], seq=11, timeout=0.1))
        engine.rebuild("bad", ["a", "b", "c", "d"])
        assert engine.inspect("bad").state == "compatible"
        assert engine.query("bad", "?").answer == folded(["a", "b", "c", "d"])


def test_a_full_tail_waits_and_then_refuses_and_loses_nothing(place: Place) -> None:
    slow = SlowChain()
    with MemoryEngine.open(place.open(), slow, limits=Limits(tail_events=6)) as engine:
        engine.append("s", list(range(6)), seq=0)
        assert assert_refused("queue_full", lambda: engine.append("s", [6], seq=6, timeout=0.05)).retry
        threading.Timer(0.1, slow.gate.set).start()
        assert engine.append("s", [6], seq=6, timeout=10).next_seq == 7
        assert engine.query("s", "?").answer == folded(list(range(7)))


def test_a_full_tail_is_taken_up_again_after_the_store_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowChain()
    with MemoryEngine.open(":memory:", slow, limits=Limits(tail_events=6)) as engine:
        engine.append("s", ["a"] * 6, seq=0)
        with monkeypatch.context() as patch:
            patch.setattr(
                engine.store, "update", lambda *_: (_ for _ in ()).throw(StoreUnavailable("The disk is full."))
            )
            slow.gate.set()
            assert engine.settle()  # three times, in vain, and nothing could be noted of it
        assert engine.inspect("s").tail_events == 6
        assert engine.append("s", ["b"], seq=6).next_seq == 7


def test_a_late_consolidation_never_brings_a_deleted_stream_back(place: Place) -> None:
    slow = SlowChain()
    with MemoryEngine.open(place.open(), slow) as engine:
        engine.append("s", ["a", "b", "c"], seq=0)
        engine.append("t", ["a", "b", "c"], seq=0)
        time.sleep(0.05)  # the consolidator is inside the first fold
        engine.delete("s")
        engine.delete("t")
        engine.append("t", ["x"], seq=0)
        slow.gate.set()
        engine.settle()
        assert_refused("unknown_stream", lambda: engine.inspect("s"))
        assert engine.query("t", "?").answer == folded(["x"])
        assert engine.inspect("t").memory_version == 0


def test_a_late_snapshot_never_brings_a_deleted_stream_back(engine: MemoryEngine) -> None:
    engine.append("s", ["deleted"], seq=0)
    put = engine.store.put_snapshot

    def delete_first(*copy: Any) -> bool:
        engine.delete("s")
        engine.append("s", ["another"], seq=0)
        return put(*copy)

    engine.store.put_snapshot = delete_first  # type: ignore[method-assign]
    assert_refused("stream_changed", lambda: engine.snapshot("s", "late"))
    assert engine.inspect("s").snapshots == []


def test_a_rebuild_that_was_overtaken_changes_nothing(place: Place) -> None:
    slow = SlowChain()
    with MemoryEngine.open(place.open(), slow) as engine, ThreadPoolExecutor(1) as pool:
        engine.append("s", ["a"], seq=0)
        rebuild = pool.submit(engine.rebuild, "s", ["x", "y", "z"])
        time.sleep(0.05)
        engine.append("s", ["b"], seq=1)
        slow.gate.set()
        assert_refused("stream_changed", rebuild.result)
        assert engine.query("s", "?").answer == folded(["a", "b"])


def test_an_export_is_a_whole_stream(engine: MemoryEngine) -> None:
    engine.append("s", ["a", "b", "c", "d"], seq=0)
    engine.settle()
    found = read_archive(engine.export("s"))
    assert (found.row["next_seq"], found.row["consolidated_seq"]) == (4, 3)
    assert found.payloads == [pack_event("d", False)]
    chain = HashChain()
    assert chain.answer(found.memory) == folded(["a", "b", "c"])


def test_unfinished_work_is_taken_up_after_a_crash(place: Place) -> None:
    store, slow = place.open(), SlowChain()
    engine = MemoryEngine.open(store, slow)
    engine.append("s", list(range(10)), seq=0)
    place.crash(store)
    with MemoryEngine.open(place.open(), HashChain()) as again:
        assert again.settle()
        assert again.inspect("s").consolidated_seq == 9
        assert again.query("s", "?").answer == folded(list(range(10)))
        assert again.append("s", [9], seq=9).duplicates == 1
    slow.gate.set()
    engine.close()


def test_an_old_engine_is_fenced_off(place: Place) -> None:
    old = MemoryEngine.open(place.open(), HashChain())
    old.append("s", ["a"], seq=0)
    if isinstance(place, SqlitePlace):
        assert_refused("store_in_use", place.open)  # a file: the second does not even get in
    else:
        fresh = MemoryEngine.open(place.open(), HashChain())
        assert_refused("stale_epoch", lambda: old.append("s", ["b"], seq=1))
        assert_refused("stale_epoch", lambda: old.delete("s"))
        assert_refused("stale_epoch", lambda: old.snapshot("s", "x"))
        assert fresh.append("s", ["c"], seq=1).next_seq == 2
        fresh.close()
    old.close()


def test_a_stream_is_made_once_with_its_settings(engine: MemoryEngine) -> None:
    assert engine.create("s", retention="all")
    assert not engine.create("s")
    assert not engine.create("s", retention="all")
    assert_refused("stream_exists", lambda: engine.create("s", retention="tail"))
    assert engine.query("s", "?").as_of_seq == 0
    assert engine.append("s", ["a"], seq=0).next_seq == 1


def test_other_numerics_are_recorded_or_refused(place: Place) -> None:
    with MemoryEngine.open(place.open(), HashChain()) as engine:
        engine.append("s", ["a", "b", "c"], seq=0)
        engine.settle()
    moved = HashChain()
    moved.numerics = "elsewhere"
    with MemoryEngine.open(place.open(), moved, strict_numerics=True) as strict:
        assert_refused("numerics_mismatch", lambda: strict.query("s", "?"))
    with MemoryEngine.open(place.open(), moved) as engine:
        engine.append("s", ["d", "e", "f"], seq=3)
        engine.settle()
        about = engine.inspect("s")
        assert (about.numerics, about.numerics_changes) == ("elsewhere", 1)


def test_a_copy_knows_that_numerics_changed_so_that_nobody_compares_its_bits(place: Place) -> None:
    with MemoryEngine.open(place.open(), HashChain(), retention="all") as engine:
        engine.append("s", ["a", "b", "c"], seq=0)
        engine.settle()

    class Elsewhere(HashChain):
        """Other bits from here on."""

        def initial_memory(self) -> bytes:
            return as_memory(bytes(32))

    moved = Elsewhere()
    moved.numerics = "elsewhere"
    with MemoryEngine.open(place.open(), moved, retention="all") as engine:
        engine.append("s", ["d", "e", "f"], seq=3)
        engine.settle()
        engine.snapshot("s", "copy")
        engine.restore("s", "copy")
        assert engine.inspect("s").numerics_changes == 1
        assert engine.verify().clean


def test_a_store_is_looked_after_without_a_model(place: Place) -> None:
    with MemoryEngine.open(place.open(), HashChain(), retention="all") as engine:
        engine.append("s", ["a", "b", "c", "d"], seq=0)
        engine.settle()
    with MemoryEngine.open(place.open(), None) as keeper:
        for call in (
            lambda: keeper.append("s", ["e"]),
            lambda: keeper.query("s", "?"),
            lambda: keeper.rebuild("s"),
            lambda: keeper.create("t"),
        ):
            assert_refused("invalid_value", call)
        assert keeper.inspect("s").state == "unknown"
        assert read_archive(keeper.export("s")).row["next_seq"] == 4
        assert keeper.verify().clean
        assert keeper.delete("s").existed


def test_a_stream_that_is_deleted_while_it_is_verified_is_no_damage(
    engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.append("s", ["a"], seq=0)
    engine.snapshot("s", "copy")
    found = engine.store.get_snapshot

    def late(key: StreamKey, name: str) -> bytes | None:
        engine.delete(key.stream)
        return found(key, name)

    monkeypatch.setattr(engine.store, "get_snapshot", late)
    assert engine.verify().problems == []
