"""Places for stores: in memory, SQLite, and a redis-server of the tests' own where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
from server_parts import Server
from service_parts import HashChain, MemoryPlace, Place, RedisPlace, RedisServer, SqlitePlace

from remem.service import MemoryEngine

KINDS = ("memory", "sqlite", "redis")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for the whole run."""
    pytest.importorskip("redis", reason="the redis client is not installed")
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server on this machine")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def make_place(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], Place]:
    """A fresh place of a kind."""

    def make(kind: str) -> Place:
        if kind == "redis":
            return RedisPlace(request.getfixturevalue("redis_server"))
        folder = tmp_path_factory.mktemp(kind)
        return MemoryPlace(folder) if kind == "memory" else SqlitePlace(folder)

    return make


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, make_place: Callable[[str], Place]) -> Place:
    """Each kind of store in turn."""
    return make_place(request.param)


@pytest.fixture
def engine(place: Place) -> Iterator[MemoryEngine]:
    """An engine with the hash chain, three events to a segment."""
    with MemoryEngine.open(place.open(), HashChain()) as opened:
        yield opened


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for tests that leave it as it was."""
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    assert started.stop() == 0, started.log[-2000:]
