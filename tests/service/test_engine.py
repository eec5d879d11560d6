"""The engine's verbs on every store: each event exactly once, typed refusals, and answers that say what they know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from service_parts import HashChain, Place, assert_refused, folded

from remem.service import CODES, FLUSH, Event, MemoryEngine, ServiceError
from remem.service import errors as service_errors
from remem.service.archive import read_archive
from remem.service.events import pack_event
from remem.service.limits import StreamKey


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
