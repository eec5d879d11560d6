"""What came after the first release, over a real connection: expiry, keys, imports, backups, candidates."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_parts import Server
from service_parts import POISON, HashChain, RedisServer, folded
from test_kinds import CANDIDATES, make_kind

from remem.client import AsyncClient, Client
from remem.server.app import make_app
from remem.server.metrics import Metrics
from remem.server.service import Service
from remem.server.settings import ServerSettings
from remem.server.tokens import SCOPES, TokenFile
from remem.service import MemoryEngine
from remem.service.errors import (
    Expired,
    InvalidValue,
    KeyReused,
    ModelMismatch,
    NotReady,
    SequenceGap,
    StreamExists,
    TooLarge,
    UnknownStream,
)

OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client(patience=0) as opened:
        yield opened


def test_a_stream_expires_over_http(server: Server, client: Client) -> None:
    assert client.create("brief", ttl=1.5)
    stream = client.stream("brief")
    stream.append(["a", "b"])
    about = client.inspect("brief")
    assert about.ttl == 1.5
    assert about.expires is not None
    assert abs(about.expires - time.time() - 1.5) < 1
    with pytest.raises(StreamExists):
        client.create("brief", ttl=7)
    deadline = time.monotonic() + 10
    while True:
        reply = server.request("POST", "/v1/streams/brief/query", {"question": "?"})
        if reply.status == 410:
            break
        assert (reply.status, time.monotonic() < deadline) == (200, True)
        time.sleep(0.1)
    assert reply.json["code"] == "expired"
    with pytest.raises(Expired):
        client.inspect("brief")
    (many,) = client.query_many([("brief", "?")])
    assert isinstance(many, Expired)
    assert "brief" not in client.list(limit=1000).streams
    with pytest.raises(SequenceGap) as gap:
        stream.append(["c"])
    assert gap.value.details["expected_seq"] == 0
    assert stream.resume() == 0
    assert stream.append(["x"]).next_seq == 1
    assert stream.query("?").answer == folded(["x"])


def test_a_streams_life_is_set_over_http(server: Server, client: Client) -> None:
    client.create("life", ttl=600)
    stream = client.stream("life")
    stream.append(["a"])
    for ttl in (60.0, None, 6000.0):
        stream.set_ttl(ttl)
        assert client.inspect("life").ttl == ttl
    assert server.request("PATCH", "/v1/streams/life", {"ttl": 7}).json == {"ttl": 7}
    assert (
        server.request("PATCH", "/v1/streams/life", {}).json["code"] == "schema"
    )  # null is for ever, nothing is a slip
    with pytest.raises(UnknownStream):
        client.set_ttl("nobody", 5)
    assert server.request("PATCH", "/v1/streams/life", {"ttl": 5}, token=server.scoped["append"]).status == 403

    async def elsewhere() -> None:
        async with AsyncClient(server.url, token=server.token) as other:
            await other.stream("life").set_ttl(0.01)

    asyncio.run(elsewhere())
    with pytest.raises(Expired):
        stream.query("?")


def test_a_key_gives_the_first_reply_again_or_is_refused(server: Server) -> None:
    def send(key: str, body: Any, verb: str = "events") -> Any:
        return server.request("POST", f"/v1/streams/keyed/{verb}", body, headers={"Idempotency-Key": key})

    first = send("k-1", {"events": ["a"]})
    assert (first.status, first.json["accepted"], first.json["next_seq"]) == (200, 1, 1)
    assert send("k-2", {"events": ["b"]}).json["next_seq"] == 2
    again = send("k-1", {"events": ["a"]})
    assert (again.status, again.json["accepted"], again.json["next_seq"]) == (200, 1, 1)
    other = send("k-1", {"events": ["other"]})
    assert (other.status, other.json["code"]) == (422, "key_reused")
    assert send("k-1", {"name": "copy"}, "snapshot").json["code"] == "key_reused"
    for key in ("a b", "x" * 257, "é".encode().decode("latin-1"), ""):
        reply = send(key, {"events": ["z"]})
        assert (reply.status, reply.json["code"]) == (400, "invalid_value"), key
    assert send("k-1", {"events": ["a"], "seq": 0}).json["duplicates"] == 1  # the number counts
    with server.client(patience=0) as client:
        assert client.inspect("keyed").next_seq == 2
        with pytest.raises(KeyReused):
            client.rebuild("keyed", ["x"], idempotency_key="k-2")


def test_keys_outlive_a_killed_server(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        with server.client() as client:
            assert client.append("s", ["a", "b"], idempotency_key="mine").next_seq == 2
            server.kill()
            server.start()
            assert client.append("s", ["a", "b"], idempotency_key="mine").next_seq == 2
            assert client.query("s", "?").answer == folded(["a", "b"])
    finally:
        assert server.stop() == 0


def test_a_call_that_is_under_way_is_not_begun_again(tmp_path: Path) -> None:
    server = Server(tmp_path, slow=1.0)
    headers = {"Idempotency-Key": "once"}

    def rebuild() -> Any:
        return server.request("POST", "/v1/streams/s/rebuild", {"events": ["a", "b", "c"]}, headers=headers)

    try:
        with server.client() as client, ThreadPoolExecutor(2) as pool:
            client.append("s", ["x"], seq=0)
            first = pool.submit(rebuild)
            time.sleep(0.3)
            second = rebuild()
            assert (second.status, second.json["code"]) == (409, "in_progress")
            patient = pool.submit(lambda: client.rebuild("s", ["a", "b", "c"], idempotency_key="once"))
            assert first.result().json["next_seq"] == 3
            assert patient.result().next_seq == 3  # it waited for the first one's reply
            assert client.inspect("s").generation == 1
    finally:
        assert server.stop() == 0


def test_a_memory_goes_from_one_name_to_another(server: Server, client: Client) -> None:
    events = ["a", "b", "c", "d"]
    client.append("from", events, seq=0)
    archive = client.export("from")
    assert client.import_archive("to", archive).next_seq == 4
    assert client.import_archive("to", archive).next_seq == 4
    stream = client.stream("third")
    assert stream.import_archive(archive).next_seq == 4
    assert stream.append(["e"]).next_seq == 5
    assert stream.query("?").answer == folded([*events, "e"])
    client.append("to", ["f"], seq=4)
    with pytest.raises(StreamExists):
        client.import_archive("to", archive)
    path = "/v1/streams/new/memory"
    theirs = server.request("PUT", path, archive, headers=OCTETS, token=server.scoped["export"])
    assert theirs.status == 200
    with pytest.raises(UnknownStream):
        client.inspect("new")  # it is theirs
    assert server.request("PUT", path, archive).json["code"] == "unsupported_type"
    assert server.request("PUT", path, archive, headers=OCTETS | {"Content-Encoding": "gzip"}).status == 415
    for data in (b"", b"x" * 100, archive[:-1], archive + b"x", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}"):
        reply = server.request("PUT", path, data, headers=OCTETS)
        assert (reply.status, reply.json["code"]) == (400, "invalid_value"), data[:20]
    with MemoryEngine.open(":memory:", HashChain(4)) as other:
        other.append("s", ["a"])
        foreign = other.export("s")
    with pytest.raises(ModelMismatch):
        client.import_archive("new", foreign)
    with pytest.raises(InvalidValue):
        client.import_archive("new", "text")  # type: ignore[arg-type]


def test_an_archive_is_bounded_before_it_is_read(server: Server, client: Client) -> None:
    limit = client.limits()["archive_bytes"]
    huge = {**OCTETS, "Content-Length": str(limit + 1)}
    reply = server.request("PUT", "/v1/streams/new/memory", b"", headers=huge)
    assert (reply.status, reply.json["limit"]) == (413, "archive_bytes")
    with pytest.raises((TooLarge, NotReady)):  # the reply may come while the body is still sent
        client.import_archive("new", b"x" * (limit + 1))
    large = server.request("PUT", "/v1/streams/new/memory", b"x" * (2**20 + 1), headers=OCTETS)
    assert large.json["code"] == "invalid_value"  # past the bound of JSON bodies, within its own


def test_a_backup_is_a_whole_store_of_one_moment(tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    server = Server(tmp_path, backups=str(tmp_path / "copies"))
    try:
        with server.client() as client, ThreadPoolExecutor(5) as pool:
            client.create("kept", retention="all")
            stop = time.monotonic() + 2

            def write(name: str) -> int:
                stream, number = client.stream(name), 0
                while time.monotonic() < stop:
                    stream.append([f"{name} {number}", f"{name} {number + 1}"])
                    number += 2
                return number

            writers = [pool.submit(write, name) for name in ("kept", "b", "c", "d")]
            time.sleep(0.5)
            made = [client.backup() for _ in range(3)]
            written = [writer.result() for writer in writers]
        assert len({each["file"] for each in made}) == 3
        for each in made:
            copy = tmp_path / "copies" / each["file"]
            assert copy.stat().st_size == each["bytes"]
            assert copy.stat().st_mode & 0o077 == 0
            with MemoryEngine.open(copy, HashChain()) as engine:
                assert engine.settle()
                found = engine.verify()
                assert (found.problems, found.refolded) == ([], 1)
                for name, most in zip(("kept", "b", "c", "d"), written, strict=True):
                    said = engine.query(name, "?", tenant="ours")
                    assert 0 < said.as_of_seq <= most
                    assert said.as_of_seq % 2 == 0  # a batch is there whole or not at all
                    assert said.answer == folded([f"{name} {number}" for number in range(said.as_of_seq)])
        assert not list((tmp_path / "copies").glob("*.part"))
    finally:
        assert server.stop() == 0


def test_a_backup_holds_nothing_that_was_deleted_before_and_replaces_nothing(tmp_path: Path) -> None:
    with MemoryEngine.open(tmp_path / "memories.db", HashChain()) as engine:
        engine.append("secret", ["zebra-marker"], seq=0)
        engine.append("other", ["a"], seq=0)
        engine.delete("secret")
        copy = tmp_path / "copy.db"
        assert engine.backup(copy) == copy.stat().st_size
        assert b"zebra-marker" not in copy.read_bytes()
        with pytest.raises(InvalidValue, match="replaces nothing"):
            engine.backup(copy)
        with pytest.raises(Exception, match="can't be copied"):
            engine.backup(tmp_path / "no folder" / "copy.db")
        with MemoryEngine.open(tmp_path / "memories.db", None, read_only=True) as reader:
            assert reader.backup(tmp_path / "second.db") == copy.stat().st_size
    connection = sqlite3.connect(copy)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    with MemoryEngine.open(":memory:", HashChain()) as engine, pytest.raises(InvalidValue, match="no file"):
        engine.backup(tmp_path / "third.db")


def test_a_store_that_is_no_file_is_not_backed_up(redis_server: RedisServer, tmp_path: Path) -> None:
    server = Server(tmp_path, store=redis_server.url)
    try:
        reply = server.request("POST", "/v1/admin/backup")
        assert (reply.status, reply.json["code"]) == (400, "invalid_value")
    finally:
        assert server.stop() == 0


def test_a_model_that_chooses_is_asked_with_candidates(tmp_path: Path) -> None:
    kind = make_kind("passage")
    engine = MemoryEngine.open(tmp_path / "memories.db", kind.bundle)
    tokens = TokenFile(tmp_path / "tokens.json")
    service = Service(engine, tokens, ServerSettings(), Metrics())
    _, guarded = make_app(service)
    token = tokens.add("somebody", SCOPES)

    async def run() -> None:
        transport = httpx.ASGITransport(app=guarded)
        async with AsyncClient("http://server", token=token, transport=transport, patience=0) as client:
            await client.append("s", kind.stream, seq=0)
            said = await client.query("s", "who swims", candidates=CANDIDATES, min_seq=len(kind.stream))
            wanted = engine.query("s", kind.question, tenant="somebody").answer
            assert said.answer.answer == wanted.answer
            assert {answer for answer, _ in said.answer.top} == set(CANDIDATES)
            stream = client.stream("s")
            assert (await stream.query("who swims", candidates=CANDIDATES)).answer == said.answer
            (many,) = await client.query_many([("s", {"question": "who swims", "candidates": CANDIDATES})])
            assert not isinstance(many, Exception)
            assert many.answer.answer == wanted.answer
            for candidates in (None, [3], ["x" * 9000]):
                with pytest.raises((InvalidValue, TooLarge)):
                    await client.query("s", "who swims", candidates=candidates)
            assert (await client.models())[0]["items"] == "passage"

    try:
        asyncio.run(run())
    finally:
        service.close()


def test_candidates_for_a_model_that_takes_none_are_refused(tmp_path: Path) -> None:
    with MemoryEngine.open(":memory:", make_kind("frames").bundle) as engine:
        engine.append("s", [[0.0] * 5], seq=0)
        with pytest.raises(InvalidValue):
            engine.query("s", {"question": "who swims", "candidates": ["a dog"]})


def test_a_server_that_can_not_write_to_redis_is_not_ready(redis_server: RedisServer, tmp_path: Path) -> None:
    import redis

    server, there = Server(tmp_path, store=redis_server.url), redis.Redis(port=redis_server.port)
    try:
        assert server.request("GET", "/readyz").status == 200
        there.config_set("maxmemory", 1)
        assert server.request("GET", "/readyz").status == 503
        there.config_set("maxmemory", 0)
        assert server.request("GET", "/readyz").status == 200
        MemoryEngine.open(redis_server.url, None).close()  # takes the store over
        reply = server.request("GET", "/readyz")
        assert (reply.status, "stale_epoch" in reply.json["detail"]) == (503, True)
    finally:
        there.config_set("maxmemory", 0)
        assert server.stop() == 0


def test_tokens_stay_good_while_their_file_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remem.server.tokens._LOOK_AGAIN_SECONDS", -1.0)
    tokens = TokenFile(tmp_path / "tokens.json")
    first, second = tokens.add("somebody", ["query"]), tokens.add("another", ["query"])
    whole = tokens.path.read_text()
    tokens.path.write_text(whole[:-20])
    assert tokens.find(first) is not None
    assert tokens.find("remem_none") is None
    tokens.path.write_text(whole)
    mended = TokenFile(tokens.path)
    assert mended.remove(mended.callers[0].id)
    assert tokens.find(first) is None
    assert tokens.find(second) is not None


def test_a_stream_that_became_degraded_shows_in_the_metrics(server: Server, client: Client) -> None:
    def given_up() -> float:
        (line,) = (
            line for line in server.request("GET", "/metrics").body.decode().splitlines()
            if line.startswith("rm_streams_given_up ")
        )  # fmt: skip
        return float(line.split()[1])

    before = given_up()
    for _ in range(2):  # the same stream for the same reason counts once
        client.append("poisoned", [POISON, "b", "c"])
        deadline = time.monotonic() + 10
        while client.inspect("poisoned").state != "degraded" and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
    assert given_up() == before + 1
    client.delete("poisoned")
