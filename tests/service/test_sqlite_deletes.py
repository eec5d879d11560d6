"""What is deleted is gone from the bytes of a store file, whoever reads, writes or is killed meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from service_parts import SEED, HashChain

from remem.service import MemoryEngine
from remem.service.errors import MemoryDamaged
from remem.service.stores import sqlite_gaps
from remem.service.stores.sqlite import SqliteStore
from remem.service.stores.sqlite_writer import Writer

MARKER = "zebra-marker-7f3a"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memories.db"


def marked(path: Path) -> int:
    files = (file for file in path.parent.iterdir() if file.is_file())
    return sum(file.read_bytes().count(MARKER.encode()) for file in files)


def test_after_a_delete_no_byte_of_it_is_in_the_files(path: Path) -> None:
    with MemoryEngine.open(path, HashChain(50), retention="all") as engine:
        for other in range(5):
            engine.append(f"other-{other}", [f"event {seq}" for seq in range(30)], seq=0)
        engine.append("secret", [f"{MARKER} {seq} {'x' * 200}" for seq in range(120)], seq=0)
        engine.append(MARKER, ["the name itself"], seq=0)
        engine.settle()
        engine.snapshot("secret", "copy")
        assert marked(path) > 100
        assert engine.delete("secret").purge == "done"
        assert engine.delete(MARKER).purge == "done"
        assert marked(path) == 0
        assert engine.verify().clean
    assert marked(path) == 0


@pytest.mark.parametrize("turn", range(2))
def test_rows_that_have_moved_leave_nothing_behind_in_their_old_pages(
    path: Path, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are split and joined while streams grow side by side, and what moves leaves a copy where it was."""
    if turn % 2:  # a file of many pieces
        monkeypatch.setattr(sqlite_gaps, "_PIECE", 3 * 4096)
    chance = random.Random(SEED + turn)
    names = [f"<{number}>" for number in range(30)]
    with MemoryEngine.open(path, HashChain(5000), retention="all", durability="os") as engine:
        for _ in range(150):
            name = chance.choice(names)
            events = [name + "x" * chance.choice([0, 5, 40, 300, 2000]) for _ in range(chance.choice([1, 1, 2, 10]))]
            engine.append(name.strip("<>"), events)
        gone = chance.sample(names, 15)
        for name in gone:
            assert engine.delete(name.strip("<>")).purge == "done"
            engine.append("last", ["y" * chance.choice([1, 300])])  # what is cleared must not come back from a cache
        left = b"".join(file.read_bytes() for file in path.parent.glob(path.name + "*"))
        assert [name for name in gone if name.encode() in left] == []
    with MemoryEngine.open(path, HashChain(5000)) as engine:
        assert engine.verify().clean


def test_a_delete_lets_others_write_between_the_pieces_of_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_gaps, "_PIECE", 4096)
    pieces, clear = threading.Semaphore(0), sqlite_gaps.Gaps.clear

    def slowly(self: sqlite_gaps.Gaps, first: int) -> int | None:
        pieces.release()
        time.sleep(0.01)
        return clear(self, first)

    with MemoryEngine.open(path, HashChain(5000), durability="os") as engine, ThreadPoolExecutor(1) as other:
        for name in range(40):
            engine.append(str(name), ["x" * 3000])
        monkeypatch.setattr(sqlite_gaps.Gaps, "clear", slowly)
        deleted = other.submit(engine.delete, "7")
        assert pieces.acquire(timeout=10)
        engine.append("8", ["y"])
        assert not deleted.done()
        assert deleted.result().purge == "done"


def test_a_delete_that_was_cut_short_is_finished_by_the_next_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (killed := path.parent / "killed" / path.name).parent.mkdir()
    with MemoryEngine.open(path, HashChain()) as engine:
        engine.append("secret", [MARKER], seq=0)
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "purge", lambda self: False)  # the process is killed before its files are clear
            engine.delete("secret")
            for name in (path.name, f"{path.name}-wal"):
                shutil.copy(path.with_name(name), killed.with_name(name))
    assert marked(killed) > 0
    with MemoryEngine.open(killed, HashChain()) as engine:
        assert (engine.delete("secret").purge, marked(killed)) == ("done", 0)


def test_a_reader_that_holds_old_pages_is_told_of_and_waited_for(path: Path) -> None:
    with MemoryEngine.open(path, HashChain()) as engine:
        engine.append("secret", [MARKER], seq=0)
        engine.append("other", ["a"], seq=0)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM streams").fetchone()
        deleted = engine.delete("secret")
        assert (deleted.existed, deleted.purge) == (True, "pending")
        assert engine.inspect("other").purge_pending
        assert marked(path) > 0
        reader.close()
        assert not engine.inspect("other").purge_pending
        assert marked(path) == 0


def test_a_look_at_a_stream_clears_one_piece_and_waits_for_no_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryEngine.open(path, HashChain()) as engine:
        engine.append("s", ["a"], seq=0)
        store = engine.store
        assert isinstance(store, SqliteStore)
        pieces: list[int] = []
        monkeypatch.setattr(sqlite_gaps.Gaps, "clear", lambda self, first: pieces.append(first) or first + 1)
        # the engine's own upkeep clears as well, from a thread of its own, now and then just here
        purge = Writer.purge
        mine = threading.get_ident()
        monkeypatch.setattr(Writer, "purge", lambda *given: threading.get_ident() == mine and purge(*given))
        store._writing().want_purge()
        assert engine.inspect("s").purge_pending
        assert pieces == [0]


def test_a_process_that_was_overtaken_clears_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = SqliteStore(path)
    old._writing().want_purge()
    path.with_name(f"{path.name}.lock").unlink()  # or a file system without locks
    new = SqliteStore(path)
    cleared: list[int] = []
    monkeypatch.setattr(sqlite_gaps.Gaps, "clear", lambda self, first: cleared.append(first) or 0)
    assert old.purge_pending()  # what it took for a gap may hold a row by now
    assert cleared == []
    old.close()
    new.close()


def test_trimmed_events_leave_the_file_as_well(path: Path) -> None:
    with MemoryEngine.open(path, HashChain(1)) as engine:
        engine.append("s", [MARKER], seq=0)
        engine.settle()
    assert marked(path) == 0  # consolidated, and the log folded in


def test_a_store_that_is_closed_takes_no_lock_from_another_one_of_the_same_process(path: Path) -> None:
    # closing a descriptor of the file did: the next process took itself for the last one and removed the log
    code = (
        f"from remem.service.stores.sqlite import SqliteStore; store = SqliteStore({str(path)!r}); "
        "store._write(lambda c: c.execute('REPLACE INTO meta (name, value) VALUES (1, 2)')); store.close()"
    )
    writer = SqliteStore(path)
    reader = SqliteStore(path, read_only=True)
    assert reader.pending() == []
    writer.close()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert path.with_name(path.name + "-wal").exists()
    before = len(os.listdir("/proc/self/fd"))
    reader.close()
    assert len(os.listdir("/proc/self/fd")) < before
    SqliteStore(path).close()


@pytest.mark.parametrize("damage", ["UPDATE streams SET version = 'x'", "DELETE FROM events WHERE seq = 1"])
def test_a_damaged_stream_can_be_deleted(path: Path, damage: str) -> None:
    with MemoryEngine.open(path, HashChain(50)) as engine:
        engine.append("s", ["a", MARKER, "c"], seq=0)
    connection = sqlite3.connect(path)
    connection.executescript(damage)
    connection.close()
    with MemoryEngine.open(path, HashChain(50)) as engine:
        with pytest.raises(MemoryDamaged):
            engine.query("s", "?")
        assert engine.delete("s").existed
        assert marked(path) == 0
        assert engine.append("s", ["anew"], seq=0).next_seq == 1
