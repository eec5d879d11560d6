"""A store lent to an event loop: the same promises, with the loop in the writer's place."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_parts import HashChain, folded

from remem.server.metrics import MeteredStore, Metrics
from remem.service import MemoryEngine
from remem.service.errors import Draining, SequenceGap, StaleEpoch
from remem.service.results import Appended
from remem.service.stores.sqlite import SqliteStore


@pytest.fixture
def engine(tmp_path: Path) -> MemoryEngine:
    return MemoryEngine.open(tmp_path / "memories.db", HashChain())


def lent(engine: MemoryEngine) -> Any:
    """The store of an engine, lent to the running loop."""
    store: Any = engine.store
    store.lend(asyncio.get_running_loop())
    return store


def test_appends_from_the_loop_and_changes_from_threads_lose_nothing(engine: MemoryEngine) -> None:
    async def run() -> int:
        store, before = lent(engine), engine.store._writer.commits  # type: ignore[attr-defined]

        async def write(name: str) -> None:
            for seq in range(30):
                done = await asyncio.wrap_future(engine.begin_append(name, [f"{name} {seq}"], seq=seq))
                assert done.next_seq == seq + 1

        def others() -> None:
            for number in range(40):
                engine.append(f"thread-{number % 4}", ["x"], timeout=30.0)

        await asyncio.gather(*(write(f"loop-{number}") for number in range(20)), asyncio.to_thread(others))
        await asyncio.to_thread(engine.close)
        return int(store._writer.commits - before)

    commits = asyncio.run(run())
    with MemoryEngine.open(engine.store.path, HashChain()) as again:  # type: ignore[attr-defined]
        assert again.verify().clean
        for number in range(20):
            name = f"loop-{number}"
            assert again.query(name, "?").answer == folded([f"{name} {seq}" for seq in range(30)])
        assert sum(again.inspect(f"thread-{number}").next_seq for number in range(4)) == 40
    assert commits < 20 * 30 / 2  # those that wait share a commit


def test_quick_jobs_run_in_the_loop_and_syncs_do_not(engine: MemoryEngine) -> None:
    where: dict[str, set[int]] = {"job": set(), "commit": set()}

    async def run() -> None:
        store = lent(engine)
        writer = store._writer
        commit: Callable[..., Any] = writer._committed

        def noted(*args: Any) -> Any:
            where["commit"].add(threading.get_ident())
            return commit(*args)

        writer._committed = noted
        await asyncio.wrap_future(writer.submit(lambda _: where["job"].add(threading.get_ident())))
        await asyncio.to_thread(engine.close)

    asyncio.run(run())
    assert where["job"] == {threading.get_ident()}
    assert threading.get_ident() not in where["commit"] != set()


def test_a_refused_append_stands_alone(engine: MemoryEngine) -> None:
    async def run() -> list[Appended | BaseException]:
        lent(engine)
        begun = [engine.begin_append("good", ["a"], seq=0), engine.begin_append("bad", ["a"], seq=5)]
        begun.append(engine.begin_append("good", ["b"], seq=1))
        told = await asyncio.gather(*map(asyncio.wrap_future, begun), return_exceptions=True)
        await asyncio.to_thread(engine.close)
        return told

    first, refused, last = asyncio.run(run())
    assert isinstance(first, Appended)
    assert isinstance(refused, SequenceGap)
    assert isinstance(last, Appended)
    assert last.next_seq == 2


def test_what_was_begun_is_finished_by_a_store_that_closes(engine: MemoryEngine) -> None:
    async def run() -> list[int]:
        lent(engine)
        begun = [engine.begin_append("s", [f"event {seq}"], seq=seq) for seq in range(50)]
        await asyncio.to_thread(engine.close)
        with pytest.raises(Draining):
            engine.begin_append("s", ["late"], seq=50)
        return [future.result(timeout=10).next_seq for future in begun]

    assert asyncio.run(run()) == list(range(1, 51))
    with MemoryEngine.open(engine.store.path, HashChain()) as again:  # type: ignore[attr-defined]
        assert again.inspect("s").next_seq == 50
        assert again.verify().clean


def test_failures_of_the_store_are_counted_also_where_nobody_waits(tmp_path: Path) -> None:
    metrics = Metrics()
    with MemoryEngine.open(MeteredStore(SqliteStore(path := tmp_path / "memories.db"), metrics), HashChain()) as engine:
        engine.begin_append("s", ["a"], seq=0).result(10)
        connection = sqlite3.connect(path)
        connection.executescript("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
        connection.close()
        with pytest.raises(StaleEpoch):
            engine.begin_append("s", ["b"], seq=1).result(10)
        assert b'rm_store_errors_total{code="stale_epoch"} 1.0' in metrics.exposition()
