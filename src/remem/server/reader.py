"""A process that computes, so that computing and serving have a core each: it answers questions, and folds in between.

It opens the store file for reading beside the server, which remains the only writer, and speaks JSON lines over sockets
that only the two have. It ends when the server does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import itertools
import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from remem.errors import BadInput, RememError
from remem.server.service import as_json
from remem.service.asking import Question
from remem.service.consolidate import Failed, Outcome, Prepared, prepare
from remem.service.engine import MemoryEngine
from remem.service.errors import InvalidValue, ServiceError, error_of
from remem.service.limits import StreamKey

_CHUNK = 2**18
_MOST_TOGETHER = 16
_GATHERING = 0.001
"""Seconds that a question waits for company, right after several were answered together; alone it never waits."""
_SLICE_SEGMENTS, _ASKED_SECONDS = 4, 1.0
"""Segments that are folded in one go while questions come, and for how long after one others are expected."""
_LONGEST_WAIT = 30.0
_LONGEST_FOLD = 300.0


class ReaderLost(ConnectionError):
    """The process at the other end is gone."""


class _Lines:
    """JSON lines over a socket, to be waited for with `select` only when none is at hand."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._rest = connection, b""
        self._lines: deque[bytes] = deque()

    def fileno(self) -> int:
        """For `select`."""
        return self._connection.fileno()

    def has_come(self) -> bool:
        """Whether there is a line, or its beginning, or the end."""
        return bool(self._lines or select.select([self], [], [], 0)[0])

    def read(self, most: int = 1) -> list[Any]:
        """The next values: waits for one, and takes as many as have come."""
        while not self._lines or (len(self._lines) < most and select.select([self], [], [], 0)[0]):
            if not (data := self._connection.recv(_CHUNK)):
                raise ReaderLost
            *whole, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(whole)
        return [json.loads(self._lines.popleft()) for _ in range(min(most, len(self._lines)))]

    def write(self, value: Any) -> None:
        """Send a value."""
        self._connection.sendall(json.dumps(value).encode() + b"\n")


class _Questions(asyncio.Protocol):
    """Questions on their way, by number."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers, self._parts = itertools.count(), [b""]
        self._transport: asyncio.Transport | None = None
        self._heard = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to write."""
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, question: Question) -> asyncio.Future[Any]:
        """Its answer as JSON values, or the error that stands against it."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        now = time.monotonic()
        if self.waiting and now - self._heard > _LONGEST_WAIT and self._transport is not None:
            self._transport.abort()  # it neither answers nor ends
            self.connection_lost(None)
        if self._transport is None:
            answered.set_exception(ReaderLost())
            return answered
        if not self.waiting:
            self._heard = now
        number = next(self._numbers)
        self.waiting[number] = answered
        self._transport.write(json.dumps([number, *question]).encode() + b"\n")
        return answered

    def data_received(self, data: bytes) -> None:
        """A line has the answers to several questions."""
        self._heard = time.monotonic()
        if b"\n" not in data:
            self._parts.append(data)
            return
        *lines, rest = b"".join([*self._parts, data]).split(b"\n")
        self._parts = [rest]
        for number, reply in (each for line in lines for each in json.loads(line)):
            answered = self.waiting.pop(number)
            if answered.done():  # nobody waits any more
                continue
            if "problem" in reply:
                answered.set_exception(error_of(reply["problem"]))
            else:
                answered.set_result(reply["answered"])

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody will answer."""
        self._transport = None
        waiting, self.waiting = self.waiting, {}
        for answered in waiting.values():
            if not answered.done():
                answered.set_exception(ReaderLost())


class Reader:
    """The server's end: questions from the event loop alone; one group of folds at a time, from a thread."""

    def __init__(self, store: Path | str, model: Path | str) -> None:
        (self._asking, asked), (self._folding, folded) = socket.socketpair(), socket.socketpair()
        with asked, folded:
            places = [asked.fileno(), folded.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "remem.server.reader", str(store), str(model), *map(str, places)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=places,
            )
        self._questions = _Questions()
        self._folding.settimeout(_LONGEST_FOLD)
        self._folds = _Lines(self._folding)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def waiting(self) -> int:
        """Questions on their way."""
        return len(self._questions.waiting)

    def wait_until_ready(self) -> None:
        """Until the model is loaded."""
        if not self._asking.recv(1):
            raise ReaderLost

    async def connect(self) -> None:
        """In the event loop that will ask."""
        await asyncio.get_running_loop().create_connection(lambda: self._questions, sock=self._asking)

    def ask(self, question: Question) -> asyncio.Future[Any]:
        """Its answer as JSON values, or the error that stands against it."""
        return self._questions.ask(question)

    def prepared(self, keys: Sequence[StreamKey]) -> tuple[dict[StreamKey, Outcome], list[float]]:
        """As `remem.service.consolidate.prepare`, and how many seconds each fold took."""
        try:
            self._folds.write(keys)
            (reply,) = self._folds.read()
        except OSError:
            raise ReaderLost from None
        return dict(zip(keys, map(_outcome, reply["outcomes"]), strict=True)), reply["took"]

    def close(self) -> None:
        """Let it end; one that does not is ended."""
        for connection in (self._asking, self._folding):
            with contextlib.suppress(OSError):  # it may be gone already
                connection.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_LONGEST_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Computer:
    """The reader's end. Questions that have come are answered together, and first: a fold stops for them."""

    def __init__(self, engine: MemoryEngine, took: list[float], questions: socket.socket, folds: socket.socket) -> None:
        self._engine, self._took = engine, took
        self._questions, self._folds = _Lines(questions), _Lines(folds)
        self._crowded, self._asked = False, 0.0
        questions.sendall(b"\n")

    def run(self) -> None:
        """Until the server ends the connection."""
        with contextlib.suppress(ConnectionError):
            while True:
                self._look_up()
                ready, _, _ = select.select([self._questions, self._folds], [], [])
                if self._folds in ready and self._questions not in ready:
                    (keys,) = self._folds.read()
                    self._folds.write(self._prepared(keys))

    def _look_up(self) -> None:
        while self._questions.has_come():
            if self._crowded:
                time.sleep(_GATHERING)
            group = self._questions.read(_MOST_TOGETHER)
            self._crowded, self._asked = len(group) > 1, time.monotonic()
            found = self._engine.query_many([Question(*question) for _, *question in group])
            self._questions.write([(number, _reply(each)) for (number, *_), each in zip(group, found, strict=True)])

    def _prepared(self, keys: list[Any]) -> dict[str, Any]:
        self._took.clear()
        wanted = [StreamKey(*key) for key in keys]
        slices = {"slice_segments": _SLICE_SEGMENTS} if time.monotonic() - self._asked < _ASKED_SECONDS else {}
        found = prepare(self._engine.store, self._engine.network, wanted, self._look_up, **slices)
        return {"outcomes": [_as_line(found[key]) for key in wanted], "took": self._took}


def main(store: str, model: str, *places: str) -> None:
    """The reader's end."""
    # a signal to the whole group is the server's to heed; this process ends with its connection
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from remem.server.metrics import MeteredNetwork
    from remem.service.opening import open_network

    questions, folds = (socket.socket(fileno=int(place)) for place in places)
    took: list[float] = []
    # the server opens the same and says what is wrong with it, or it is gone
    with questions, folds, contextlib.suppress(RememError, ConnectionError):
        network = MeteredNetwork(open_network(model), took.append)
        with MemoryEngine.open(store, network, read_only=True) as engine:
            gc.collect()
            gc.freeze()  # what lives as long as the process need not be looked at again and again
            _Computer(engine, took, questions, folds).run()


def _reply(found: Any) -> dict[str, Any]:
    if not isinstance(found, Exception):
        return {"answered": as_json(found)}
    if isinstance(found, ServiceError):
        return {"problem": found.problem()}
    known = InvalidValue(str(found)) if isinstance(found, BadInput) else ServiceError("The service failed.")
    return {"problem": known.problem()}


def _as_line(found: Outcome) -> dict[str, Any] | None:
    if found is None:
        return None
    line = found._asdict()
    if isinstance(found, Prepared):
        line["memory"] = base64.b64encode(found.memory).decode()
    return line


def _outcome(line: dict[str, Any] | None) -> Outcome:
    if line is None:
        return None
    if "reason" in line:
        return Failed(**line)
    birth, generation, version, consolidated_seq = line["place"]
    place = (birth, generation, version, consolidated_seq)
    return Prepared(**(line | {"place": place, "memory": base64.b64decode(line["memory"])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
