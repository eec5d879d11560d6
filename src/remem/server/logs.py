"""Logs as JSON lines. They never hold what a caller sent: no event, no question, no name of a stream, no token."""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
import time
import traceback
from functools import lru_cache
from typing import Any

_WRITE_SECONDS = 0.1
LOGGER = logging.getLogger("remem.server")


class JsonLines(logging.Formatter):
    """One object a line. Of an exception it keeps the kind and the places, not the message, which may quote content."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {"time": _shown(record.created), "level": record.levelname.lower()}
        if record.name == LOGGER.name:
            line |= {"event": str(record.msg), **getattr(record, "fields", {})}
        else:  # a library's own words; its arguments could be anything
            line |= {"event": "library", "logger": record.name, "message": str(record.msg)}
        if record.exc_info and record.exc_info[0] is not None:
            frames = traceback.extract_tb(record.exc_info[2])
            line["error"] = record.exc_info[0].__name__
            line["frames"] = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line)


def _shown(moment: float) -> str:
    return f"{_second(int(moment))}.{int(1000 * moment) % 1000:03d}Z"


@lru_cache(maxsize=2)
def _second(moment: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))


def log(event: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Write a line, if anybody listens."""
    if not LOGGER.isEnabledFor(level):
        return
    gathered = next((handler for handler in logging.getLogger().handlers if isinstance(handler, Gathered)), None)
    if gathered is not None and error is None and level == logging.INFO:
        # nearly every line, and none that a record or its handlers would add to
        gathered.keep(json.dumps({"time": _shown(time.time()), "level": "info", "event": event, **fields}))
    else:
        # a record made by hand: the logging module would look for the caller's file and line, which nobody reads
        found = (type(error), error, error.__traceback__) if error is not None else None
        record = logging.LogRecord(LOGGER.name, level, "", 0, event, None, found)
        record.fields = fields
        LOGGER.handle(record)


class Gathered(logging.Handler):
    """Lines written together ten times a second: a write for every request would cost as much as its answer.

    Warnings are written at once, and all that is left at the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self._lines: list[str] = []
        threading.Thread(target=self._work, name="remem-log", daemon=True).start()
        atexit.register(self.flush)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.keep(self.format(record))
        if record.levelno >= logging.WARNING:
            self.flush()

    def keep(self, line: str) -> None:
        """Until the next writing."""
        self._lines.append(line)

    def flush(self) -> None:
        """Write what is there."""
        with self.lock or threading.RLock():
            lines, self._lines = self._lines, []
            if lines:
                sys.stderr.write("\n".join(lines) + "\n")
                sys.stderr.flush()

    def _work(self) -> None:
        while True:
            time.sleep(_WRITE_SECONDS)
            self.flush()


def use_json_logs(level: str) -> None:
    """Everything this process says goes to standard error as JSON."""
    handler = Gathered()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
