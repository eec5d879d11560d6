"""A process that computes, so that computing and serving have a core each: it answers questions, and folds in between.

It opens the store file for reading beside the server, which remains the only writer, and speaks JSON lines over sockets
that only the two have. It ends when the server does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remem.errors import BadInput
from remem.server.service import as_json
from remem.service.asking import Question
from remem.service.consolidate import Failed, Outcome, Prepared, prepare
from remem.service.engine import MemoryEngine
from remem.service.errors import InvalidValue, ServiceError, error_of
from remem.service.limits import StreamKey

_LONGEST_LINE = 2**26
_LONGEST_WAIT = 30.0
_LONGEST_FOLD = 300.0


class ReaderLost(ConnectionError):
    """The process at the other end is gone."""


class _Lines:
    """JSON lines over a socket, one request at a time: nothing is left in a buffer while `select` waits."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._incoming = connection, connection.makefile("rb")

    def fileno(self) -> int:
        """For `select`."""
        return self._connection.fileno()

    def read(self) -> Any:
        """The next value."""
        line = self._incoming.readline()
        if not line.endswith(b"\n"):
            raise ReaderLost
        return json.loads(line)

    def write(self, value: Any) -> None:
        """Send a value."""
        self._connection.sendall(json.dumps(value).encode() + b"\n")


class Reader:
    """The server's end: one group of questions at a time, from the event loop alone; one of folds, from a thread."""

    def __init__(self, store: Path | str, model: Path | str) -> None:
        (self._questions, asked), (self._folds, folded) = socket.socketpair(), socket.socketpair()
        with asked, folded:
            places = [asked.fileno(), folded.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "remem.server.reader", str(store), str(model), *map(str, places)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=places,
            )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._folds.settimeout(_LONGEST_FOLD)
        self._fold_lines = _Lines(self._folds)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Until the model is loaded."""
        if not self._questions.recv(1):
            raise ReaderLost

    async def answers(self, group: Sequence[Question]) -> list[Any]:
        """For each question its answer as JSON values, or the error that stands against it."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._questions, limit=_LONGEST_LINE)
        incoming, outgoing = self._streams
        outgoing.write(json.dumps(group).encode() + b"\n")
        try:
            async with asyncio.timeout(_LONGEST_WAIT):
                line = await incoming.readline()
        except (OSError, TimeoutError):
            raise ReaderLost from None
        if not line.endswith(b"\n"):
            raise ReaderLost
        return [error_of(reply["problem"]) if "problem" in reply else reply["answered"] for reply in json.loads(line)]

    def prepared(self, keys: Sequence[StreamKey]) -> tuple[dict[StreamKey, Outcome], list[float]]:
        """As `remem.service.consolidate.prepare`, and how many seconds each fold took."""
        try:
            self._fold_lines.write(keys)
            reply = self._fold_lines.read()
        except OSError:
            raise ReaderLost from None
        return dict(zip(keys, map(_outcome, reply["outcomes"]), strict=True)), reply["took"]

    def close(self) -> None:
        """Let it end; one that does not is ended."""
        for connection in (self._questions, self._folds):
            with contextlib.suppress(OSError):  # it may be gone already
                connection.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_LONGEST_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Computer:
    """The reader's end. Questions come first: a fold stops for them after every few segments."""

    def __init__(self, engine: MemoryEngine, took: list[float], questions: socket.socket, folds: socket.socket) -> None:
        self._engine, self._took = engine, took
        self._questions, self._folds = _Lines(questions), _Lines(folds)
        questions.sendall(b"\n")

    def run(self) -> None:
        """Until the server ends the connection."""
        with contextlib.suppress(ConnectionError):
            while True:
                ready, _, _ = select.select([self._questions, self._folds], [], [])
                if self._questions in ready:
                    self._answer()
                else:
                    self._folds.write(self._prepared(self._folds.read()))

    def _answer(self) -> None:
        group = self._questions.read()
        found = self._engine.query_many([Question(*each) for each in group])
        self._questions.write([_reply(each) for each in found])

    def _prepared(self, keys: list[Any]) -> dict[str, Any]:
        self._took.clear()
        wanted = [StreamKey(*key) for key in keys]
        found = prepare(self._engine.store, self._engine.network, wanted, self._look_up)
        return {"outcomes": [_as_line(found[key]) for key in wanted], "took": self._took}

    def _look_up(self) -> None:
        while select.select([self._questions], [], [], 0)[0]:
            self._answer()


def main(store: str, model: str, *places: str) -> None:
    """The reader's end."""
    # a signal to the whole group is the server's to heed; this process ends with its connection
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from remem.server.metrics import MeteredNetwork
    from remem.service.opening import open_network

    questions, folds = (socket.socket(fileno=int(place)) for place in places)
    took: list[float] = []
    network = MeteredNetwork(open_network(model), took.append)
    with questions, folds, MemoryEngine.open(store, network, read_only=True) as engine:
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
