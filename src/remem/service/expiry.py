"""The thread that takes streams whose time is up out of the store's files."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from remem.service.errors import InvalidValue
from remem.service.limits import shown

SWEEP_SECONDS = 60.0
_LONGEST = 100 * 366 * 86_400.0


class Sweeper:
    """Sweeps at once, and then every so often."""

    def __init__(self, sweep: Callable[[], object], seconds: float) -> None:
        self._sweep, self._seconds, self._stopping = sweep, seconds, threading.Event()
        self._thread = threading.Thread(target=self._work, name="remem-sweeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """After the sweep in hand."""
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stopping.is_set():
            # a store that can't be written now may be the next time, and nothing is answered from what is left in it
            with contextlib.suppress(Exception):
                self._sweep()
            self._stopping.wait(self._seconds)


def checked_ttl(ttl: object) -> float:
    """A time to live in seconds; None is 0, for ever."""
    if ttl is None:
        return 0.0
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= _LONGEST:
        raise InvalidValue(f"ttl is {shown(ttl)}; expected seconds, above 0 and at most a hundred years.", path="ttl")
    return float(ttl)
