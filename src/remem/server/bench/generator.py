"""An open-loop load generator in a process of its own: requests start when due, whether others are done or not.

Latency counts from the time a request was due, so that a server which stalls can't hide the requests it held up.
It speaks plain HTTP over sockets: a full client would take more of the two cores than the server.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


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
    seed: int = 0
    prefix: str = "load"


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._data = b""
        self._reply: asyncio.Future[int] | None = None
        self._write: Callable[[bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to write."""
        self._write = transport.write  # type: ignore[attr-defined]

    def send(self, request: bytes) -> asyncio.Future[int]:
        """The status of the reply, later."""
        assert self._write is not None
        self._reply = asyncio.get_running_loop().create_future()
        self._write(request)
        return self._reply

    def data_received(self, data: bytes) -> None:
        """Replies have a content-length."""
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        place = head.lower().index(b"content-length:") + 15
        if len(body) >= int(head[place:].split(b"\r\n", 1)[0]):
            self._data = b""
            if self._reply is not None and not self._reply.done():
                self._reply.set_result(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        """A request under way counts as failed."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(0)


class Generator:
    """Sends a load and keeps every latency."""

    def __init__(self, load: Load) -> None:
        self._load, self._random = load, random.Random(load.seed)
        self._next_seq = [0] * load.streams
        self._turn = 0
        self._known: list[int] = []
        self._free: deque[Connection] = deque()
        self._freed = asyncio.Condition()
        self.latencies: dict[str, list[float]] = {"append": [], "query": []}
        self.statuses: dict[str, int] = {}
        self.late = 0.0
        """Longest delay of the generator itself."""

    async def run(self) -> dict[str, Any]:
        """All of it; returns when the last reply is in."""
        load, loop = self._load, asyncio.get_running_loop()
        for _ in range(load.connections):
            _, connection = await loop.create_connection(Connection, load.host, load.port)
            self._free.append(connection)
        started, tasks = time.perf_counter(), set[asyncio.Task[None]]()
        total = int(load.rate * (load.warmup + load.seconds))
        for number in range(total):
            due = started + number / load.rate
            while (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            self.late = max(self.late, -left)
            task = asyncio.create_task(self._one(due, counts=due - started >= load.warmup))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        sent = time.perf_counter()
        await asyncio.gather(*tasks)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "latencies": self.latencies,
            "statuses": self.statuses,
            "requests": total,
            "sent_per_second": total / (sent - started),
            "generator_late_ms": 1000 * self.late,
            "generator_cpu_seconds": usage.ru_utime + usage.ru_stime,
        }

    async def _one(self, due: float, counts: bool) -> None:
        verb, request, stream = self._request()
        async with self._freed:
            await self._freed.wait_for(lambda: self._free)
            connection = self._free.popleft()
        status = await connection.send(request)
        if counts:
            self.latencies[verb].append(time.perf_counter() - due)
        if verb == "append" and status == 200 and self._next_seq[stream] <= self._load.batch:
            self._known.append(stream)  # from now on it may be asked
        self.statuses[str(status)] = self.statuses.get(str(status), 0) + 1
        if status == 0:
            _, connection = await asyncio.get_running_loop().create_connection(
                Connection, self._load.host, self._load.port
            )
        async with self._freed:
            self._free.append(connection)
            self._freed.notify()

    def _request(self) -> tuple[str, bytes, int]:
        load, chance = self._load, self._random
        if self._known and chance.random() < load.query_share:
            stream = chance.choice(self._known)
            body: dict[str, Any] = {"question": chance.randrange(load.num_questions), "top": 1}
            return "query", self._post(stream, "query", body), stream
        # in turn, so that a stream's appends never overtake each other
        stream = self._turn % load.streams
        self._turn += 1
        seq, self._next_seq[stream] = self._next_seq[stream], self._next_seq[stream] + load.batch
        events = [chance.randrange(load.num_items) for _ in range(load.batch)]
        return "append", self._post(stream, "events", {"seq": seq, "events": events}), stream

    def _post(self, stream: int, verb: str, body: dict[str, Any]) -> bytes:
        load, content = self._load, json.dumps(body).encode()
        head = (
            f"POST /v1/streams/{load.prefix}-{stream}/{verb} HTTP/1.1\r\nHost: {load.host}\r\n"
            f"Authorization: Bearer {load.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content


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
