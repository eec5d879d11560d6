"""A server's life: killed under load, stopped under load, restarted. Acknowledged events are there once, always.

`REMEM_SERVER_KILLS=20` for the full count of kills (about a minute).
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import httpx
import pytest
from kill_driver import answer_of, event_at
from server_parts import Server
from service_parts import SEED, HashChain

from remem import AsyncClient, Client
from remem.errors import BadInput
from remem.service import FLUSH, MemoryEngine
from remem.service.errors import (
    Deadline,
    NotCaughtUp,
    NotReady,
    QueueFull,
    SequenceConflict,
    SequenceGap,
    ServiceError,
    error_of,
)

KILLS = int(os.environ.get("REMEM_SERVER_KILLS", "3"))
STREAMS = ("s0", "s1", "s2", "s3")


class Writers:
    """Clients that append numbered events until told to stop; every acknowledgement is kept outside the store."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self.seed = server, seed
        self.acknowledged = dict.fromkeys(STREAMS, 0)
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(stream,)) for stream in STREAMS]
        for thread in self._threads:
            thread.start()

    def _write(self, stream: str) -> None:
        chance = random.Random(f"{self.seed} {stream}")
        try:
            with self.server.client(timeout=5.0, patience=30.0) as client:
                seq = self.acknowledged[stream]
                while not self._stop.is_set():
                    again = max(0, seq - chance.randrange(3))  # some events are sent twice
                    batch = [event_at(stream, number) for number in range(again, seq + chance.randrange(1, 6))]
                    done = client.append(stream, batch, seq=again)
                    self.acknowledged[stream] = seq = done.next_seq
                    client.query(stream, "?", min_seq=seq)
        except Exception as error:
            self.failures.append(repr(error))

    def finish(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not self.failures, self.failures


def judge(server: Server, acknowledged: dict[str, int]) -> dict[str, int]:
    """What the store holds against what was acknowledged, without any server."""
    found = {"lost": 0, "mismatches": 0, "events": 0}
    with MemoryEngine.open(server.store, HashChain()) as engine:
        assert engine.settle()
        for stream, count in acknowledged.items():
            said = engine.query(stream, "?", tenant="ours")
            found["lost"] += max(0, count - said.as_of_seq)
            found["mismatches"] += said.answer != answer_of(stream, said.as_of_seq)
            found["events"] += said.as_of_seq
        assert engine.verify().clean
    return found


def test_a_server_killed_under_load_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    seed = SEED
    chance, server = random.Random(seed), Server(tmp_path)
    writers = Writers(server, seed)
    longest = 0.0
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.2, 0.8))
        server.kill()
        started = time.monotonic()
        server.start()
        longest = max(longest, time.monotonic() - started)
    time.sleep(0.3)
    server.kill()  # once more, with nobody to mend it
    writers._stop.set()
    seen = dict(writers.acknowledged)
    found = judge(server, seen)
    server.start()
    writers.finish()
    assert server.stop() == 0
    after = judge(server, writers.acknowledged)
    print(f"seed {seed}, {KILLS + 1} kills, ready again after {longest:.1f} s at most: {found}, then {after}")
    assert min(seen.values()) > KILLS  # the writers had got going
    assert (found["lost"], found["mismatches"]) == (0, 0), f"seed {seed}: {found}"
    assert (after["lost"], after["mismatches"]) == (0, 0), f"seed {seed}: {after}"


def test_a_server_stopped_under_load_finishes_what_it_accepted(tmp_path: Path) -> None:
    seed = SEED
    server = Server(tmp_path, drain_window=0.5)
    writers = Writers(server, seed)
    for _ in range(2):
        time.sleep(0.5)
        server.process.terminate()
        time.sleep(0.1)
        reply = server.request("GET", "/readyz", token="")
        assert (reply.status, reply.json["code"]) == (503, "draining")
        assert int(reply.headers["retry-after"]) >= 1
        # the window is open: those who have not noticed yet are served
        assert server.request("GET", "/v1/limits").status == 200
        assert server.process.wait(30) == 0
        found = judge(server, dict(writers.acknowledged))
        assert (found["lost"], found["mismatches"]) == (0, 0), f"seed {seed}: {found}"
        server.start()
    writers.finish()
    assert server.stop() == 0
    assert '"event": "stopped"' in server.log


def test_an_append_under_way_is_finished_before_the_server_ends(tmp_path: Path) -> None:
    server = Server(tmp_path, slow=0.3)
    replies: list[Any] = []

    def flush() -> None:
        with server.client(patience=0) as client:
            client.append("s", ["a"], seq=0)
            replies.append(client.flush("s", seq=1))

    thread = threading.Thread(target=flush)
    thread.start()
    time.sleep(0.25)
    assert server.stop() == 0
    thread.join()
    assert [reply.consolidated_seq for reply in replies] == [2]


def test_two_servers_never_write_to_one_store(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        child = Path(__file__).with_name("server_child.py")
        second = subprocess.run(
            [sys.executable, str(child), str(server.store), "0", str(server.tokens.path)],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert second.returncode != 0
        assert "StoreInUse" in second.stderr
    finally:
        assert server.stop() == 0


def test_a_stream_of_the_client_numbers_its_events(server: Server) -> None:
    with server.client() as client:
        stream = client.stream("numbered")
        assert stream.append(["a", "b"]).next_seq == 2
        assert stream.append(["c"]).next_seq == 3
        assert stream.flush().next_seq == 4
        assert stream.query("?").as_of_seq == 4
        other = client.stream("numbered")
        assert other.append(["d"]).next_seq == 5  # asked where the stream is
        with pytest.raises(SequenceConflict):
            stream.append(["e"])  # does not know of it, and does not renumber
        assert stream.resume() == 5
        assert stream.append(["e"]).next_seq == 6
        stream.snapshot("six")
        assert stream.restore("six").next_seq == 6
        assert stream.delete().existed
        assert stream.append(["again"]).next_seq == 1


def test_the_async_client_has_the_same_verbs(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url, token=server.token) as client:
            stream = client.stream("awaited")
            await asyncio.gather(*(stream.append([f"event {number}"]) for number in range(10)))
            assert (await stream.inspect()).next_seq == 10
            assert (await stream.flush()).consolidated_seq == 11
            assert (await stream.query("?")).as_of_seq == 11
            await asyncio.gather(*(client.append(f"many-{n}", ["a", "b"], seq=0) for n in range(40)))
            answers = await client.query_many([(f"many-{n}", "?") for n in range(40)])
            assert len({answer.answer for answer in answers if not isinstance(answer, ServiceError)}) == 1
            with pytest.raises(NotCaughtUp):
                await client.query("awaited", "?", min_seq=99, timeout=0.1)
            assert (await client.delete("awaited")).existed

    asyncio.run(run())
    names = {name for name in dir(Client) if not name.startswith("_")}
    assert names == {name for name in dir(AsyncClient) if not name.startswith("_")}


class Flaky(httpx.BaseTransport):
    """Loses connections before or after the server has seen the request."""

    def __init__(self, lose: list[str]) -> None:
        self._inner, self.lose, self.sent = httpx.HTTPTransport(), lose, 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        way = self.lose.pop(0) if self.lose else ""
        if way == "before":
            raise httpx.ConnectError("no connection")
        self.sent += 1
        reply = self._inner.handle_request(request)
        reply.read()
        if way == "after":
            raise httpx.ReadError("the reply is lost")
        if way.isdigit():
            problem = QueueFull("later").problem()
            return httpx.Response(int(way), json=problem, headers={"content-type": "application/problem+json"})
        return reply


def test_lost_replies_double_nothing(server: Server) -> None:
    flaky = Flaky(["before", "after", "after", "before", "429"])
    with server.client(transport=flaky) as client:
        done = client.append("flaky", ["a", "b"], seq=0)
    assert flaky.sent == 4
    assert (done.accepted, done.duplicates, done.next_seq) == (0, 2, 2)


def test_events_after_a_call_in_doubt_are_not_taken_for_it(server: Server) -> None:
    first, others = [f"a{number}" for number in range(100)], [f"b{number}" for number in range(10)]
    flaky = Flaky(["", "after"])
    with server.client(transport=flaky, patience=0) as client:
        stream = client.stream("doubt")
        with pytest.raises(NotReady):
            stream.append(first)  # which is stored, more events than the server has digests of
        with pytest.raises(BadInput):
            stream.append("no list")
        assert stream.append(others).accepted == 10
        assert client.inspect("doubt").next_seq == 110
        flaky.lose = ["after"]
        with pytest.raises(NotReady):
            stream.append(first)
        assert stream.append(deque(first)).duplicates == 100  # the same again is still the same, in any sequence
        assert stream.next_seq == client.inspect("doubt").next_seq == 210


def test_events_after_a_cancelled_call_are_not_taken_for_it(server: Server) -> None:
    class Stuck(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            reply = await super().handle_async_request(request)
            if b"a99" in request.content:
                await asyncio.sleep(60)
            return reply

    async def run() -> None:
        async with AsyncClient(server.url, token=server.token, transport=Stuck()) as client:
            stream = client.stream("cancelled")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await stream.append([f"a{number}" for number in range(100)])
            assert (await stream.append([f"b{number}" for number in range(10)])).accepted == 10

    asyncio.run(run())


def test_what_has_no_number_is_repeated_under_its_key_and_made_once(server: Server) -> None:
    lost = ["before", "after", "after", "429"]
    flaky = Flaky(list(lost))
    with server.client(transport=flaky) as client:
        done = client.append("blind", ["a", "b"])
        assert flaky.sent == 4
        assert (done.accepted, done.duplicates, done.next_seq) == (2, 0, 2)
        assert client.append("blind", ["a", "b"]).next_seq == 4  # another call, with a key of its own
        flaky.lose = list(lost)
        assert client.flush("blind").next_seq == 5
        client.snapshot("blind", "copy")
        flaky.lose = list(lost)
        assert client.rebuild("blind", ["x"]).next_seq == 1
        flaky.lose = list(lost)
        assert client.restore("blind", "copy").next_seq == 5
        about = client.inspect("blind")
        assert (about.next_seq, about.generation) == (5, 2)


def test_what_a_gateway_says_is_tried_again_whatever_words_it_has(server: Server) -> None:
    bodies: list[dict[str, Any]] = [{"code": 503, "message": "no upstream"}, {"code": "UNAVAILABLE", "self": 1}]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json=bodies.pop()) if bodies else httpx.Response(200, json={"ready": True})

    with server.client(transport=httpx.MockTransport(answer)) as client:
        assert client.ready()
        assert bodies == []


def test_patience_ends(server: Server) -> None:
    with Client("http://127.0.0.1:9", token="x", patience=0.3) as client:
        started = time.monotonic()
        with pytest.raises(NotReady, match="can't be reached"):
            client.append("s", ["a"], seq=0)
        assert time.monotonic() - started < 3
    flaky = Flaky(["429"] * 50)
    with server.client(transport=flaky, patience=0.3) as client, pytest.raises(QueueFull):
        client.append("patient", ["a"], seq=0)


def test_what_takes_a_server_minutes_is_waited_for(server: Server) -> None:
    waits: dict[str, float] = {}

    def note(request: httpx.Request) -> httpx.Response:
        waits[request.url.path.rpartition("/")[2]] = request.extensions["timeout"]["read"]
        raise httpx.ReadTimeout("too long")

    with server.client(transport=httpx.MockTransport(note), patience=0) as client:
        asked = lambda: client.query("s", "?", timeout=30.0)  # noqa: E731
        for call in (client.verify, client.backup, lambda: client.rebuild("s"), lambda: client.inspect("s"), asked):
            with pytest.raises(NotReady):
                call()
    assert waits == {"verify": 310.0, "backup": 310.0, "rebuild": 310.0, "s": 10.0, "query": 31.0}


def test_a_client_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.delenv("REMEM_TOKEN", raising=False)
    with pytest.raises(ValueError, match="REMEM_TOKEN"):
        Client(server.url)
    for url in ("localhost:8080", "http://", "http://here:port", "http://[::1"):
        with pytest.raises(BadInput, match="expected http://"):
            Client(url, token="x")
    with pytest.raises(ValueError, match="no token has"):
        Client(server.url, token="a b")
    monkeypatch.setenv("REMEM_TOKEN", server.token)
    with Client(server.url) as client:
        assert client.ready()
        assert client.models()[0]["fingerprint"] == "chain-3"
        for events in ("text", [{1, 2}], [float("nan")]):
            with pytest.raises(ValueError):  # noqa: PT011
                client.append("s", events)
        for stream in ("../x", "a/b", "", "a?b"):
            with pytest.raises(ValueError, match="is no name of a stream"):
                client.inspect(stream)


def test_importing_remem_needs_none_of_the_extras() -> None:
    code = (
        "import sys; import remem; from remem.service import MemoryEngine; "
        "print([name for name in ('httpx', 'fastapi', 'uvicorn', 'prometheus_client', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_question_past_its_time_is_not_asked(tmp_path: Path) -> None:
    server = Server(tmp_path, slow=0.4, drain_seconds=1.0)
    try:
        with server.client(patience=0) as client:
            client.append("s", ["a", FLUSH], seq=0)
            client.append("t", ["a"], seq=0)
            with pytest.raises((Deadline, NotCaughtUp)):
                client.query("t", "?", timeout=0.05)
            assert client.query("s", "?", min_seq=2).as_of_seq == 2
    finally:
        assert server.stop() == 0


def test_an_append_that_nobody_waits_for_is_stored_all_the_same(tmp_path: Path) -> None:
    with MemoryEngine.open(tmp_path / "memories.db", HashChain()) as engine:
        begun = [engine.begin_append("s", [f"event {number}"], seq=number) for number in range(50)]
        assert not begun[7].cancel()
        assert [future.result(10).next_seq for future in begun] == list(range(1, 51))
        with pytest.raises(SequenceGap):
            engine.begin_append("s", ["x"], seq=99).result(10)
        assert engine.query("s", "?").as_of_seq == 50


def test_every_error_comes_back_as_the_class_it_was() -> None:
    kinds = ServiceError.__subclasses__()
    assert len(kinds) > 25
    for kind in kinds:
        back = error_of(kind("a sentence", seq=3).problem())
        assert (type(back), str(back), back.details) == (kind, "a sentence", {"seq": 3})
    assert type(error_of({"code": "of a newer server", "detail": "x"})) is ServiceError
