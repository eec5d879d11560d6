"""Redis: refused unless it keeps what it acknowledges; its kill -9 loses nothing; what is deleted leaves its files."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from service_parts import HashChain, RedisServer, SlowChain, folded

from remem.service import MemoryEngine
from remem.service.errors import IncompatibleFormat, InvalidValue, MemoryDamaged, ServiceError, StoreUnavailable
from remem.service.opening import shown_store
from remem.service.store import Deleted

redis_module = pytest.importorskip("remem.service.stores.redis", reason="the redis client is not installed")
RedisStore = redis_module.RedisStore
pytestmark = pytest.mark.skipif(shutil.which("redis-server") is None, reason="there is no redis-server")
MARKER = "zebra-marker-7f3a"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    started = RedisServer(tmp_path / "redis")
    yield started
    started.kill()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("appendfsync", "everysec"),
        ("maxmemory-policy", "allkeys-lru"),
        ("no-appendfsync-on-rewrite", "yes"),
        ("appendonly", "no"),
    ],
)
def test_a_server_that_could_lose_events_is_refused(server: RedisServer, setting: str, value: str) -> None:
    store = RedisStore(server.url)
    store._redis.config_set(setting, value)
    with pytest.raises(StoreUnavailable, match=f"{setting} is '{value}' and must be"):
        RedisStore(server.url)
    if setting == "appendfsync":
        RedisStore(server.url, durability="os").close()
    store.close()


def test_killed_servers_lose_nothing(server: RedisServer) -> None:
    acknowledged = 0
    for _ in range(4):
        engine = MemoryEngine.open(RedisStore(server.url, timeout=1.0), HashChain())
        killer = threading.Timer(0.15, server.kill)
        killer.start()
        while True:
            batch = [f"event {seq}" for seq in range(acknowledged, acknowledged + 3)]
            try:
                acknowledged = engine.append("s", batch, seq=acknowledged).next_seq
            except StoreUnavailable:
                break
        killer.join()
        engine.close()
        server.start()
        with MemoryEngine.open(RedisStore(server.url), HashChain()) as again:
            kept = again.inspect("s").next_seq
            assert acknowledged <= kept <= acknowledged + 3
            acknowledged = kept
            again.settle()
            chain = HashChain()
            said = again.query("s", "?").answer
            fresh = MemoryEngine.open(":memory:", chain)
            for start in range(0, kept, 1000):
                fresh.append("s", [f"event {seq}" for seq in range(start, min(kept, start + 1000))], seq=start)
            assert said == fresh.query("s", "?").answer
            assert again.verify().clean
            fresh.close()
    assert acknowledged > 20


def marked(server: RedisServer) -> int:
    """How often the marker is in the server's files."""
    return sum(file.read_bytes().count(MARKER.encode()) for file in server.folder.rglob("*") if file.is_file())


def test_after_a_delete_no_byte_of_it_is_in_the_files(server: RedisServer) -> None:
    with MemoryEngine.open(RedisStore(server.url), HashChain(50)) as engine:
        engine.append("other", ["a"], seq=0)
        engine.append("secret", [f"{MARKER} {seq}" for seq in range(120)], seq=0)
        engine.append(MARKER, ["the name itself"], seq=0)
        engine.snapshot("secret", "copy")
        assert marked(server) > 100
        assert engine.delete("secret").purge == "done"
        assert engine.delete(MARKER).purge == "done"
        assert marked(server) == 0
        assert engine.inspect("other").next_seq == 1


def test_a_delete_that_can_not_rewrite_says_so(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryEngine.open(RedisStore(server.url), HashChain()) as engine:
        engine.append("other", ["a"], seq=0)
        engine.append("secret", [MARKER], seq=0)
        monkeypatch.setattr(redis_module, "_PURGE_SECONDS", 0.0)
        assert engine.delete("secret").purge == "pending"
        assert engine.inspect("other").purge_pending
        monkeypatch.setattr(redis_module, "_PURGE_SECONDS", 5.0)
        assert not engine.inspect("other").purge_pending


def test_a_delete_during_the_rewrite_for_another_gets_its_own(server: RedisServer) -> None:
    store = RedisStore(server.url)
    with MemoryEngine.open(store, HashChain()) as engine, ThreadPoolExecutor(1) as pool:
        engine.append("first", ["a"], seq=0)
        engine.append("second", [MARKER], seq=0)
        store._redis.config_set("rdb-key-save-delay", 30_000)  # microseconds, which makes the rewrite a slow one
        first = pool.submit(engine.delete, "first")
        while not store._redis.info()["aof_rewrite_in_progress"]:
            time.sleep(0.01)
        assert engine.delete("second").purge == "done"
        assert marked(server) == 0
        assert first.result().purge == "done"


def test_a_delete_whose_reply_is_lost_is_purged_by_the_next_engine(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(server.url)
    deleting = store._delete

    def lost(**given: object) -> None:
        deleting(**given)
        raise redis_module.RedisError("the reply was lost")

    with MemoryEngine.open(store, HashChain()) as engine:
        engine.append("secret", [MARKER], seq=0)
        monkeypatch.setattr(store, "_delete", lost)
        with pytest.raises(StoreUnavailable, match="lost"):
            engine.delete("secret")
    assert RedisStore(server.url, read_only=True).purge_pending()
    with MemoryEngine.open(RedisStore(server.url), HashChain()) as again:
        assert again.delete("secret") == Deleted(False, "done")
    assert marked(server) == 0


def test_a_rewrite_that_takes_long_is_waited_for_not_begun_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(server.url)
    with MemoryEngine.open(store, HashChain()) as engine:
        engine.append("other", ["a"], seq=0)
        engine.append("secret", [MARKER], seq=0)
        store._redis.config_set("rdb-key-save-delay", 30_000)
        monkeypatch.setattr(redis_module, "_PURGE_SECONDS", 0.05)
        assert engine.delete("secret").purge == "pending"
        while store._redis.info()["aof_rewrite_in_progress"]:
            time.sleep(0.01)
        assert not engine.inspect("other").purge_pending
        assert marked(server) == 0


def test_a_server_that_does_not_rewrite_deletes_all_the_same(server: RedisServer) -> None:
    store = RedisStore(server.url)
    with MemoryEngine.open(store, HashChain()) as engine:
        engine.append("other", ["a"], seq=0)
        engine.append("secret", [MARKER], seq=0)
        store._redis.execute_command("ACL", "SETUSER", "default", "-bgrewriteaof")
        assert engine.delete("secret") == Deleted(True, "pending")
        assert engine.inspect("other").purge_pending


def test_a_paused_server_is_unavailable_and_comes_back(server: RedisServer) -> None:
    store = RedisStore(server.url, timeout=0.3)
    engine = MemoryEngine.open(store, HashChain())
    engine.append("s", ["a"], seq=0)
    store._redis.client_pause(800)
    with pytest.raises(StoreUnavailable, match="Timeout"):
        engine.append("s", ["b"], seq=1)
    time.sleep(1.0)
    # whether the lost reply had been written is unknown; to send it again is safe either way
    done = engine.append("s", ["b"], seq=1)
    assert done.next_seq == 2
    assert done.accepted + done.duplicates == 1
    engine.close()


def test_a_stream_is_not_degraded_by_a_pause_of_the_server(server: RedisServer) -> None:
    store, chain = RedisStore(server.url, timeout=0.2), SlowChain()
    events: list[object] = [f"event {seq}" for seq in range(7)]
    with MemoryEngine.open(store, chain) as engine:
        engine.append("s", events, seq=0)
        time.sleep(0.2)  # the fold is under way, and waits
        store._redis.client_pause(800)  # three tries fail, and the server is back for what comes after
        chain.gate.set()
        time.sleep(1.1)
        assert engine.settle()
        assert engine.inspect("s").state == "compatible"
        said = engine.query("s", "?")
        assert (said.answer, said.as_of_seq, said.stale) == (folded(events), 7, False)
        engine.append("s", ["event 7"], seq=7)
        assert engine.settle()
        assert engine.inspect("s").consolidated_seq == 6


def test_another_format_is_refused(server: RedisServer) -> None:
    store = RedisStore(server.url)
    store._redis.set("remem/format", 99)
    with pytest.raises(IncompatibleFormat, match="99"):
        RedisStore(server.url)
    store.close()


def test_damage_is_found(server: RedisServer) -> None:
    store = RedisStore(server.url)
    with MemoryEngine.open(store, HashChain()) as engine:
        names = ("counters", "check", "row", "memory", "event", "missing")
        for name in (*names, "whole"):
            engine.append(name, ["a", "b", "c", "d", "e"], seq=0)
        engine.settle()
        store._redis.hset("remem/stream/{default/counters}", "row", b"{}")
        store._redis.hset("remem/stream/{default/check}", "check", b"x")
        store._redis.hdel("remem/stream/{default/row}", "row")
        store._redis.hset("remem/stream/{default/memory}", "memory", b"x" * 100)
        store._redis.lset("remem/stream/{default/event}/events", 0, b"x" * 20)
        store._redis.rpop("remem/stream/{default/missing}/events")
        found = {problem.stream: problem.code for problem in engine.verify().problems}
        assert found == {f"default/{name}": "memory_damaged" for name in names}
        with pytest.raises(ServiceError, match="checksum"):
            engine.query("memory", "?")
        with pytest.raises(MemoryDamaged, match="check beside"):  # and does not try for ever
            engine.append("check", ["f"], seq=5)
        with pytest.raises(MemoryDamaged, match="can't be read"):
            engine.append("row", ["f"], seq=5)
        assert engine.delete("check").existed


def test_nothing_listens_there() -> None:
    with pytest.raises(StoreUnavailable, match="Redis did not do it"):
        MemoryEngine.open("redis://127.0.0.1:1/0", HashChain())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:port/0",
        ":s3cr/et@127.0.0.1:1/0",
        "127.0.0.1:99999/0",
        "[::1/0",
        "127.0.0.1:1/memories",
        "127.0.0.1:1/1/2",
        "127.0.0.1:1/0?db=x",
        "127.0.0.1:1/0?speed=9",
        "127.0.0.1:1/0?decode_responses=yes",
    ],
)
def test_an_address_that_can_not_be_one_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(InvalidValue, match="expected redis://") as refused:
        MemoryEngine.open(f"redis://{address}", HashChain())
    assert "s3cr" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_a_host_that_can_not_be_one_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="label"):
        MemoryEngine.open(f"redis://{'a' * 80}/0", HashChain())


def test_a_password_is_not_shown() -> None:
    assert shown_store("redis://user:s3cret@host:6379/2?password=s3cret") == "redis://host:6379/2"
    assert shown_store("unix://:s3cret@/run/redis.sock?db=1") == "unix:///run/redis.sock"
    assert shown_store("me@home.db") == "me@home.db"
