"""Stores of older formats open, whole; what they were is kept beside them; newer ones are refused and left alone.

`fixtures/format-1.sql` is a store file of format 1, as SQLite dumps it: two tenants, a tail, all events, a snapshot.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path

import pytest
from service_parts import HashChain, RedisServer, assert_refused, folded

from remem.service import MemoryEngine
from remem.service.records import STORE_VERSION
from remem.service.stores.sqlite import SqliteStore

FIXTURE = Path(__file__).with_name("fixtures") / "format-1.sql"
KEPT: list[object] = ["alpha", "beta", 3, "delta", "epsilon"]
TAIL: list[object] = ["x", "y", "z", "w", "later"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "memories.db"
    connection = sqlite3.connect(made)
    connection.executescript(FIXTURE.read_text())
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    return made


def version_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("SELECT value FROM meta WHERE name = 'format_version'").fetchone()
    connection.close()
    return int(found)


def assert_whole(engine: MemoryEngine) -> None:
    """The streams of the fixture, each with its own counters, events, memory and snapshots."""
    assert engine.verify().problems == []
    assert engine.verify().refolded == 1
    assert engine.list(tenant="one").streams == ["kept"]
    assert engine.list(tenant="two").streams == ["empty", "tail"]
    assert engine.query("kept", "?", tenant="one").answer == folded(KEPT)
    assert engine.query("tail", "?", tenant="two").answer == folded(TAIL)
    assert engine.query("empty", "?", tenant="two").as_of_seq == 0
    about = engine.inspect("kept", tenant="one")
    assert (about.retention, about.ttl, about.next_seq, about.consolidated_seq) == ("all", None, 5, 3)
    assert engine.inspect("tail", tenant="two").snapshots == ["copy"]


def test_a_file_of_format_1_is_upgraded_after_a_backup(path: Path) -> None:
    before = [line for line in FIXTURE.read_text().splitlines() if line.startswith("INSERT")]
    with pytest.raises(Exception, match="older format 1; open it once for writing"):
        SqliteStore(path, read_only=True)
    with MemoryEngine.open(path, HashChain()) as engine:
        assert_whole(engine)
        assert engine.append("kept", KEPT, seq=0, tenant="one").duplicates == 5
        assert_refused("sequence_conflict", lambda: engine.append("tail", ["other"], seq=4, tenant="two"))
        assert engine.restore("tail", "copy", tenant="two").next_seq == 4
        assert engine.create("short", ttl=60)
        assert engine.append("empty", ["a"], idempotency_key="k", tenant="two").next_seq == 1
        assert engine.append("empty", ["a"], idempotency_key="k", tenant="two").next_seq == 1
        assert engine.verify().clean
    assert version_of(path) == STORE_VERSION == 2
    with MemoryEngine.open(path, HashChain(), read_only=True) as reader:
        assert reader.list().streams == ["short"]
    backup = path.with_name("memories.db.format-1.backup")
    assert backup.stat().st_mode & 0o077 == 0
    assert version_of(backup) == 1
    connection = sqlite3.connect(backup)
    assert [line for line in connection.iterdump() if line.startswith("INSERT")] == before
    connection.close()


def test_the_backup_of_an_upgrade_can_be_upgraded_itself(path: Path) -> None:
    SqliteStore(path).close()
    with MemoryEngine.open(path.with_name("memories.db.format-1.backup"), HashChain()) as engine:
        assert_whole(engine)


def test_an_upgrade_that_is_killed_half_way_is_done_at_the_next_start(path: Path) -> None:
    class Dying(SqliteStore):
        left = 0

        def _connect_writer(self) -> sqlite3.Connection:
            connection = super()._connect_writer()
            connection.set_trace_callback(self._count)
            return connection

        def _count(self, _: str) -> None:
            type(self).left -= 1
            if type(self).left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    killed = 0
    for statement in range(1, 40):
        child = os.fork()
        if child == 0:
            try:
                Dying.left = statement
                Dying(path)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        assert version_of(path) in (1, STORE_VERSION)
        if not os.WIFSIGNALED(status):
            break
        killed += 1
    assert killed >= 8
    SqliteStore(path).close()
    assert not list(path.parent.glob("*.part"))
    with MemoryEngine.open(path, HashChain()) as engine:
        assert_whole(engine)


def test_a_full_disk_during_the_backup_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("remem.service.stores.sqlite_file.copy_store", fail)
    assert_refused("store_unavailable", lambda: SqliteStore(path))
    assert version_of(path) == 1
    monkeypatch.undo()
    with MemoryEngine.open(path, HashChain()) as engine:
        assert_whole(engine)


def test_damage_in_an_older_file_is_still_found_after_the_upgrade(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE streams SET next_seq = 4, consolidated_seq = 3 WHERE stream = 'tail'")
    connection.commit()
    connection.close()
    with MemoryEngine.open(path, HashChain()) as engine:
        assert [problem.stream for problem in engine.verify().problems] == ["two/tail"]
        assert_refused("memory_damaged", lambda: engine.query("tail", "?", tenant="two"))


def test_rows_of_format_1_in_redis_are_read_and_its_format_is_raised(path: Path, redis_server: RedisServer) -> None:
    redis_store = pytest.importorskip("remem.service.stores.redis")
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    row = dict(connection.execute("SELECT * FROM streams WHERE stream = 'tail'").fetchone())
    number = row.pop("id")
    memory = connection.execute("SELECT memory FROM memories WHERE id = ?", (number,)).fetchone()[0]
    events = connection.execute("SELECT event FROM events WHERE id = ? ORDER BY seq", (number,)).fetchall()
    connection.close()
    store = redis_store.RedisStore(redis_server.url, prefix="older")
    client, at = store._redis, "older/stream/{two/tail}"
    text = json.dumps(row | {"digests": row["digests"].hex()})
    client.hset(at, mapping={"row": text, "check": row["check"], "next": row["next_seq"], "done": 3, "memory": memory})
    for (event,) in events:
        client.rpush(at + "/events", event)
    client.zadd("older/names/two", {"tail": 0})
    client.zadd("older/names", {"two/tail": 0})
    client.sadd("older/pending", "two/tail")
    client.set("older/format", 1)
    with MemoryEngine.open(redis_store.RedisStore(redis_server.url, prefix="older"), HashChain()) as engine:
        assert engine.query("tail", "?", tenant="two").answer == folded(TAIL)
        assert engine.append("tail", ["more"], seq=5, tenant="two").next_seq == 6
        assert engine.query("tail", "?", tenant="two").answer == folded([*TAIL, "more"])
        assert engine.verify().clean
        assert client.get("older/format") == b"2"
    store.close()
