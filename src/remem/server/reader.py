"""A process that answers questions, so that computing and serving have a core each.

It opens the store file for reading beside the server, which remains the only writer, and speaks JSON lines over a
socket that only the two have. It ends when the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
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
from remem.service.errors import InvalidValue, ServiceError, error_of

_LONGEST_LINE = 2**26
_LONGEST_WAIT = 30.0


class ReaderLost(ConnectionError):
    """The process has ended."""


class Reader:
    """The server's end. One group of questions at a time, from the event loop alone."""

    def __init__(self, store: Path | str, model: Path | str) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            place = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "remem.server.reader", str(store), str(model), str(place)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[place],
            )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def wait_until_ready(self) -> None:
        """Until the model is loaded."""
        if not self._socket.recv(1):
            raise ReaderLost

    async def answers(self, group: Sequence[Question]) -> list[Any]:
        """For each question its answer as JSON values, or the error that stands against it."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket, limit=_LONGEST_LINE)
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

    def close(self) -> None:
        """Let it end; one that does not is ended."""
        with contextlib.suppress(OSError):  # it may be gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_LONGEST_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(store: str, model: str, place: str) -> None:
    """The reader's end."""
    # a signal to the whole group is the server's to heed; this process ends with its connection
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from remem.service.engine import MemoryEngine

    with (
        socket.socket(fileno=int(place)) as connection,
        connection.makefile("rwb") as lines,
        MemoryEngine.open(store, model, read_only=True) as engine,
    ):
        gc.collect()
        gc.freeze()  # what lives as long as the process need not be looked at again and again
        lines.write(b"\n")
        lines.flush()
        for line in lines:
            found = engine.query_many([Question(*each) for each in json.loads(line)])
            lines.write(json.dumps([_reply(each) for each in found]).encode() + b"\n")
            lines.flush()


def _reply(found: Any) -> dict[str, Any]:
    if not isinstance(found, Exception):
        return {"answered": as_json(found)}
    if isinstance(found, ServiceError):
        return {"problem": found.problem()}
    known = InvalidValue(str(found)) if isinstance(found, BadInput) else ServiceError("The service failed.")
    return {"problem": known.problem()}


if __name__ == "__main__":
    main(*sys.argv[1:])
