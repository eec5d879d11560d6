"""A process that answers questions, so that computing and serving have a core each.

It opens the store file for reading beside the server, which remains the only writer, and speaks JSON lines over its
standard input and output. It ends when the server does.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remem.errors import BadInput
from remem.server.service import as_json
from remem.server.work import Question, answers_of
from remem.service.errors import InvalidValue, ServiceError, error_of


class ReaderLost(ConnectionError):
    """The process has ended."""


class Reader:
    """The server's end. One thing at a time."""

    def __init__(self, store: Path | str, model: Path | str) -> None:
        self._turn = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "remem.server.reader", str(store), str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def wait_until_ready(self) -> None:
        """Until the model is loaded."""
        self._receive()

    def answers(self, group: Sequence[Question]) -> list[Any]:
        """For each question its answer as JSON values, or the error that stands against it."""
        replies = self._ask([question._asdict() for question in group])
        return [error_of(reply["problem"]) if "problem" in reply else reply["answered"] for reply in replies]

    def forget(self, birth: str) -> None:
        """Drop what is kept of a stream that was deleted."""
        self._ask({"birth": birth})

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _ask(self, asked: Any) -> Any:
        assert self._process.stdin is not None
        with self._turn:
            try:
                self._process.stdin.write(json.dumps(asked).encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError):
                raise ReaderLost from None
            return self._receive()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()).endswith(b"\n"):
            raise ReaderLost
        return json.loads(line)


def main(store: str, model: str) -> None:
    """The reader's end."""
    # a signal to the whole group is the server's to heed; this process ends with its input
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from remem.service.engine import MemoryEngine

    out = sys.stdout.buffer
    with MemoryEngine.open(store, model, read_only=True) as engine:
        out.write(b"{}\n")
        out.flush()
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            if isinstance(asked, dict):
                engine.forget(**asked)
                replies: Any = {}
            else:
                found = answers_of(engine, [Question(**each) for each in asked])
                replies = [_reply(each) for each in found]
            out.write(json.dumps(replies).encode() + b"\n")
            out.flush()


def _reply(found: Any) -> dict[str, Any]:
    if not isinstance(found, Exception):
        return {"answered": as_json(found)}
    if isinstance(found, ServiceError):
        return {"problem": found.problem()}
    known = InvalidValue(str(found)) if isinstance(found, BadInput) else ServiceError("The service failed.")
    return {"problem": known.problem()}


if __name__ == "__main__":
    main(*sys.argv[1:])
