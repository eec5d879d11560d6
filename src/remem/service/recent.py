"""What was computed last, kept in memory up to a number of bytes: questions often come again before the next event."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A mapping that forgets what was not asked for longest; may be used from many threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        """What is kept under a key, which becomes the last to go."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def keep(self, key: Key, value: Value, size: int) -> None:
        """Keep a value of so many bytes, its key among them; one larger than all that may be kept is not."""
        if size > self._most:
            return
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = (value, size)
            self._bytes += size
            while self._bytes > self._most:
                _, (_, freed) = self._kept.popitem(last=False)
                self._bytes -= freed
