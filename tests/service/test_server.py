"""The server's promises over a real connection: verbs, tokens, tenants, limits, health, and logs that tell nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server_parts import Reply, Server
from service_parts import HashChain, RedisServer

from remem.client import Client
from remem.server.app import make_app
from remem.server.guard import OPEN
from remem.server.metrics import Metrics
from remem.server.service import Service
from remem.server.settings import ServerSettings
from remem.server.tokens import TokenFile
from remem.service import FLUSH, Event, MemoryEngine
from remem.service.errors import (
    QueueFull,
    ScopeMissing,
    SequenceConflict,
    SequenceGap,
    Unauthorized,
    UnknownSnapshot,
    UnknownStream,
)
from remem.service.events import cut_events, pack_event

MARKER = "xyzzy-marker"


def folded(events: list[Any]) -> str:
    """What the hash chain answers after these events."""
    chain = HashChain()
    whole = [event if isinstance(event, Event) else Event(event) for event in events]
    cut = cut_events([pack_event(event.item, event.ends_segment) for event in whole], chain.segment_events)
    memory = chain.fold(chain.initial_memory(), [*cut.segments, *([cut.rest] if cut.rest else [])])
    return chain.answer(memory)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client(patience=0) as opened:
        yield opened


def test_the_verbs_do_over_http_what_they_do_in_the_engine(client: Client) -> None:
    events = ["a", 7, Event("b", ends_segment=True), "c"]
    done = client.append("verbs", events, seq=0)
    assert (done.accepted, done.duplicates, done.next_seq) == (4, 0, 4)
    again = client.append("verbs", events, seq=0)
    assert (again.accepted, again.duplicates, again.next_seq) == (0, 4, 4)
    said = client.query("verbs", "?", min_seq=4)
    assert (said.answer, said.as_of_seq, said.stale) == (folded(events), 4, False)
    assert client.query("verbs", "?", tail="exclude", min_seq=3).answer == folded(events[:3])
    client.snapshot("verbs", "before")
    flushed = client.flush("verbs", seq=4)
    assert (flushed.accepted, flushed.consolidated_seq) == (1, 5)
    client.append("verbs", ["d"], seq=5)
    late = client.flush("verbs", seq=4)  # sent again, with a later event behind it
    assert (late.accepted, late.duplicates, late.consolidated_seq, late.next_seq) == (0, 1, 5, 6)
    assert client.query("verbs", "?").answer == folded([*events, FLUSH, "d"])
    seen = client.inspect("verbs")
    assert (seen.tenant, seen.next_seq, seen.snapshots, seen.state) == ("ours", 6, ["before"], "compatible")
    assert client.restore("verbs", "before").next_seq == 4
    assert client.query("verbs", "?").answer == folded(events)
    assert client.rebuild("verbs", ["x", "y"]).next_seq == 2
    assert client.query("verbs", "?").answer == folded(["x", "y"])
    assert client.export("verbs")[:1] != b"{"
    assert client.create("kept", retention="all")
    assert not client.create("kept", retention="all")
    assert "verbs" in client.list(prefix="ver").streams
    assert client.verify().clean
    assert client.delete("verbs").existed
    assert not client.delete("verbs").existed


def test_errors_are_the_engines_own(client: Client) -> None:
    with pytest.raises(UnknownStream):
        client.query("nowhere", "?")
    with pytest.raises(UnknownStream):
        client.inspect("nowhere")
    client.append("errors", ["a", "b"], seq=0)
    with pytest.raises(SequenceGap) as gap:
        client.append("errors", ["d"], seq=3)
    assert gap.value.details["expected_seq"] == 2
    with pytest.raises(SequenceConflict):
        client.append("errors", ["other"], seq=1)
    with pytest.raises(UnknownSnapshot):
        client.restore("errors", "none")
    answers = client.query_many([("errors", "?"), ("nowhere", "?")])
    assert not isinstance(answers[0], Exception)
    assert answers[0].answer == folded(["a", "b"])
    assert isinstance(answers[1], UnknownStream)


def test_a_problem_is_a_document_with_a_code_and_a_request(server: Server) -> None:
    reply = server.request("GET", "/v1/streams/nowhere")
    assert reply.status == 404
    assert reply.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "code", "detail", "request"} <= reply.json.keys()
    assert reply.json["request"] == reply.headers["x-request-id"]


def routes() -> list[tuple[str, str]]:
    """Every route of the application, found by walking it."""
    engine = MemoryEngine.open(":memory:", HashChain())
    service = Service(engine, TokenFile(Path("no-such-file")), ServerSettings(), Metrics())
    app, _ = make_app(service)
    found = [
        (method, route.path.replace("{stream}", "some"))  # type: ignore[attr-defined]
        for route in app.routes
        for method in sorted(getattr(route, "methods", set()))
        if method != "HEAD"
    ]
    service.close()
    return found


ROUTES = routes()
GUARDED = [(method, path) for method, path in ROUTES if path not in OPEN]


def test_there_are_routes_to_guard() -> None:
    assert len(GUARDED) >= 19
    assert {path for _, path in ROUTES} - {path for _, path in GUARDED} == OPEN


@pytest.mark.parametrize(("method", "path"), GUARDED, ids=lambda value: value)
def test_every_route_refuses_missing_foreign_and_underscoped_tokens(server: Server, method: str, path: str) -> None:
    body = {} if method in ("POST", "PUT", "PATCH") else None
    for token in ("", "remem_" + "A" * 43, server.token[:-1], server.token + "x", "é", "a b"):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        reply = server.request(method, path, body, token="", headers=headers)
        assert (reply.status, reply.json["code"]) == (401, "unauthorized")
    for headers in ({"Authorization": server.token}, {"Authorization": f"Basic {server.token}"}):
        assert server.request(method, path, body, token="", headers=headers).status == 401
    for scope, token in server.scoped.items():
        if (path, scope) == ("/v1/admin/drain", "admin"):
            continue  # it would be obeyed
        reply = server.request(method, path, body, token=token)
        assert (reply.status == 403) == (scope != SCOPE_OF[method, path]), (scope, reply)
        assert reply.status != 403 or reply.json["code"] == "scope"


SCOPE_OF = {
    ("PUT", "/v1/streams/some"): "append",
    ("PATCH", "/v1/streams/some"): "delete",
    ("POST", "/v1/streams/some/events"): "append",
    ("POST", "/v1/streams/some/flush"): "append",
    ("POST", "/v1/streams/some/snapshot"): "append",
    ("POST", "/v1/streams/some/query"): "query",
    ("POST", "/v1/query"): "query",
    ("GET", "/v1/streams/some"): "inspect",
    ("GET", "/v1/streams"): "inspect",
    ("GET", "/v1/models"): "inspect",
    ("GET", "/v1/limits"): "inspect",
    ("DELETE", "/v1/streams/some"): "delete",
    ("POST", "/v1/streams/some/restore"): "delete",
    ("POST", "/v1/streams/some/rebuild"): "delete",
    ("GET", "/v1/streams/some/memory"): "export",
    ("PUT", "/v1/streams/some/memory"): "export",
    ("POST", "/v1/admin/backup"): "admin",
    ("POST", "/v1/admin/verify"): "admin",
    ("POST", "/v1/admin/drain"): "admin",
    ("GET", "/metrics"): "metrics",
}


def test_a_token_taken_back_is_refused_within_seconds(server: Server) -> None:
    token = server.tokens.add("passing", ["inspect"])
    deadline = time.monotonic() + 5
    while server.request("GET", "/v1/streams", token=token).status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert server.tokens.remove(server.tokens.callers[-1].id)
    while server.request("GET", "/v1/streams", token=token).status != 401:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert token not in server.tokens.path.read_text()


def test_two_tenants_cannot_see_each_other(server: Server) -> None:
    theirs = server.scoped
    with server.client(patience=0) as ours:
        ours.append("shared-name", ["our event"], seq=0)
        ours.append("only-ours", ["our event"], seq=0)
    for path in ("", "/memory"):
        scope = "export" if path else "inspect"
        assert server.request("GET", f"/v1/streams/only-ours{path}", token=theirs[scope]).status == 404
    asked = server.request("POST", "/v1/streams/only-ours/query", {"question": "?"}, token=theirs["query"])
    assert (asked.status, asked.json["code"]) == (404, "unknown_stream")
    many = {"queries": [{"stream": "only-ours", "question": "?"}]}
    found = server.request("POST", "/v1/query", many, token=theirs["query"])
    assert found.json["results"][0]["problem"]["code"] == "unknown_stream"
    assert server.request("GET", "/v1/streams", token=theirs["inspect"]).json["streams"].count("only-ours") == 0
    sent = {"seq": 0, "events": ["their event"]}
    assert server.request("POST", "/v1/streams/shared-name/events", sent, token=theirs["append"]).json["accepted"] == 1
    gone = server.request("DELETE", "/v1/streams/only-ours", token=theirs["delete"])
    assert (gone.status, gone.json["existed"]) == (200, False)
    for body in (
        {"tenant": "ours", "seq": 1, "events": ["x"]},
        {"seq": 1, "events": [{"item": "x", "tenant": "ours"}]},
    ):
        assert server.request("POST", "/v1/streams/shared-name/events", body, token=theirs["append"]).status == 422
    with server.client(patience=0) as ours:
        assert ours.query("shared-name", "?").answer == folded(["our event"])
        assert ours.inspect("only-ours").next_seq == 1
    answer = server.request("POST", "/v1/streams/shared-name/query", {"question": "?"}, token=theirs["query"])
    assert answer.json["answer"] == folded(["their event"])


def test_logs_hold_nothing_of_what_was_sent(server: Server) -> None:
    with server.client(patience=0) as client:
        client.append(f"{MARKER}-stream", [f"{MARKER} in an event"], seq=0)
        client.query(f"{MARKER}-stream", f"{MARKER} in a question")
        client.snapshot(f"{MARKER}-stream", f"{MARKER}-snapshot")
    bad = [f'{{"events": ["{MARKER}"'.encode(), {"events": [MARKER], "more": MARKER}, {"events": [{"item": True}]}]
    for body in bad:
        assert server.request("POST", f"/v1/streams/{MARKER}/events", body).status in (400, 422)
    assert server.request("GET", f"/{MARKER}").status == 404
    assert server.request("GET", f"/v1/streams/{MARKER}?limit={MARKER}").status == 404
    assert server.request("GET", "/v1/streams", token=f"remem_{MARKER}").status == 401
    server.raw(f"GARBAGE {MARKER}\r\n\r\n".encode())
    server.raw(f"GET /{MARKER} HTTP/1.1\r\nHost: x\r\nX: {MARKER}\nY: z\r\n\r\n".encode())
    time.sleep(0.3)  # lines are written ten times a second
    lines = [json.loads(line) for line in server.log.splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert len(requests) >= 8
    assert {"time", "level", "request", "method", "route", "status", "ms"} <= requests[-1].keys()
    assert MARKER not in server.log
    assert server.token not in server.log


def test_metrics_count_and_name_nobody(server: Server) -> None:
    def figure(name: str) -> float:
        text = server.request("GET", "/metrics").body.decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))

    accepted, duplicates = figure("rm_events_accepted_total"), figure("rm_events_duplicate_total")
    with server.client(patience=0) as client:
        client.append("metered", ["a", "b"], seq=0)
        client.append("metered", ["b", "c"], seq=1)
    assert figure("rm_events_accepted_total") == accepted + 3
    assert figure("rm_events_duplicate_total") == duplicates + 1
    assert figure("rm_store_commit_duration_seconds_count") > 0
    text = server.request("GET", "/metrics").body.decode()
    assert 'rm_model_info{fingerprint="chain-3"' in text
    assert "metered" not in text
    assert "ours" not in text


def test_health_is_open_and_the_rest_is_not(server: Server) -> None:
    for path in sorted(OPEN):
        assert server.request("GET", path, token="").status == 200
    assert server.request("GET", "/docs", token="").status == 401
    assert server.request("GET", "/no/such/path").json["code"] == "unknown_route"
    reply = server.request("PATCH", "/v1/models")
    assert (reply.status, reply.json["code"], reply.headers["allow"]) == (405, "wrong_method", "GET")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "in the clear"),
        ({"host": "example.org"}, "in the clear"),
        ({"port": 70000}, "0 to 65535"),
        ({"tls_cert": "a.pem"}, "certificate and its key"),
        ({"queue": 0}, "queue is 0"),
        ({"tenant_rate": -1.0}, "tenant_rate is -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ServerSettings(**settings)
    assert ServerSettings(host="0.0.0.0", behind_proxy=True).host == "0.0.0.0"
    assert ServerSettings(host="::1").is_local


def test_tokens_are_kept_as_hashes_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tokens.json"
    tokens = TokenFile(path)
    made = tokens.add("somebody", ["query", "append"])
    assert made not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    found = TokenFile(path).find(made)
    assert found is not None
    assert (found.tenant, found.scopes) == ("somebody", ("append", "query"))
    assert tokens.find(made[:-1]) is None
    assert not tokens.remove("nobody")
    for scopes in ([], ["everything"]):
        with pytest.raises(ValueError, match="expected some of"):
            tokens.add("somebody", scopes)
    for text in ("", "[]", '{"format": 2, "tokens": []}', '{"format": 1, "tokens": [{"id": "a"}]}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="is not a file of tokens"):
            TokenFile(path)


def test_tokens_made_by_another_process_meanwhile_are_kept(tmp_path: Path) -> None:
    served = TokenFile(tmp_path / "tokens.json")  # before a model is loaded, which takes seconds
    made = TokenFile(served.path).add("acme", ["query"])
    assert served.add_first("default", ["query"]) is None
    second = TokenFile(served.path)
    other = served.add("other", ["query"])
    assert second.remove(second.callers[0].id)
    assert (TokenFile(served.path).callers, second.find(made)) == ([second.find(other)], None)


def test_a_wrong_token_and_scope_are_typed_errors(server: Server) -> None:
    with server.client(token="remem_wrong") as client, pytest.raises(Unauthorized):
        client.inspect("some")
    with server.client(token=server.scoped["query"]) as client, pytest.raises(ScopeMissing) as refused:
        client.append("some", ["a"])
    assert refused.value.details["scope"] == "append"


def test_a_rate_is_refused_at_once_with_a_time_to_wait(tmp_path: Path) -> None:
    server = Server(tmp_path, tenant_rate=5.0)
    try:
        replies = [server.request("GET", "/v1/limits") for _ in range(12)]
        refused = [reply for reply in replies if reply.status == 429]
        assert len(refused) >= 3
        assert refused[0].json["code"] == "over_quota"
        assert int(refused[0].headers["retry-after"]) >= 1
        assert server.request("GET", "/livez").status == 200
        assert server.request("GET", "/v1/limits", token=server.scoped["inspect"]).status == 200
        with server.client() as client:  # waits as it was told
            assert client.limits()["tenant_rate"] == 5.0
    finally:
        assert server.stop() == 0


def test_a_tail_that_does_not_shrink_is_refused_with_429(tmp_path: Path) -> None:
    server = Server(tmp_path, slow=4.0, deadline=1.5, drain_seconds=0.2)
    try:
        with server.client(patience=0) as client:
            for number in range(4):
                client.append("full", ["e"] * 1000, seq=1000 * number)
            with pytest.raises(QueueFull) as refused:
                client.append("full", ["e"] * 1000, seq=4000)
            assert refused.value.details["tail_events"] > 3000
        assert server.request("GET", "/livez").status == 200
    finally:
        assert server.stop() == 0


def test_a_full_queue_is_refused_at_once_and_the_rest_is_served(tmp_path: Path) -> None:
    server = Server(tmp_path, queue=2, slow=0.2)
    try:
        with server.client() as client:
            for number in range(12):
                client.append(f"s{number}", ["a"], seq=0)

        def ask(number: int) -> tuple[Reply, float]:
            started = time.monotonic()
            reply = server.request("POST", f"/v1/streams/s{number}/query", {"question": "?"})
            return reply, time.monotonic() - started

        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(ask, range(12)))
        refused = [(reply, seconds) for reply, seconds in found if reply.status == 429]
        served = [reply for reply, _ in found if reply.status == 200]
        assert len(refused) + len(served) == 12
        assert len(served) >= 3
        assert len(refused) >= 3
        assert all(reply.json["code"] == "queue_full" and "retry-after" in reply.headers for reply, _ in refused)
        assert min(seconds for _, seconds in refused) < 0.15
        with server.client() as client, ThreadPoolExecutor(12) as pool:  # patience gets everybody served
            answers = {said.answer for said in pool.map(lambda n: client.query(f"s{n}", "?"), range(12))}
        assert answers == {folded(["a"])}
    finally:
        assert server.stop() == 0


def test_a_server_works_on_redis_as_well(redis_server: RedisServer, tmp_path: Path) -> None:
    server = Server(tmp_path, store=redis_server.url)
    try:
        with server.client() as client:
            stream = client.stream("on-redis")
            for number in range(5):
                stream.append([f"event {number}"])
            assert client.append("on-redis", ["event 4"], seq=4).duplicates == 1
            assert stream.query("?").answer == folded([f"event {number}" for number in range(5)])
            assert stream.flush().consolidated_seq == 6
            assert client.verify().clean
        server.kill()
        server.start()
        with server.client() as client:
            assert client.inspect("on-redis").next_seq == 6
            assert client.delete("on-redis").existed
    finally:
        assert server.stop() == 0
