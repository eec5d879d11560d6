"""The store file: damage is found, and a failing disk is never papered over."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from service_parts import SEED, HashChain

from remem.service import MemoryEngine
from remem.service.errors import (
    IncompatibleFormat,
    InvalidValue,
    MemoryDamaged,
    ServiceError,
    StoreInUse,
    StoreUnavailable,
    UnknownStream,
)
from remem.service.limits import StreamKey
from remem.service.records import verified_events
from remem.service.stores.sqlite import SqliteStore

FLIPS = int(os.environ.get("REMEM_FLIPS", "300"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memories.db"


def content(engine: MemoryEngine) -> dict[str, tuple[int, str]]:
    """All that a store says of its streams."""
    names = engine.list(limit=1000).streams
    return {name: (engine.inspect(name).next_seq, engine.query(name, "?").answer) for name in names}


def filled(path: Path, **options: str) -> dict[str, tuple[int, str]]:
    with MemoryEngine.open(path, HashChain(), **options) as engine:  # type: ignore[arg-type]
        for number in range(6):
            engine.append(f"stream-{number}", [f"event {number} {seq}" for seq in range(10 + number)], seq=0)
        engine.snapshot("stream-0", "kept")
        engine.settle()
        return content(engine)


@pytest.mark.parametrize("retention", ["tail", "all"])
def test_a_flipped_byte_is_found_or_changes_nothing(path: Path, tmp_path: Path, retention: str) -> None:
    before = filled(path, retention=retention)
    whole = path.read_bytes()
    chance, damaged = random.Random(SEED), tmp_path / "damaged.db"
    used = [place for place, byte in enumerate(whole) if byte]
    found = 0
    for turn in range(FLIPS // 2):
        place = chance.choice(used) if turn % 4 else chance.randrange(len(whole))
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << chance.randrange(8))]) + whole[place + 1 :])
        try:
            with MemoryEngine.open(damaged, HashChain(), read_only=True) as engine:
                report = engine.verify()
                if report.clean:
                    assert content(engine) == before, f"seed {SEED}: byte {place} changed the content unseen"
                else:
                    found += 1
        except (StoreUnavailable, IncompatibleFormat):
            found += 1
        for rest in tmp_path.glob("damaged.db-*"):
            rest.unlink()
    assert found > FLIPS // 5  # the rest hit free space, or what is left there of older rows


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("UPDATE streams SET next_seq = next_seq + 1", "counters"),
        ("UPDATE streams SET consolidated_seq = 0, version = 0", "counters"),
        ("UPDATE streams SET fingerprint = 'other'", "counters"),
        ("UPDATE streams SET digests = zeroblob(8)", "counters"),
        ("UPDATE streams SET digests = NULL WHERE 0; UPDATE streams SET digests = 'text'", "counters"),
        ("UPDATE memories SET memory = zeroblob(length(memory))", "memory"),
        ("UPDATE memories SET memory = (SELECT memory FROM memories ORDER BY id DESC LIMIT 1) WHERE id = 1", "memory"),
        ("DELETE FROM memories", "memory"),
        ("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)", "events"),
        ("UPDATE events SET event = zeroblob(length(event))", "digest"),
        ("UPDATE events SET seq = seq + 100", "events"),
        ("UPDATE snapshots SET archive = zeroblob(length(archive))", "archive"),
    ],
)
def test_changed_tables_are_found_and_named(path: Path, damage: str, message: str) -> None:
    filled(path)
    connection = sqlite3.connect(path)
    connection.executescript(damage)
    connection.close()
    with MemoryEngine.open(path, HashChain(), read_only=True) as engine:
        report = engine.verify()
        assert not report.clean
        assert any(message in problem.message for problem in report.problems), report.problems
        assert all(problem.code == "memory_damaged" for problem in report.problems)


def test_an_event_in_another_s_place_stops_no_other_stream(path: Path) -> None:
    with MemoryEngine.open(path, HashChain(50)) as engine:
        engine.append("s", ["a", "b", "c"], seq=0)
    connection = sqlite3.connect(path)
    connection.executescript("UPDATE events SET seq = 3 WHERE seq = 1")
    connection.close()
    with MemoryEngine.open(path, HashChain(50)) as engine:
        engine.append("s", ["d"], seq=3)
        assert engine.append("other", ["x"], seq=0).next_seq == 1
        with pytest.raises(MemoryDamaged):
            engine.query("s", "?")
        assert [problem.stream for problem in engine.verify().problems] == ["default/s"]


def test_more_events_than_a_stream_has_numbers_are_damage(path: Path) -> None:
    with MemoryEngine.open(path, HashChain(), retention="all") as engine:
        engine.append("one", ["a", "b"], seq=0)
        engine.settle()
        stored = engine.store.read(StreamKey("default", "one"), log=True)
        assert stored is not None
        with pytest.raises(MemoryDamaged, match="expected"):
            verified_events(stored.row, stored.events * 2, -2)


def test_a_damaged_memory_is_never_answered_from_and_a_snapshot_brings_it_back(path: Path) -> None:
    filled(path)
    with MemoryEngine.open(path, HashChain()) as engine:
        wanted = engine.query("stream-0", "?").answer
    connection = sqlite3.connect(path)
    connection.execute("UPDATE memories SET memory = zeroblob(length(memory))")
    connection.commit()
    connection.close()
    with MemoryEngine.open(path, HashChain()) as engine:
        with pytest.raises(MemoryDamaged):
            engine.query("stream-0", "?")
        with pytest.raises(MemoryDamaged):
            engine.export("stream-0")
        engine.restore("stream-0", "kept")
        assert engine.query("stream-0", "?").answer == wanted


@pytest.mark.parametrize("way", ["restore", "rebuild"])
def test_a_stream_that_lacks_an_event_is_brought_back_too(path: Path, way: str) -> None:
    with MemoryEngine.open(path, HashChain(50), retention="all") as engine:
        engine.append("s", ["a", "b", "c"], seq=0)
        engine.snapshot("s", "kept")
        wanted = engine.query("s", "?").answer
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM events WHERE seq = 1")
    connection.commit()
    connection.close()
    with MemoryEngine.open(path, HashChain(50)) as engine:
        with pytest.raises(MemoryDamaged):
            engine.query("s", "?")
        with pytest.raises(MemoryDamaged):
            engine.rebuild("s")  # from what is there
        done = engine.restore("s", "kept") if way == "restore" else engine.rebuild("s", ["a", "b", "c"])
        assert done.next_seq == 3
        assert engine.query("s", "?").answer == wanted
        assert engine.verify().clean
        with pytest.raises(UnknownStream):
            engine.rebuild("none", ["a"])


def test_one_process_writes_and_others_may_read(path: Path) -> None:
    with MemoryEngine.open(path, HashChain()) as engine:
        engine.append("s", ["a"], seq=0)
        with pytest.raises(StoreInUse, match="Another process writes"):
            SqliteStore(path)
        code = f"from remem.service.stores.sqlite import SqliteStore; SqliteStore({str(path)!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "StoreInUse" in other.stderr
        with MemoryEngine.open(path, HashChain(), read_only=True) as reader:
            assert reader.query("s", "?").answer == engine.query("s", "?").answer
            engine.append("s", ["b"], seq=1)
            assert reader.query("s", "?", min_seq=2).as_of_seq == 2
            with pytest.raises(InvalidValue, match="read-only"):
                reader.append("s", ["c"], seq=2)
            with pytest.raises(StoreUnavailable, match="reading only"):
                reader.store.delete(("default", "s"))  # type: ignore[arg-type]
    SqliteStore(path).close()


def test_a_link_is_no_second_file(path: Path, tmp_path: Path) -> None:
    (link := tmp_path / "link.db").symlink_to(path)
    with MemoryEngine.open(path, HashChain()) as engine:
        with pytest.raises(StoreInUse):
            MemoryEngine.open(link, HashChain())
        assert engine.append("s", ["a"], seq=0).next_seq == 1


def test_a_newer_or_foreign_file_is_refused_and_left_alone(path: Path, tmp_path: Path) -> None:
    filled(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = 99 WHERE name = 'format_version'")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(IncompatibleFormat, match="99"):
            SqliteStore(path, read_only=read_only)
    assert path.read_bytes() == before
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(IncompatibleFormat, match="something else"):
        SqliteStore(foreign)
    text = tmp_path / "text.db"
    text.write_text("no database at all" * 100)
    for read_only in (False, True):
        with pytest.raises(StoreUnavailable, match="not a database"):
            SqliteStore(text, read_only=read_only)
    with pytest.raises(StoreUnavailable, match="does not exist"):
        SqliteStore(tmp_path / "none.db", read_only=True)
    with pytest.raises(StoreUnavailable, match="can't be opened"):
        SqliteStore(tmp_path / "no folder" / "none.db")


class FailingConnection:
    """A connection whose next commits fail as a disk would make them."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real, self.failures = real, list[int]()

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def execute(self, statement: str, *values: object) -> object:
        if statement == "COMMIT" and self.failures:
            error = sqlite3.OperationalError("the disk failed")
            error.sqlite_errorcode = self.failures.pop(0)
            raise error
        return self._real.execute(statement, *values)


def failing_engine(path: Path) -> tuple[MemoryEngine, FailingConnection]:
    made: list[FailingConnection] = []

    class FailingStore(SqliteStore):
        def _connect_writer(self) -> sqlite3.Connection:
            made.append(FailingConnection(super()._connect_writer()))
            return made[-1]  # type: ignore[return-value]

    return MemoryEngine.open(FailingStore(path), HashChain()), made[0]


def test_a_full_disk_refuses_and_then_goes_on(path: Path) -> None:
    engine, disk = failing_engine(path)
    engine.append("s", ["a"], seq=0)
    disk.failures = [sqlite3.SQLITE_FULL]
    with pytest.raises(StoreUnavailable, match="Nothing was written"):
        engine.append("s", ["b"], seq=1)
    assert engine.append("s", ["b"], seq=1).accepted == 1
    assert engine.inspect("s").next_seq == 2
    engine.close()


def test_a_failed_sync_stops_the_writer_for_good(path: Path) -> None:
    engine, disk = failing_engine(path)
    engine.append("s", ["a"], seq=0)
    disk.failures = [sqlite3.SQLITE_IOERR_FSYNC]
    for _ in range(2):  # the second would succeed, but nobody knows what is on the disk
        with pytest.raises(StoreUnavailable, match="Writing has stopped"):
            engine.append("s", ["b"], seq=1)
    assert engine.query("s", "?").as_of_seq == 1
    engine.close()
    with MemoryEngine.open(path, HashChain()) as again:
        assert again.inspect("s").next_seq == 1


def test_waiting_changes_share_a_commit(path: Path) -> None:
    store = SqliteStore(path)
    with MemoryEngine(store, HashChain(10_000)) as engine:
        assert store._writer is not None
        before, start = store._writer.commits, threading.Barrier(32)

        def write(number: int) -> None:
            start.wait()
            for seq in range(20):
                engine.append(f"s{number}", ["x"], seq=seq)

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(write, range(32)))
        assert sum(engine.inspect(f"s{number}").next_seq for number in range(32)) == 640
        assert store._writer.commits - before < 320  # fewer than half as many commits as appends


def test_bytes_do_not_grow_with_the_stream(path: Path) -> None:
    with MemoryEngine.open(path, HashChain()) as engine:
        engine.append("s", [f"event {seq:06}" for seq in range(300)], seq=0)
        engine.settle()
        small = engine.inspect("s").bytes
        for start in range(300, 6000, 900):
            engine.append("s", [f"event {seq:06}" for seq in range(start, start + 900)], seq=start)
        engine.settle()
        assert engine.inspect("s").bytes == small < 2048


def test_reads_after_the_end_are_refused(path: Path) -> None:
    store = SqliteStore(path)
    store.close()
    store.close()
    with pytest.raises(ServiceError, match="closed"):
        store.pending()
    with pytest.raises(ServiceError, match="closed"):
        store.delete(("a", "b"))  # type: ignore[arg-type]


def test_a_copy_of_the_files_is_a_backup(path: Path, tmp_path: Path) -> None:
    before = filled(path)
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(path, copy / "memories.db")
    with MemoryEngine.open(copy / "memories.db", HashChain()) as engine:
        assert content(engine) == before
        engine.delete("stream-1")
        with pytest.raises(UnknownStream):
            engine.query("stream-1", "?")
