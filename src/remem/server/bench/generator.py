"""An open-loop load generator in a process of its own: requests start when due, whether others are done or not.

Latency counts from the time a request was due, so that a server which stalls can't hide the requests it held up.
All requests are made beforehand and go over plain sockets: the generator shares the server's cores, and a full client
would take more of them than the server.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import sys
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, cast


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to send, where, how fast and how long."""

    host: str
    port: int
    token: str
    rate: float
    """Requests a second."""
    seconds: float
    warmup: float
    """Seconds at the start that do not count."""
    query_share: float
    batch: int
    """Events of one append."""
    streams: int
    num_items: int
    num_questions: int
    connections: int = 64
    pause: float = 6.0
    """Seconds after the streams were made, for their first segments to be consolidated."""
    seed: int = 0
    prefix: str = "load"


_LONGEST_START = 20
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


class Request(NamedTuple):
    """A request as bytes, and when it is due."""

    verb: Literal["append", "query"]
    data: bytes
    due: float


def requests_of(load: Load) -> tuple[list[Request], list[Request]]:
    """Some events for each stream, to be sent beforehand, so that all may be asked; then the load itself.

    Streams begin with different numbers of events: else all would end their segments at the same time.
    """
    chance, next_seq = random.Random(load.seed), [0] * load.streams

    def post(stream: int, verb: str, body: dict[str, Any]) -> bytes:
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/streams/{load.prefix}-{stream}/{verb} HTTP/1.1\r\nHost: {load.host}\r\n"
            f"Authorization: Bearer {load.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    def append(stream: int, count: int, due: float) -> Request:
        seq, next_seq[stream] = next_seq[stream], next_seq[stream] + count
        events = [chance.randrange(load.num_items) for _ in range(count)]
        return Request("append", post(stream, "events", {"seq": seq, "events": events}), due)

    def query(stream: int, due: float) -> Request:
        return Request(
            "query", post(stream, "query", {"question": chance.randrange(load.num_questions), "top": 1}), due
        )

    first = [append(stream, 1 + stream % _LONGEST_START, 0.0) for stream in range(load.streams)]
    requests, turn = [], 0
    for number in range(int(load.rate * (load.warmup + load.seconds))):
        due = number / load.rate
        if chance.random() < load.query_share:
            requests.append(query(chance.randrange(load.streams), due))
        else:  # in turn, so that a stream's appends never overtake each other
            requests.append(append(turn % load.streams, load.batch, due))
            turn += 1
    return first, requests


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self, generator: Generator) -> None:
        self._generator, self._data = generator, b""
        self._request: Request | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to write."""
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: Request) -> None:
        """The reply is told to the generator."""
        assert self._transport is not None
        self._request = request
        self._transport.write(request.data)

    def data_received(self, data: bytes) -> None:
        """Replies have a content-length."""
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if found and len(body) >= int(head[head.lower().index(b"content-length:") + 15 :].split(b"\r\n", 1)[0]):
            self._data = b""
            self._reply(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        """A request under way counts as failed, and no other is sent here."""
        self._transport = None
        if self._request is not None:
            self._reply(0)
        else:
            self._generator.lost(self)

    def _reply(self, status: int) -> None:
        request, self._request = self._request, None
        assert request is not None
        self._generator.replied(request, status, self if self._transport is not None else None)


class Generator:
    """Sends a load and keeps every latency. Callbacks alone: tasks would cost as much as the sockets."""

    def __init__(self, load: Load) -> None:
        self._load, self._loop = load, asyncio.get_running_loop()
        self._free: deque[Connection] = deque()
        self._due: deque[Request] = deque()
        self._started = 0.0
        self._alive, self._left, self._all_in = 0, 0, asyncio.Event()
        self.latencies: dict[str, list[float]] = {"append": [], "query": []}
        self.statuses: Counter[str] = Counter()
        self.late = 0.0
        """Longest delay of the generator itself."""

    async def run(self) -> dict[str, Any]:
        """All of it; returns when the last reply is in."""
        load = self._load
        first, requests = requests_of(load)
        gc.freeze()
        await self._send(first)
        if set(self.statuses) != {"200"}:
            raise RuntimeError(f"The streams could not be made: {dict(self.statuses)}.")
        self.latencies, self.statuses, self.late = {"append": [], "query": []}, Counter(), 0.0
        await asyncio.sleep(load.pause)
        before = resource.getrusage(resource.RUSAGE_SELF)
        await self._send(requests)
        taken = time.perf_counter() - self._started
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "latencies": {verb: percentiles(seconds) for verb, seconds in self.latencies.items() if seconds},
            "statuses": self.statuses,
            "requests": len(requests),
            "seconds": taken,
            "sent_per_second": len(requests) / taken,
            "generator_late_ms": 1000 * self.late,
            "generator_cpu_seconds": usage.ru_utime - before.ru_utime + usage.ru_stime - before.ru_stime,
        }

    async def _send(self, requests: list[Request]) -> None:
        while len(self._free) < self._load.connections:  # a server ends those that say nothing
            _, connection = await self._loop.create_connection(
                lambda: Connection(self), self._load.host, self._load.port
            )
            self._free.append(connection)
        self._alive = self._load.connections
        self._due, self._left = deque(requests), len(requests)
        self._all_in.clear()
        self._started = time.perf_counter()
        self._tick()
        await self._all_in.wait()

    def _tick(self) -> None:
        """Send what is due, as far as connections are free; come back when the next is."""
        now = time.perf_counter() - self._started
        while self._due and self._due[0].due <= now and self._free:
            self._free.popleft().send(self._due.popleft())
        if self._due and self._free:
            self._loop.call_later(max(0.0, self._due[0].due - now), self._on_time)

    def _on_time(self) -> None:
        self.late = max(self.late, time.perf_counter() - self._started - self._due[0].due)
        self._tick()

    def lost(self, connection: Connection) -> None:
        """One that nobody waited at."""
        self._free.remove(connection)
        self._alive -= 1

    def replied(self, request: Request, status: int, connection: Connection | None) -> None:
        """Count a reply; its connection may be used again."""
        if request.due >= self._load.warmup:
            self.latencies[request.verb].append(time.perf_counter() - self._started - request.due)
        self.statuses[str(status)] += 1
        self._left -= 1
        waited = not self._free
        if connection is not None:
            self._free.append(connection)
        else:
            self._alive -= 1
        if waited:
            self._tick()
        if not self._alive:  # what is left can't be sent
            self.statuses["0"] += self._left
        if not self._left or not self._alive:
            self._all_in.set()


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        for name, share in PERCENTILES.items()
    }


def main() -> None:
    """A load as JSON on standard input, what came of it on standard output."""
    load = Load(**json.loads(sys.stdin.read()))

    async def run() -> dict[str, Any]:
        return await Generator(load).run()

    try:
        import uvloop

        found = uvloop.run(run())
    except ImportError:
        found = asyncio.run(run())
    print(json.dumps({"load": {**asdict(load), "token": ""}, **found}))


if __name__ == "__main__":
    main()
