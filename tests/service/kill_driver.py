"""Kill a writing process again and again, and look each time at what it left. Run by test_kill.py, or by hand:

    python tests/service/kill_driver.py FOLDER KILLS SEED

Acknowledged events go to a log outside of the store, which is the judge: each must be there afterwards, once, in order.
A process is killed at a random time, at the n-th SQL statement of its writer, or inside the n-th fold of its network.
Nothing here needs torch, so that a round takes a fifth of a second.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from service_parts import HashChain

from remem.service import FLUSH, Event, MemoryEngine
from remem.service.errors import Expired, UnknownStream
from remem.service.events import cut_events, pack_event
from remem.service.stores.sqlite import SqliteStore

STREAMS = ("s0", "s1", "s2", "s3")
KILLS_PER_STORE = 20


def event_at(stream: str, seq: int) -> Event:
    """The event with this number: a function of both, so that the judge knows it without being told."""
    return FLUSH if seq % 13 == 12 else Event(f"{stream} event {seq}", ends_segment=seq % 7 == 6)


def answer_of(stream: str, count: int) -> str:
    chain = HashChain()
    events = [event_at(stream, seq) for seq in range(count)]
    cut = cut_events([pack_event(event.item, event.ends_segment) for event in events], chain.segment_events)
    return chain.answer(chain.fold(chain.initial_memory(), [*cut.segments, *([cut.rest] if cut.rest else [])]))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingChain(HashChain):
    """Dies inside its n-th fold."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def fold(self, memory: bytes, segments: Sequence[Sequence[bytes]]) -> bytes:
        self.left -= 1
        if self.left == 0:
            die()
        return super().fold(memory, segments)


class DyingStore(SqliteStore):
    """Dies before its writer's n-th statement."""

    left = -1

    def _connect_writer(self) -> sqlite3.Connection:
        connection = super()._connect_writer()
        connection.set_trace_callback(self._count)
        return connection

    def _count(self, _: str) -> None:
        self.left -= 1
        if self.left == 0:
            die()


def write_until_killed(path: Path, log: int, way: str, after: int, seed: int) -> None:
    """Four writers of numbered streams, one that deletes its stream, one whose stream expires; each reply is logged."""
    store = DyingStore(path)
    store.left = after if way == "statement" else -1
    engine = MemoryEngine(store, DyingChain(after) if way == "fold" else HashChain())

    def write(stream: str) -> None:
        chance = random.Random(f"{seed} {stream}")
        try:
            seq = engine.inspect(stream).next_seq
        except UnknownStream:
            seq = 0
        while True:
            again = max(0, seq - chance.randrange(3))  # some events are sent twice
            batch = [event_at(stream, number) for number in range(again, seq + chance.randrange(1, 6))]
            seq = engine.append(stream, batch, seq=again).next_seq
            os.write(log, f"{stream} {seq}\n".encode())

    def make_and_delete() -> None:
        while True:
            engine.delete("passing")
            engine.append("passing", [event_at("passing", number) for number in range(4)], seq=0)
            engine.snapshot("passing", "one")
            os.write(log, b"passing 4\n")

    def expire() -> None:
        for number in itertools.count():
            engine.delete("fleeting")
            engine.create("fleeting", ttl=0.03)
            batch = [event_at("fleeting", seq) for seq in range(4)]
            engine.append("fleeting", batch, idempotency_key=f"{number}")
            os.write(log, b"fleeting 4\n")
            time.sleep(0.03)
            engine.sweep()

    threading.excepthook = lambda failed: (threading.__excepthook__(failed), os._exit(3))  # type: ignore[func-returns-value]
    for target, args in [*((write, (stream,)) for stream in STREAMS), (make_and_delete, ()), (expire, ())]:
        threading.Thread(target=target, args=args, daemon=True).start()
    time.sleep(20)
    die()


def judge(path: Path, acknowledged: dict[str, int], found: dict[str, int]) -> None:
    """Compare what is in the store with what was acknowledged and with what the events give."""
    with MemoryEngine.open(path, HashChain()) as engine:
        assert engine.settle()
        for stream in (*STREAMS, "passing", "fleeting"):
            try:
                said = engine.query(stream, "?")
            except (Expired, UnknownStream):
                found["lost"] += acknowledged.get(stream, 0) if stream in STREAMS else 0
                continue
            if stream in STREAMS:
                found["lost"] += max(0, acknowledged.get(stream, 0) - said.as_of_seq)
                found["events"] += said.as_of_seq
            found["mismatches"] += said.answer != answer_of(stream, said.as_of_seq)
        found["damaged"] += not engine.verify().clean


def main(folder: Path, kills: int, seed: int) -> dict[str, int]:
    chance = random.Random(seed)
    found = dict.fromkeys(("kills", "acknowledged", "events", "lost", "mismatches", "damaged"), 0)
    path, acknowledged = folder, dict[str, int]()
    for number in range(kills):
        if number % KILLS_PER_STORE == 0:
            path, acknowledged = folder / f"store-{number}.db", {}
        log_path = folder / "acknowledged.log"
        log = os.open(log_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        way = chance.choice(["time", "time", "statement", "fold"])
        after = chance.randrange(1, 400) if way == "statement" else chance.randrange(1, 60)
        child = os.fork()
        if child == 0:
            try:
                write_until_killed(path, log, way, after, seed + number)
            finally:
                os._exit(3)
        if way == "time":
            time.sleep(chance.uniform(0.005, 0.12))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the writer ended by itself in round {number} of seed {seed}"
        lines = log_path.read_text().split("\n")[:-1]
        os.close(log)
        for stream, next_seq in (line.split() for line in lines):
            acknowledged[stream] = max(acknowledged.get(stream, 0), int(next_seq))
        found["kills"] += 1
        found["acknowledged"] += len(lines)
        judge(path, acknowledged, found)
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *map(int, itertools.islice(sys.argv, 2, 4)))))
