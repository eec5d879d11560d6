"""The process that computes beside the server: the same bits, questions first, and nothing lost when it dies."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from service_parts import HashChain, folded

from remem import Client
from remem.server.reader import Reader, ReaderLost
from remem.service import MemoryEngine
from remem.service.asking import Question
from remem.service.consolidate import Failed, Prepared, prepare, put_in
from remem.service.errors import UnknownStream
from remem.service.limits import DEFAULT_TENANT, StreamKey
from remem.service.network import Fold

MODEL = Path(__file__).resolve().parents[2] / "models" / "synthetic"


def key(name: str) -> StreamKey:
    return StreamKey(DEFAULT_TENANT, name)


class Watched(HashChain):
    """Keeps what it was asked to fold side by side; may refuse some events, alone or with all beside them."""

    def __init__(self, refused: bytes = b"none", *, whole: bool = False) -> None:
        super().__init__()
        self.refused, self.whole = refused, whole
        self.calls: list[list[int]] = []

    def fold_many(self, folds: Sequence[Fold]) -> list[Any]:
        self.calls.append([len(fold.segments) for fold in folds])
        bad = [any(self.refused in event for segment in fold.segments for event in segment) for fold in folds]
        if self.whole and any(bad):
            raise RuntimeError("no")
        found = super().fold_many(folds)
        return [RuntimeError("no") if is_bad else memory for is_bad, memory in zip(bad, found, strict=True)]


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[MemoryEngine]:
    """An engine that folds nothing by itself."""
    with MemoryEngine.open(tmp_path / "memories.db", HashChain()) as engine:
        engine.prepare_by(lambda keys: dict.fromkeys(keys))
        yield engine


def test_slices_give_the_memory_of_one_go_and_stop_in_between(idle: MemoryEngine) -> None:
    lengths = {f"s{number}": 3 * number + 1 for number in range(12)}
    for name, length in lengths.items():
        idle.append(name, [f"{name} {seq}" for seq in range(length)])
    network, stops = Watched(), []
    found = prepare(idle.store, network, [*map(key, lengths)], lambda: stops.append(len(network.calls)), 4)
    assert stops == list(range(1, len(network.calls) + 1))
    assert all(len(call) <= 8 and max(call) <= 4 for call in network.calls)
    assert len(network.calls) > 3
    assert found[key("s0")] is None  # one event is no segment
    put_in(idle.store, found)
    for name, length in lengths.items():
        assert idle.inspect(name).consolidated_seq == length - 1
        assert idle.query(name, "?", tail="exclude").answer == folded([f"{name} {seq}" for seq in range(length - 1)])


@pytest.mark.parametrize("whole", [False, True])
def test_a_stream_that_fails_stops_no_other(idle: MemoryEngine, whole: bool) -> None:
    for name in ("a", "bad", "c"):
        idle.append(name, [f"{name} {seq}" for seq in range(6)])
    found = prepare(idle.store, Watched(b"bad 4", whole=whole), [key("a"), key("bad"), key("c")])
    assert found[key("bad")] == Failed("RuntimeError: no")
    for name in ("a", "c"):
        assert isinstance(found[key(name)], Prepared)


def test_what_was_prepared_for_another_place_is_dropped(idle: MemoryEngine) -> None:
    idle.append("s", list("abc"))
    idle.append("t", list("abc"))
    found = prepare(idle.store, idle.network, [key("s"), key("t")])
    put_in(idle.store, found)
    put_in(idle.store, found)  # a second time: its place is gone
    assert idle.inspect("s").memory_version == 1
    idle.delete("t")
    idle.append("t", list("xyz"))
    put_in(idle.store, found)
    assert idle.inspect("t").memory_version == 0
    assert idle.query("t", "?").answer == folded(list("xyz"))


def test_streams_gather_unless_somebody_waits(tmp_path: Path) -> None:
    network = Watched()
    with MemoryEngine.open(tmp_path / "memories.db", network) as engine:
        engine.append("first", list("abc"))  # alone, and so at once
        started = time.monotonic()
        while engine.inspect("first").consolidated_seq < 3:
            assert time.monotonic() - started < 0.08
            time.sleep(0.002)
        before = len(network.calls)
        for number in range(8):
            engine.append(f"s{number}", list("abc"))
        time.sleep(0.3)
        assert len(network.calls) - before <= 2
        assert all(engine.inspect(f"s{number}").consolidated_seq == 3 for number in range(8))
        started = time.monotonic()
        engine.append("marked", ["x"])
        engine.flush("marked")
        assert time.monotonic() - started < 0.08


class Served:
    """`remem serve` with a reader."""

    def __init__(self, store: Path) -> None:
        command = [sys.executable, "-m", "remem", "serve", str(store), "--model", str(MODEL), "--port", "0"]
        self.log = store.with_name("log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(2)]
        found = re.search(r"(http://\S+)\n.*(remem_\S+)", "".join(lines))
        assert found is not None, self.log.read_text()
        self.url, self.token = found.groups()

    @property
    def reader(self) -> int:
        """The process beside the server."""
        own = self.process.pid
        (child,) = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        return int(child)


@pytest.mark.slow
def test_a_reader_gives_the_bits_of_the_engine_and_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "memories.db"
    with MemoryEngine.open(path, MODEL) as engine:
        engine.prepare_by(lambda keys: dict.fromkeys(keys))
        names = [f"s{number}" for number in range(20)]
        for place, name in enumerate(names):
            engine.append(name, [(place * 7 + seq) % 400 for seq in range(5 * place + 3)])
        reader = Reader(path, MODEL)
        try:
            reader.wait_until_ready()

            async def ask() -> list[Any]:
                await reader.connect()
                asked = [Question(name, 3, 2, "include", None, DEFAULT_TENANT) for name in [*names, "nobody"]]
                return await asyncio.gather(*map(reader.ask, asked), return_exceptions=True)

            *answers, missing = asyncio.run(ask())
            assert isinstance(missing, UnknownStream)
            for name, answer in zip(names, answers, strict=True):
                wanted = engine.query(name, 3, top=2)
                assert answer["as_of_seq"] == wanted.as_of_seq
                assert answer["answer"]["answer"] == wanted.answer.answer
                assert answer["answer"]["probability"] == pytest.approx(wanted.answer.probability, rel=1e-5)
            wanted_keys = [*map(key, names)]
            found, took = reader.prepared(wanted_keys)
            assert found == engine.prepare(wanted_keys)  # to the bit
            assert took
        finally:
            reader.close()
        with pytest.raises(ReaderLost):
            reader.prepared([key("s0")])


@pytest.mark.slow
def test_a_server_goes_on_without_its_reader(tmp_path: Path) -> None:
    served = Served(tmp_path / "memories.db")
    try:
        with Client(served.url, token=served.token) as client:
            stream = client.stream("s")
            stream.append([*range(25)])
            before = stream.query(3)
            os.kill(served.reader, signal.SIGKILL)
            for _ in range(5):
                assert stream.query(3).answer.answer == before.answer.answer
            stream.append([*range(25, 50)])
            done = stream.flush()
            assert done.consolidated_seq == done.next_seq == 51
            assert client.verify().clean
    finally:
        served.process.terminate()
        assert served.process.wait(60) == 0
    assert "reader lost" in served.log.read_text()
    with MemoryEngine.open(tmp_path / "memories.db", MODEL, retention="all") as engine:
        engine.append("fresh", [*range(50)])
        engine.flush("fresh")
        assert engine.export("fresh").partition(b"}")[2][-5000:] == engine.export("s").partition(b"}")[2][-5000:]
