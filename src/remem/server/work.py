"""Between the event loop and the engine: bounded queues in front of threads, and deadlines before work is begun."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from remem.server.logs import log
from remem.server.metrics import Metrics
from remem.server.settings import ServerSettings
from remem.service.asking import Question
from remem.service.engine import MemoryEngine
from remem.service.errors import Deadline, NotCaughtUp, OverQuota, QueueFull, ServiceError

if TYPE_CHECKING:
    from remem.server.reader import Reader

T = TypeVar("T")
Lane = Literal["append", "query", "admin", "health"]
_FIRST_PAUSE, _LAST_PAUSE = 0.004, 0.05
_MOST_TOGETHER = 16
_GATHERING = 0.004
# appends wait for the disk, and as many as wait share one commit; queries compute
WORKERS: dict[Lane, int] = {"append": 48, "query": 1, "admin": 2, "health": 1}


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

        def work() -> T:
            if time.monotonic() > deadline:
                raise Deadline("The request waited too long for its turn; nothing was done.")
            return call()

        return await self.begun(lane, deadline, lambda: self._pools[lane].submit(work))

    async def begun(self, lane: Lane, deadline: float, begin: Callable[[], Future[T]]) -> T:
        """Wait for what `begin` begins, under the same bounds."""
        if self.waiting[lane] >= self._most:
            raise Busy(f"{self._most} requests wait already; try again shortly.", queue=lane)
        with self._lock:
            self.waiting[lane] += 1
        try:
            future = begin()
        except BaseException:
            self._done(lane)
            raise
        future.add_done_callback(lambda _: self._done(lane))
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic()) + 0.05):
                return await _arrived(future)
        except TimeoutError:
            raise Deadline("The request took too long; the same call with the same numbers may be repeated.") from None

    async def until(self, lane: Lane, deadline: float, call: Callable[[], T], *, again: type[ServiceError]) -> T:
        """Run a call again and again while it is refused with `again`; between two turns it holds no thread."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self.run(lane, deadline, call)
            except Busy:
                raise
            except again:
                if time.monotonic() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def close(self) -> None:
        """After the work in hand."""
        for pool in self._pools.values():
            pool.shutdown(wait=True)

    def _done(self, lane: Lane) -> None:
        with self._lock:
            self.waiting[lane] -= 1


def _arrived(future: Future[T]) -> asyncio.Future[T]:
    """As `asyncio.wrap_future`, without a detour where the result comes in the event loop itself."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    arrived: asyncio.Future[T] = loop.create_future()

    def put() -> None:
        if arrived.done():
            return
        if (failure := future.exception()) is not None:
            arrived.set_exception(failure)
        else:
            arrived.set_result(future.result())

    def tell(_: Future[T]) -> None:
        if threading.get_ident() == thread:
            put()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and who waited with it
                loop.call_soon_threadsafe(put)

    future.add_done_callback(tell)
    return arrived


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


class Batcher:
    """Questions that wait while others are answered are answered together, at a fraction of the price.

    After a group of several the next one waits a moment for company; somebody who asks alone never does.
    """

    def __init__(self, engine: MemoryEngine, lanes: Lanes, settings: ServerSettings) -> None:
        self._engine, self._lanes, self._most = engine, lanes, settings.queue
        self.reader: Reader | None = None
        """A process that answers in place of this one."""
        self._waiting: deque[tuple[Question, asyncio.Future[Any]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._crowded = False

    async def ask(self, question: Question, deadline: float) -> Any:
        """One question; a stream that has to catch up first is asked again until then."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._ask(question, deadline)
            except NotCaughtUp:
                if time.monotonic() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def _ask(self, question: Question, deadline: float) -> Any:
        if self.reader is not None:
            try:
                return await self._asked(self.reader, question, deadline)
            except ConnectionError:
                if self.reader is not None:
                    log("reader lost", level=40, work="questions")
                self.reader = None  # from now on it is done here
        if len(self._waiting) >= self._most:
            raise Busy(f"{self._most} questions wait already; try again shortly.", queue="query")
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answered))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await answered
        except TimeoutError:
            raise Deadline("The question took too long.") from None

    async def _asked(self, reader: Reader, question: Question, deadline: float) -> Any:
        if reader.waiting >= self._most:
            raise Busy(f"{self._most} questions wait already; try again shortly.", queue="query")
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await reader.ask(question)
        except TimeoutError:
            raise Deadline("The question took too long.") from None

    async def _work(self) -> None:
        while self._waiting:
            if self._crowded and len(self._waiting) < _MOST_TOGETHER:
                await asyncio.sleep(_GATHERING)
            group = [self._waiting.popleft() for _ in range(min(_MOST_TOGETHER, len(self._waiting)))]
            group = [(question, answered) for question, answered in group if not answered.done()]
            self._crowded = len(group) > 1
            try:
                results = await self._answers([question for question, _ in group])
            except Exception as error:
                results = [error] * len(group)
            for (_, answered), result in zip(group, results, strict=True):
                if answered.done():
                    continue
                if isinstance(result, Exception):
                    answered.set_exception(result)
                else:
                    answered.set_result(result)

    async def _answers(self, group: list[Question]) -> list[Any]:
        return await self._lanes.run("query", time.monotonic() + 60.0, partial(self._engine.query_many, group))
