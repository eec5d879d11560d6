"""The engine's verbs on every store: each event exactly once, typed refusals, and answers that say what they know."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from service_parts import POISON, HashChain, Place, SqlitePlace

from remem.service import CODES, FLUSH, Event, Limits, MemoryEngine, ServiceError
from remem.service import errors as service_errors
from remem.service.archive import read_archive
from remem.service.events import cut_events, pack_event
from remem.service.limits import StreamKey


def folded(events: list[object], *, segment_events: int = 3) -> str:
    """What a hash chain answers after these events, its tail included."""
    chain = HashChain(segment_events)
    unpacked = [event if isinstance(event, Event) else Event(event) for event in events]
    cut = cut_events([pack_event(event.item, event.ends_segment) for event in unpacked], segment_events)
    return chain.answer(chain.fold(chain.initial_memory(), [*cut.segments, *([cut.rest] if cut.rest else [])]))


def assert_refused(code: str, call: Callable[[], object]) -> ServiceError:
    """The refusal with this code, whose problem document is whole."""
    with pytest.raises(ServiceError) as caught:
        call()
    assert caught.value.code == code, str(caught.value)
    problem = caught.value.problem()
    assert problem["status"] == CODES[code].status
    assert problem["detail"] == str(caught.value) != ""
    return caught.value


def test_events_are_answered_from_at_once_and_consolidated_afterwards(engine: MemoryEngine) -> None:
    events: list[object] = ["a", "b", 3, "d", "e"]
    done = engine.append("s", events, seq=0)
    assert (done.accepted, done.duplicates, done.next_seq) == (5, 0, 5)
    said = engine.query("s", "?", min_seq=done.next_seq)
    assert (said.answer, said.as_of_seq, said.stale) == (folded(events), 5, False)
    assert engine.settle()
    about = engine.inspect("s")
    assert (about.consolidated_seq, about.memory_version, about.tail_events, about.state) == (3, 1, 2, "compatible")
    assert engine.query("s", "?", tail="exclude").answer == folded(events[:3])
    assert engine.query("s", "?").answer == folded(events)


def test_an_event_sent_again_changes_nothing(engine: MemoryEngine) -> None:
    engine.append("s", ["a", "b"], seq=0)
    again = engine.append("s", ["a", "b", "c", "d"], seq=0)
    assert (again.accepted, again.duplicates, again.next_seq) == (2, 2, 4)
    once_more = engine.append("s", ["b"], seq=1)
    assert (once_more.accepted, once_more.duplicates, once_more.next_seq) == (0, 1, 4)
    assert engine.query("s", "?").answer == folded(["a", "b", "c", "d"])


def test_a_gap_is_refused_with_the_number_to_go_on_from(engine: MemoryEngine) -> None:
    assert assert_refused("sequence_gap", lambda: engine.append("s", ["a"], seq=1)).details["expected_seq"] == 0
    assert_refused("unknown_stream", lambda: engine.inspect("s"))
    engine.append("s", ["a"], seq=0)
    assert assert_refused("sequence_gap", lambda: engine.append("s", ["c"], seq=2)).details["expected_seq"] == 1
    assert engine.append("s", ["b"], seq=1).next_seq == 2


def test_another_event_of_the_same_number_is_refused_and_the_batch_with_it(engine: MemoryEngine) -> None:
    engine.append("s", ["a", "b"], seq=0)
    assert assert_refused("sequence_conflict", lambda: engine.append("s", ["a", "x", "c"], seq=0)).details["seq"] == 1
    assert_refused("sequence_conflict", lambda: engine.append("s", [Event("b", ends_segment=True)], seq=1))
    assert engine.inspect("s").next_seq == 2
    assert engine.query("s", "?").answer == folded(["a", "b"])


def test_beyond_the_window_a_repeated_number_is_a_duplicate(engine: MemoryEngine) -> None:
    engine.append("s", list(range(1000, 1100)), seq=0)
    assert engine.append("s", [7], seq=3).duplicates == 1  # 97 events back: not told from the first one any more
    assert_refused("sequence_conflict", lambda: engine.append("s", [7], seq=36))
    assert engine.append("s", [1036], seq=36).duplicates == 1


def test_without_a_number_events_get_the_next_ones(engine: MemoryEngine) -> None:
    assert engine.append("s", ["a"]).next_seq == 1
    assert engine.append("s", ["b", "c"]).next_seq == 3
    assert engine.query("s", "?").answer == folded(["a", "b", "c"])


def test_a_flush_is_an_event_that_closes_its_segment(engine: MemoryEngine) -> None:
    engine.append("s", ["a"], seq=0)
    done = engine.flush("s", seq=1)
    assert (done.next_seq, done.consolidated_seq, done.memory_version) == (2, 2, 1)
    again = engine.flush("s", seq=1)
    assert (again.accepted, again.duplicates, again.memory_version) == (0, 1, 1)
    engine.append("s", [Event("b", ends_segment=True), "c"], seq=2)
    assert engine.settle()
    assert engine.inspect("s").consolidated_seq == 3
    assert engine.query("s", "?").answer == folded(["a", FLUSH, Event("b", ends_segment=True), "c"])


def test_a_read_waits_for_the_wanted_event_or_says_how_far_it_is(engine: MemoryEngine) -> None:
    engine.append("s", ["a"], seq=0)
    late = assert_refused("not_caught_up", lambda: engine.query("s", "?", min_seq=2, timeout=0.05))
    assert late.details["as_of_seq"] == 1
    assert_refused("not_caught_up", lambda: engine.query("s", "?", min_seq=1, tail="exclude", timeout=0.05))
    writer = threading.Timer(0.1, lambda: engine.append("s", ["b"], seq=1))
    writer.start()
    assert engine.query("s", "?", min_seq=2, timeout=5.0).answer == folded(["a", "b"])
    writer.join()


def test_tenants_do_not_meet(engine: MemoryEngine) -> None:
    engine.append("s", ["mine"], seq=0, tenant="one")
    engine.append("s", ["yours"], seq=0, tenant="two")
    assert engine.query("s", "?", tenant="one").answer == folded(["mine"])
    assert engine.query("s", "?", tenant="two").answer == folded(["yours"])
    assert_refused("unknown_stream", lambda: engine.query("s", "?"))
    assert engine.delete("s", tenant="one").existed
    assert engine.query("s", "?", tenant="two").answer == folded(["yours"])


def test_streams_are_listed_a_page_at_a_time(engine: MemoryEngine) -> None:
    names = sorted(["a", "a-1", "a-2", "a-3", "b", "Z", "a~"])
    for name in names:
        engine.append(name, ["x"])
    engine.append("other", ["x"], tenant="two")
    assert engine.list().streams == names
    first = engine.list(prefix="a", limit=2)
    assert (first.streams, first.cursor) == (["a", "a-1"], "a-1")
    rest = engine.list(prefix="a", limit=10, cursor=first.cursor)
    assert (rest.streams, rest.cursor) == (["a-2", "a-3", "a~"], None)
    assert engine.list(prefix="c").streams == []


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
        assert_refused("over_quota", lambda: engine.snapshot("s", "three"))
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


class Slow(HashChain):
    """A chain whose folding can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def fold(self, memory: bytes, segments: object) -> bytes:
        assert self.gate.wait(30)
        return super().fold(memory, segments)  # type: ignore[arg-type]


def test_a_full_tail_waits_and_then_refuses_and_loses_nothing(place: Place) -> None:
    slow = Slow()
    with MemoryEngine.open(place.open(), slow, limits=Limits(tail_events=6)) as engine:
        engine.append("s", list(range(6)), seq=0)
        assert assert_refused("queue_full", lambda: engine.append("s", [6], seq=6, timeout=0.05)).retry
        threading.Timer(0.1, slow.gate.set).start()
        assert engine.append("s", [6], seq=6, timeout=10).next_seq == 7
        assert engine.query("s", "?").answer == folded(list(range(7)))


def test_a_late_consolidation_never_brings_a_deleted_stream_back(place: Place) -> None:
    slow = Slow()
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


def test_a_rebuild_that_was_overtaken_changes_nothing(place: Place) -> None:
    slow = Slow()
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
    store, slow = place.open(), Slow()
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


def test_many_threads_append_and_ask_at_once(engine: MemoryEngine) -> None:
    streams = [f"s{number}" for number in range(4)]

    def write(stream: str) -> None:
        for seq in range(0, 60, 2):
            engine.append(stream, [f"{stream} {seq}", f"{stream} {seq + 1}"], seq=seq)

    def ask(stream: str) -> None:
        last = 0
        for _ in range(40):
            try:
                said = engine.query(stream, "?")
            except service_errors.UnknownStream:
                continue
            assert said.as_of_seq >= last  # reads never go back
            assert said.answer == folded([f"{stream} {seq}" for seq in range(said.as_of_seq)])
            last = said.as_of_seq

    with ThreadPoolExecutor(12) as pool:
        # each stream has two writers that send the same events: one of them is the retry of the other
        jobs = [pool.submit(job, stream) for stream in streams for job in (write, write, ask)]
        for job in jobs:
            try:
                job.result()
            except service_errors.SequenceGap:
                pytest.fail("a writer was ahead of its own events")
    assert engine.settle()
    for stream in streams:
        about = engine.inspect(stream)
        assert (about.next_seq, about.consolidated_seq, about.memory_version) == (60, 60, 20)
        assert engine.query(stream, "?").answer == folded([f"{stream} {seq}" for seq in range(60)])
    assert engine.verify().clean


def test_writers_without_numbers_never_lose_an_event(engine: MemoryEngine) -> None:
    def write(writer: int) -> None:
        for number in range(25):
            engine.append("s", [f"{writer}-{number}"])

    engine.create("s", retention="all")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    engine.settle()
    payloads = read_archive(engine.export("s")).payloads
    assert len(payloads) == 200
    wanted = {pack_event(f"{writer}-{number}", False) for writer in range(8) for number in range(25)}
    assert set(payloads) == wanted
    assert engine.verify().refolded == 1


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("invalid_value", lambda e: e.append("", ["a"])),
        ("invalid_value", lambda e: e.append("a/b", ["a"])),
        ("invalid_value", lambda e: e.append("..", ["a"])),
        ("invalid_value", lambda e: e.append("x" * 257, ["a"])),
        ("invalid_value", lambda e: e.append("s\n", ["a"])),
        ("invalid_value", lambda e: e.append("é", ["a"])),
        ("invalid_value", lambda e: e.append(None, ["a"])),
        ("invalid_value", lambda e: e.append("s", ["a"], tenant="a/b")),
        ("invalid_value", lambda e: e.append("s", [])),
        ("invalid_value", lambda e: e.append("s", "text")),
        ("invalid_value", lambda e: e.append("s", 7)),
        ("invalid_value", lambda e: e.append("s", [None])),
        ("invalid_value", lambda e: e.append("s", [True])),
        ("invalid_value", lambda e: e.append("s", ["\ud800"])),
        ("invalid_value", lambda e: e.append("s", [Event("a", ends_segment=1)])),
        ("invalid_value", lambda e: e.append("s", ["a"], seq=-1)),
        ("invalid_value", lambda e: e.append("s", ["a"], seq=2**53)),
        ("invalid_value", lambda e: e.append("s", ["a"], seq=10**5000)),
        ("invalid_value", lambda e: e.append("s", ["a"], seq=True)),
        ("invalid_value", lambda e: e.append("s", ["a"], seq=1.0)),
        ("invalid_value", lambda e: e.append("s", ["a"], seq="1")),
        ("invalid_value", lambda e: e.query("s", "?", top=0)),
        ("invalid_value", lambda e: e.query("s", "?", tail="some")),
        ("invalid_value", lambda e: e.query("s", "?", min_seq=-1)),
        ("invalid_value", lambda e: e.list(limit=0)),
        ("invalid_value", lambda e: e.list(prefix="a*")),
        ("invalid_value", lambda e: e.create("s", retention="days")),
        ("too_large", lambda e: e.append("s", ["a"] * 1001)),
        ("too_large", lambda e: e.append("s", ["a" * 8193])),
        ("too_large", lambda e: e.query("s", "a" * 8193)),
        ("unknown_stream", lambda e: e.query("s", "?")),
        ("unknown_stream", lambda e: e.export("s")),
        ("unknown_stream", lambda e: e.verify("s")),
        ("unknown_stream", lambda e: e.rebuild("s")),
        ("unknown_stream", lambda e: e.restore("s", "x")),
    ],
)
def test_bad_input_is_refused_and_leaves_no_trace(code: str, call: Callable[[MemoryEngine], object]) -> None:
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        assert_refused(code, lambda: call(engine))
        assert list(engine.store.keys()) == []


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


def test_a_closed_engine_says_so(place: Place) -> None:
    engine = MemoryEngine.open(place.open(), HashChain())
    engine.append("s", ["a"])
    engine.close()
    assert_refused("draining", lambda: engine.append("s", ["b"]))
    assert_refused("draining", lambda: engine.query("s", "?"))


def test_every_code_has_a_status_and_every_error_a_code() -> None:
    kinds = [
        kind for kind in vars(service_errors).values() if isinstance(kind, type) and issubclass(kind, ServiceError)
    ]
    assert len(kinds) > 15
    assert {kind.code for kind in kinds} <= CODES.keys()
    assert all(400 <= code.status < 600 and code.title for code in CODES.values())
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert StreamKey("a", "b") != StreamKey("b", "a")


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    code = (root / "docs" / "service.md").read_text().split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) <= 12
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").symlink_to(root / "models")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("garden 3 ")
    assert second.endswith(" True")


def test_every_test_named_in_the_guide_is_there() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "service.md").read_text()
    named = re.findall(r"(test_\w+\.py)::(test_\w+?)_?…?`", page)
    assert len(named) >= 10
    for file, test in named:
        assert f"def {test}" in (root / "tests" / "service" / file).read_text(), f"{file}::{test}"


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
