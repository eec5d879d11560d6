"""What the tests of the service share: a network that shows every lost, doubled or moved event, and stores that crash.

The network needs no torch, so that a child process starts in a tenth of a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from remem.errors import BadInput
from remem.service import CODES, Event, ServiceError
from remem.service.events import cut_events, pack_event
from remem.service.network import Ask, Fold, NotFinite
from remem.service.store import Store
from remem.service.stores.memory import Backing, MemoryStore
from remem.service.stores.sqlite import SqliteStore

SEED = int(os.environ.get("REMEM_SEED", "0"))
"""Of whatever the tests leave to chance; set it to try other kills, cuts and flips."""
POISON = 666
"""An item that gives this network a memory which is not finite."""


def as_memory(digest: bytes) -> bytes:
    """32 bytes as a safetensors file."""
    header = json.dumps({"chain": {"dtype": "U8", "shape": [32], "data_offsets": [0, 32]}}, separators=(",", ":"))
    padded = header.encode() + b" " * (-len(header) % 8)
    return struct.pack("<Q", len(padded)) + padded + digest


class HashChain:
    """memory = H(memory, segment): cheap, and any other order or number of events gives another memory."""

    def __init__(self, segment_events: int = 3, salt: str = "") -> None:
        self.segment_events, self.fingerprint, self.numerics = segment_events, f"chain-{segment_events}{salt}", "exact"

    def checked_item(self, item: Any) -> Any:
        if isinstance(item, bool) or not isinstance(item, str | int) or item == "" or item == -1:
            raise BadInput("Expected text or a number.")
        return item

    def checked_question(self, question: Any) -> Any:
        return question

    def initial_memory(self) -> bytes:
        return as_memory(hashlib.sha256(self.fingerprint.encode()).digest())

    def fold(self, memory: bytes, segments: Sequence[Sequence[bytes]]) -> bytes:
        digest = memory[-32:]
        for segment in segments:
            if any(payload[2:] == POISON.to_bytes(8, "little") for payload in segment):
                raise NotFinite("poison")
            framed = b"".join(len(payload).to_bytes(4, "little") + payload for payload in segment)
            digest = hashlib.sha256(digest + framed).digest()
        return as_memory(digest)

    def fold_many(self, folds: Sequence[Fold]) -> list[bytes | NotFinite]:
        results: list[bytes | NotFinite] = []
        for fold in folds:
            try:
                results.append(self.fold(*fold))
            except NotFinite as error:
                results.append(error)
        return results

    def answer(self, memory: bytes) -> str:
        return memory[-32:].hex()

    def ask_many(self, asks: Sequence[Ask]) -> list[str | NotFinite]:
        memories = self.fold_many([ask.fold for ask in asks])
        return [each if isinstance(each, NotFinite) else self.answer(each) for each in memories]

    def describe(self, memory: bytes) -> dict[str, Any]:
        return {"bytes": len(memory)}

    def self_test(self) -> None:
        return


class SlowChain(HashChain):
    """A chain whose folding can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def fold(self, memory: bytes, segments: Sequence[Sequence[bytes]]) -> bytes:
        assert self.gate.wait(30)
        return super().fold(memory, segments)


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def folded(events: list[object], *, segment_events: int = 3) -> str:
    """What a hash chain answers after these events, its tail included."""
    chain = HashChain(segment_events)
    unpacked = [event if isinstance(event, Event) else Event(event) for event in events]
    cut = cut_events([pack_event(event.item, event.ends_segment) for event in unpacked], segment_events)
    return chain.answer(chain.fold(chain.initial_memory(), [*cut.segments, *([cut.rest] if cut.rest else [])]))


def assert_refused(code: str, call: Callable[[], object]) -> ServiceError:
    """The refusal with this code, whose problem document is whole."""
    import pytest  # here, since children that are killed and servers need none of it

    with pytest.raises(ServiceError) as caught:
        call()
    assert caught.value.code == code, str(caught.value)
    problem = caught.value.problem()
    assert problem["status"] == CODES[code].status
    assert problem["detail"] == str(caught.value) != ""
    return caught.value


class Place(Protocol):
    """Where a store lives across restarts."""

    def open(self) -> Store:
        """The store as it was left."""
        ...

    def crash(self, store: Store) -> None:
        """End the store's process at once, with all that it had in hand."""
        ...


class MemoryPlace:
    """The backing outlives its stores; a crash just leaves the old store behind."""

    def __init__(self, folder: Path) -> None:
        self.backing = Backing()

    def open(self) -> Store:
        return MemoryStore(self.backing)

    def crash(self, store: Store) -> None:
        return


class SqlitePlace:
    """A store file; a crash is a copy of the files as they are, which is what kill -9 leaves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / uuid.uuid4().hex
        self.folder.mkdir(parents=True)

    @property
    def path(self) -> Path:
        return self.folder / "memories.db"

    def open(self) -> Store:
        return SqliteStore(self.path)

    def crash(self, store: Store) -> None:
        before, self.folder = self.folder, self.folder.with_name(uuid.uuid4().hex)
        shutil.copytree(before, self.folder)
        store.close()
        shutil.rmtree(before)


class RedisServer:
    """A redis-server of our own on a free port, durable as the store demands."""

    def __init__(self, folder: Path, *settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.folder, self.settings = folder, settings
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
        self.process = subprocess.Popen([*command, *durable, *self.settings], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0 and self._ready():
                    return
            time.sleep(0.01)
        raise RuntimeError("redis-server did not start")

    def _ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


class RedisPlace:
    """A prefix of its own on a running server; a crash is a new engine beside the old one."""

    def __init__(self, server: RedisServer) -> None:
        self.server, self.prefix = server, uuid.uuid4().hex

    def open(self) -> Store:
        from remem.service.stores.redis import RedisStore

        return RedisStore(self.server.url, prefix=self.prefix)

    def crash(self, store: Store) -> None:
        return
