"""Between the event loop and the engine: bounded queues in front of threads, and deadlines before work is begun."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from remem.server.metrics import Metrics
from remem.server.settings import ServerSettings
from remem.service.errors import Deadline, OverQuota, QueueFull, ServiceError

T = TypeVar("T")
Lane = Literal["append", "query", "admin", "health"]
# appends wait for the disk, and as many as wait share one commit; queries compute
WORKERS: dict[Lane, int] = {"append": 48, "query": 2, "admin": 2, "health": 1}


class Busy(QueueFull):
    """Refused at the door: nothing was begun."""


class Lanes:
    """A queue and threads for each kind of work, so that none waits behind another."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self._most, self._metrics = settings.queue, metrics
        self._pools = {lane: ThreadPoolExecutor(count, f"remem-{lane}") for lane, count in WORKERS.items()}
        self._lock = threading.Lock()
        self.waiting: dict[Lane, int] = dict.fromkeys(WORKERS, 0)

    async def run(self, lane: Lane, deadline: float, call: Callable[[], T]) -> T:
        """Run a call in a thread; refused at once if too many wait, and not begun once its time is up."""
        if self.waiting[lane] >= self._most:
            raise Busy(f"{self._most} requests wait already; try again shortly.", queue=lane)
        with self._lock:
            self.waiting[lane] += 1

        def work() -> T:
            if time.monotonic() > deadline:
                raise Deadline("The request waited too long for its turn; nothing was done.")
            return call()

        future = self._pools[lane].submit(work)
        future.add_done_callback(lambda _: self._done(lane))
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic()) + 0.05):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise Deadline("The request took too long; the same call with the same numbers may be repeated.") from None

    async def until(self, lane: Lane, deadline: float, call: Callable[[], T], *, again: type[ServiceError]) -> T:
        """Run a call again and again while it is refused with `again`; between two turns it holds no thread."""
        pause = 0.004
        while True:
            try:
                return await self.run(lane, deadline, call)
            except Busy:
                raise
            except again:
                if time.monotonic() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.05)

    def close(self) -> None:
        """After the work in hand."""
        for pool in self._pools.values():
            pool.shutdown(wait=True)

    def _done(self, lane: Lane) -> None:
        with self._lock:
            self.waiting[lane] -= 1


class Buckets:
    """A bucket of requests for each tenant, filled at a steady rate."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, tenant: str) -> None:
        """One request; refused when the bucket is empty. Tenants come from tokens, so there are not too many."""
        if not self._rate:
            return
        now, most = time.monotonic(), max(1.0, self._rate)
        left, then = self._left.get(tenant, (most, now))
        left = min(most, left + (now - then) * self._rate)
        if left < 1:
            wait = math.ceil((1 - left) / self._rate)
            raise OverQuota(f"More than {self._rate:g} requests a second; try again in {wait} s.", retry_after=wait)
        self._left[tenant] = (left - 1, now)
