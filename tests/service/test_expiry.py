"""A stream's time to live, on every store: whole, from its last append, filtered at once, purged soon, never undone."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from service_parts import Clock, HashChain, Place, RedisServer, SlowChain, assert_refused, folded

from remem.service import MemoryEngine
from remem.service.limits import StreamKey

MARKER = "zebra-marker-7f3a"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(place: Place, clock: Clock) -> Iterator[MemoryEngine]:
    with MemoryEngine.open(place.open(), HashChain(), clock=clock, sweep_seconds=3600) as opened:
        yield opened


def test_a_stream_whose_time_is_up_is_as_if_deleted(engine: MemoryEngine, clock: Clock) -> None:
    assert engine.create("s", ttl=10, retention="all")
    engine.append("s", ["a", "b", "c", "d"], seq=0)
    engine.append("other", ["x"], seq=0)
    engine.settle()
    engine.snapshot("s", "copy")
    assert (engine.inspect("s").ttl, engine.inspect("s").expires) == (10.0, clock.now + 10)
    assert engine.inspect("other").expires is None
    clock.now += 9.99
    assert engine.query("s", "?").answer == folded(["a", "b", "c", "d"])
    clock.now += 0.02
    for call in (
        lambda: engine.query("s", "?"),
        lambda: engine.query("s", "?", min_seq=99, timeout=5),
        lambda: engine.inspect("s"),
        lambda: engine.export("s"),
        lambda: engine.snapshot("s", "late"),
        lambda: engine.restore("s", "copy"),
        lambda: engine.rebuild("s"),
        lambda: engine.verify("s"),
    ):
        assert assert_refused("expired", call).details["stream"] == "s"
    assert engine.list().streams == ["other"]
    assert not engine.delete("s").existed
    assert_refused("unknown_stream", lambda: engine.inspect("s"))
    assert engine.query("other", "?").answer == folded(["x"])


def test_an_append_renews_the_whole_stream_and_a_repeated_one_does_not(engine: MemoryEngine, clock: Clock) -> None:
    engine.create("s", ttl=10)
    for turn in range(5):
        clock.now += 8
        engine.append("s", [f"event {turn}"], seq=turn)
    assert engine.inspect("s").expires == clock.now + 10
    clock.now += 8
    assert engine.append("s", ["event 4"], seq=4).duplicates == 1
    engine.query("s", "?")
    clock.now += 2
    assert_refused("expired", lambda: engine.query("s", "?"))


def test_an_append_after_expiry_begins_anew_with_number_0(engine: MemoryEngine, clock: Clock) -> None:
    engine.create("s", ttl=10, retention="all")
    engine.append("s", ["a", "b", "c", "d"], seq=0)
    engine.snapshot("s", "copy")
    clock.now += 11
    assert assert_refused("sequence_gap", lambda: engine.append("s", ["e"], seq=4)).details["expected_seq"] == 0
    assert_refused("expired", lambda: engine.query("s", "?"))  # a refused append changes nothing
    done = engine.append("s", ["x"], seq=0)  # other content than the old number 0, which is forgotten
    assert (done.accepted, done.next_seq) == (1, 1)
    assert engine.query("s", "?").answer == folded(["x"])
    about = engine.inspect("s")
    assert (about.snapshots, about.ttl, about.retention, about.memory_version) == ([], None, "tail", 0)
    assert engine.sweep() == 0
    assert engine.verify().clean
    engine.create("t", ttl=10)
    clock.now += 11
    assert engine.create("t", ttl=5)
    assert engine.inspect("t").ttl == 5


def test_the_default_is_for_streams_that_are_made_from_now_on(place: Place, clock: Clock) -> None:
    with MemoryEngine.open(place.open(), HashChain(), clock=clock) as engine:
        engine.append("old", ["a"], seq=0)
    with MemoryEngine.open(place.open(), HashChain(), clock=clock, ttl=60, sweep_seconds=3600) as engine:
        engine.append("old", ["b"], seq=1)
        engine.append("new", ["a"], seq=0)
        engine.create("own", ttl=600)
        assert [engine.inspect(name).ttl for name in ("old", "new", "own")] == [None, 60, 600]
        assert not engine.create("own")
        assert not engine.create("own", ttl=600)
        assert_refused("stream_exists", lambda: engine.create("own", ttl=60))
        clock.now += 100
        assert engine.list().streams == ["old", "own"]


def test_a_streams_life_can_be_made_longer_shorter_and_endless(place: Place, clock: Clock) -> None:
    with MemoryEngine.open(place.open(), HashChain(), clock=clock, sweep_seconds=3600) as engine:
        engine.create("s", ttl=10, retention="all")
        engine.append("s", ["a", "b", "c", "d", "e"], seq=0)
        engine.settle()
        before = engine.inspect("s")
        engine.set_ttl("s", 100)
        engine.set_ttl("s", 100)
        after = engine.inspect("s")
        assert (after.ttl, after.expires) == (100, before.updated + 100)  # from the last append on, not from now
        assert replace(after, ttl=before.ttl, expires=before.expires) == before
        clock.now += 50
        assert engine.query("s", "?").answer == folded(["a", "b", "c", "d", "e"])
        engine.append("s", ["f"], seq=5)
        assert engine.inspect("s").ttl == 100
        assert_refused("stream_exists", lambda: engine.create("s", ttl=10))
    with MemoryEngine.open(place.open(), HashChain(), clock=clock, sweep_seconds=3600) as engine:
        clock.now += 99
        assert engine.inspect("s").ttl == 100
        engine.set_ttl("s", None)
        clock.now += 10_000
        assert engine.inspect("s").expires is None
        assert engine.sweep() == 0
        engine.append("s", ["g"], seq=6)
        clock.now += 7
        assert_refused("invalid_value", lambda: engine.set_ttl("s", 0))
        engine.set_ttl("s", 5)  # its time was up two seconds ago
        assert_refused("expired", lambda: engine.query("s", "?"))
        assert_refused("expired", lambda: engine.set_ttl("s", 100))  # nobody is called back to life
        assert engine.sweep() == 1
        assert_refused("unknown_stream", lambda: engine.set_ttl("s", 100))
        assert engine.verify().clean


def test_a_sweep_takes_out_the_expired_and_nothing_else(engine: MemoryEngine, clock: Clock) -> None:
    for number in range(300):  # more than one round
        engine.create(f"s{number:03}", ttl=10 if number % 10 else 1000)
    engine.append("for-ever", ["a"], seq=0)
    assert engine.sweep() == 0
    clock.now += 10
    assert len(engine.list(limit=1000).streams) == 31
    assert engine.list(limit=2, cursor="s000").streams == ["s010", "s020"]
    assert engine.sweep() == 270
    assert engine.sweep() == 0
    assert len(list(engine.store.keys())) == 31
    assert_refused("unknown_stream", lambda: engine.inspect("s001"))
    assert engine.verify().clean


def test_a_stream_that_came_back_to_life_is_not_swept(engine: MemoryEngine, clock: Clock) -> None:
    engine.create("s", ttl=10)
    clock.now += 11
    now = clock.now
    (doomed,) = engine.store.expired(now, 10)
    engine.append("s", ["a"], seq=0)  # between the look and the sweep
    assert engine.store.discard([doomed], lambda row: row.verified(row.key).expires <= now) == []
    assert engine.query("s", "?").answer == folded(["a"])


def test_a_late_consolidation_never_brings_an_expired_stream_back(place: Place, clock: Clock) -> None:
    slow = SlowChain()
    with MemoryEngine.open(place.open(), slow, clock=clock, ttl=10, sweep_seconds=3600) as engine:
        for name in ("swept", "left", "anew"):
            engine.append(name, ["a", "b", "c"], seq=0)
        time.sleep(0.05)  # the consolidator is inside the first fold
        clock.now += 11
        engine.append("anew", ["x"], seq=0)
        assert engine.store.discard([StreamKey("default", "swept")], lambda row: row.expires <= clock.now)
        slow.gate.set()
        assert engine.settle()
        assert_refused("unknown_stream", lambda: engine.inspect("swept"))
        assert_refused("expired", lambda: engine.inspect("left"))
        assert engine.query("anew", "?").answer == folded(["x"])
        assert engine.inspect("anew").memory_version == 0
        assert engine.sweep() == 1


def test_the_writer_sweeps_by_itself(place: Place) -> None:
    with MemoryEngine.open(place.open(), HashChain(), sweep_seconds=0.05) as engine:
        engine.create("s", ttl=0.2)
        engine.append("s", ["a"], seq=0)
        assert engine.query("s", "?").as_of_seq == 1
        deadline = time.monotonic() + 10
        while list(engine.store.keys()):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_appends_and_sweeps_at_once_lose_nothing_that_lives(place: Place, clock: Clock) -> None:
    with MemoryEngine.open(place.open(), HashChain(), clock=clock, ttl=10, sweep_seconds=3600) as engine:
        stop = threading.Event()

        def write(name: str) -> tuple[int, int]:
            lives = events = 0
            for turn in range(40):
                done = engine.append(name, [f"{turn}"])  # without a number: goes on, or begins anew
                lives, events = (lives + 1, 1) if done.next_seq == 1 else (lives, events + 1)
                assert done.next_seq == events
                if turn % 7 == 0:
                    clock.now += 11
            return lives, events

        def sweep() -> None:
            while not stop.is_set():
                engine.sweep()

        with ThreadPoolExecutor(4) as pool:
            sweeper = pool.submit(sweep)
            results = list(pool.map(write, ("a", "b", "c")))
            stop.set()
            sweeper.result()
        assert sum(lives for lives, _ in results) >= 18  # each at least after its own jumps in time
        for name, (_, events) in zip("abc", results, strict=True):
            stored = engine.store.read(StreamKey("default", name))
            assert stored is None or stored.row.next_seq == events
        assert engine.verify().clean


def test_after_a_sweep_no_byte_is_in_the_store_file(tmp_path: Path, clock: Clock) -> None:
    def marked() -> int:
        return sum(file.read_bytes().count(MARKER.encode()) for file in tmp_path.iterdir())

    path = tmp_path / "memories.db"
    with MemoryEngine.open(path, HashChain(50), retention="all", ttl=10, clock=clock, sweep_seconds=3600) as engine:
        for name in ("swept", "anew"):
            engine.append(name, [f"{MARKER} {seq} {'x' * 200}" for seq in range(120)], seq=0)
        engine.settle()
        engine.snapshot("swept", "copy")
        assert marked() > 100
        clock.now += 11
        engine.append("anew", ["clean"], seq=0)
        assert engine.sweep() == 1
        assert marked() == 0
        assert engine.verify().clean


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="there is no redis-server on this machine")
def test_after_a_sweep_no_byte_is_in_the_files_of_redis(tmp_path: Path, clock: Clock) -> None:
    redis_store = pytest.importorskip("remem.service.stores.redis")
    server = RedisServer(tmp_path / "redis")

    def marked() -> int:
        return sum(file.read_bytes().count(MARKER.encode()) for file in server.folder.rglob("*") if file.is_file())

    try:
        store = redis_store.RedisStore(server.url)
        with MemoryEngine.open(store, HashChain(50), ttl=10, clock=clock, sweep_seconds=3600) as engine:
            for name in ("swept", "anew"):
                engine.append(name, [f"{MARKER} {seq}" for seq in range(60)], seq=0)
            engine.snapshot("anew", "copy")
            assert marked() > 100
            clock.now += 11
            engine.append("anew", ["clean"], seq=0)
            assert engine.sweep() == 1
            assert marked() == 0
            assert engine.inspect("anew").snapshots == []
    finally:
        server.kill()


def test_damaged_counters_are_told_of_and_never_swept(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "memories.db"
    with MemoryEngine.open(path, HashChain(), clock=clock) as engine:
        engine.append("a", ["x"], seq=0)
        engine.create("b", ttl=1000)
        engine.create("c", ttl=10)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE streams SET ttl = 5 WHERE stream IN ('a', 'b')")
    connection.commit()
    connection.close()
    clock.now += 100
    with MemoryEngine.open(path, HashChain(), clock=clock, sweep_seconds=3600) as engine:
        for name in ("a", "b"):
            assert_refused("memory_damaged", lambda name=name: engine.query(name, "?"))
        engine.sweep()
        assert [key.stream for key in list(engine.store.keys())] == ["a", "b"]
        assert {problem.stream for problem in engine.verify().problems} == {"default/a", "default/b"}


@pytest.mark.parametrize("ttl", [0, -1, True, "10", float("nan"), float("inf"), 10**12, [10]])
def test_a_time_that_is_none_is_refused(ttl: Any) -> None:
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        assert_refused("invalid_value", lambda: engine.create("s", ttl=ttl))
        assert engine.list().streams == []
    assert_refused("invalid_value", lambda: MemoryEngine.open(":memory:", HashChain(), ttl=ttl))
