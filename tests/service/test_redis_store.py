"""Redis: refused unless it keeps what it acknowledges; its kill -9 loses nothing; what is deleted leaves its files."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_parts import HashChain, RedisServer

from remem.service import MemoryEngine
from remem.service.errors import IncompatibleFormat, ServiceError, StoreUnavailable

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


def test_after_a_delete_no_byte_of_it_is_in_the_files(server: RedisServer) -> None:
    def marked() -> int:
        return sum(file.read_bytes().count(MARKER.encode()) for file in server.folder.rglob("*") if file.is_file())

    with MemoryEngine.open(RedisStore(server.url), HashChain(50)) as engine:
        engine.append("other", ["a"], seq=0)
        engine.append("secret", [f"{MARKER} {seq}" for seq in range(120)], seq=0)
        engine.append(MARKER, ["the name itself"], seq=0)
        engine.snapshot("secret", "copy")
        assert marked() > 100
        assert engine.delete("secret").purge == "done"
        assert engine.delete(MARKER).purge == "done"
        assert marked() == 0
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


def test_another_format_is_refused(server: RedisServer) -> None:
    store = RedisStore(server.url)
    store._redis.set("remem/format", 99)
    with pytest.raises(IncompatibleFormat, match="99"):
        RedisStore(server.url)
    store.close()


def test_damage_is_found(server: RedisServer) -> None:
    store = RedisStore(server.url)
    with MemoryEngine.open(store, HashChain()) as engine:
        for name in ("counters", "memory", "event", "missing", "whole"):
            engine.append(name, ["a", "b", "c", "d", "e"], seq=0)
        engine.settle()
        store._redis.hset("remem/stream/{default/counters}", "row", b"{}")
        store._redis.hset("remem/stream/{default/memory}", "memory", b"x" * 100)
        store._redis.lset("remem/stream/{default/event}/events", 0, b"x" * 20)
        store._redis.rpop("remem/stream/{default/missing}/events")
        found = {problem.stream: problem.code for problem in engine.verify().problems}
        assert found == {f"default/{name}": "memory_damaged" for name in ("counters", "memory", "event", "missing")}
        with pytest.raises(ServiceError, match="checksum"):
            engine.query("memory", "?")


def test_nothing_listens_there() -> None:
    with pytest.raises(StoreUnavailable, match="Redis did not do it"):
        MemoryEngine.open("redis://127.0.0.1:1/0", HashChain())
