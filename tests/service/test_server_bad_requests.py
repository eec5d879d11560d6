"""Bad requests: hundreds made by hand, those schemathesis finds, and bytes that are no requests; none gives a 5xx."""

from __future__ import annotations

import gzip
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from pydantic import ValidationError
from schemathesis import GenerationMode
from server_parts import Server
from service_parts import SEED

from remem.server.schemas import AppendForm

EXAMPLES = int(os.environ.get("REMEM_SCHEMA_EXAMPLES", "12"))
SEQS = [-1, 2**53, 2**63, 2**64, 1.5, "1", True, [], {}, 10**400, -0.5, "0x1", ""]
ITEMS = [
    True,
    False,
    {},
    {"a": 1},
    [],
    [[]],
    [None],
    ["a"],
    [1, "a"],
    [True],
    "",
    -1,
    -2,
    2**53,
    2**64,
    -(2**70),
    {"item": []},
    {"item": {"x": 1}},
]
NAMES = [
    "-x", ".x", "_x", "~x",
    "a%20b", "a%00b", "a%0ab", "a%5cb", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "%252e%252e",
    "..%5c..%5cwin.ini", "a%2fb", "x" * 257, "%e2%80%ae",
    "%f0%9f%98%80", "%ff", "%c0%ae", "a'b", "a%22b", "a;b", "a$b",
    "a%3fb", "a%23b", "%20", "+", "a+b", "CON%20", "%7f", "*", "a%7cb", "%3cscript%3e", "a,b", "(a)", "a%25b",
]  # fmt: skip
JSON = [
    b"", b" ", b"{", b"}", b"[", b'{"events": ["a"]', b'{"events": ["a"],}', b"{'events': ['a']}", b"nul", b"\xff\xfe",
    b"\xef\xbb\xbf{}", b'{"events": ["\xc3\x28"]}', b'{"events": ["\\ud800"]}', b'{"events": ["\\udc00\\ud800"]}',
    b'{"events": [NaN]}', b'{"events": [[1, Infinity]]}', b'{"events": [[-Infinity]]}', b'{"events": [[1e999]]}',
    b'{"events": ["a"], "events": ["b"]}', b'{"events": [{"item": 1, "item": 2}]}',
    b'{"events": [' + b"9" * 5000 + b"]}",
    b'{"events": ["a"], "seq": ' + b"1" * 5000 + b"}", b"[" * 100_000, b'{"a":' * 50_000, b"[" * 20 + b"]" * 20,
    b'{"events": ' + b"[" * 17 + b"]" * 17 + b"}", b"{}" + b"{}" * 100, b"[" + b"{}," * 100_000 + b"{}]", b"\x00", b"1",
    b'"text"', b"null", b"true", b"1e5", b"// comment", b"undefined", b'{"events": ["a\nb"]}', b'{"events": [01]}',
    b'{"events": [+1]}', b'{"events": [.5]}', b'{"events": [1.]}', b'{"events": [0x1]}', b'{"events" "a"}',
]  # fmt: skip


def bodies() -> Iterator[tuple[str, str, Any]]:
    """Bodies of the wrong form, for each route that takes one."""
    yield from (("events", "POST", {"events": ["a"], "seq": seq}) for seq in SEQS)
    yield from (("events", "POST", {"events": [item]}) for item in ITEMS)
    yield from (("events", "POST", {"events": ["good", item, "good"], "seq": 0}) for item in ITEMS)
    for mark in (1, "true", [], {}, 0.0):
        yield "events", "POST", {"events": [{"item": "a", "ends_segment": mark}]}
    for events in (None, "a", 1, {}, [], [None], ["a"] * 1001, [{}], [{"item": None}], True):
        yield "events", "POST", {"events": events}
    for extra in ("ts", "tenant", "model", "__proto__", "seqs", ""):
        yield "events", "POST", {"events": ["a"], extra: 1}
        yield "events", "POST", {"events": [{"item": "a", extra: 1}]}
    for size in (8193, 100_000):
        yield "events", "POST", {"events": ["x" * size]}
        yield "query", "POST", {"question": "x" * size}
    yield from (("query", "POST", {"question": "?", "min_seq": seq}) for seq in SEQS)
    for name, values in {
        "top": [0, -1, 1001, 2**70, 1.5, "5", True, None, []],
        "tail": ["", "all", 1, None, ["include"], True],
        "timeout_ms": [0, -1, 60_001, 1.5, "1", True, []],
    }.items():
        yield from (("query", "POST", {"question": "?", name: value}) for value in values)
    for body in ({}, {"query": "?"}, [], "?", {"question": "?", "extra": 1}):
        yield "query", "POST", body
    yield from (("flush", "POST", {"seq": seq}) for seq in SEQS)
    for candidates in ([], "a", 1, {}, [None], [""], [[]], [True, {}], ["a"] * 1001):
        yield "query", "POST", {"question": "?", "candidates": candidates}
    for retention in ("", "none", 1, True, [], "days:7"):
        yield "", "PUT", {"retention": retention}
    for ttl in (0, -1, "10", True, [], 1e12, {}):
        yield "", "PUT", {"ttl": ttl}
        yield "", "PATCH", {"ttl": ttl}
    for name in ("", "a/b", "..", "x" * 257, 1, None, True, [], "a b", "\u202e", "\x00"):
        yield "snapshot", "POST", {"name": name}
        yield "restore", "POST", {"name": name}
    for events in ("a", 1, {}, [None], ["a"] * 1001, [True]):
        yield "rebuild", "POST", {"events": events}


CASES = list(bodies())
MANY = [
    {}, {"queries": []}, {"queries": [{}]}, {"queries": [{"stream": "a"}]}, {"queries": [{"question": 1}]},
    {"queries": [{"stream": "a/b", "question": "?"}]}, {"queries": [{"stream": "a", "question": "?"}] * 257}, [], "x",
    {"queries": {"stream": "a", "question": "?"}}, {"queries": [{"stream": "a", "question": "?", "tenant": "x"}]},
]  # fmt: skip
LISTS = ["limit=0", "limit=-1", "limit=1001", "limit=x", "limit=1.5", "limit=", "prefix=a/b", "prefix=%00", "cursor=..",
         "limit=99999999999999999999", "prefix=" + "x" * 300, "cursor=%ff"]  # fmt: skip
HEADERS = [
    ({"Content-Type": "text/plain"}, 415), ({"Content-Type": "application/xml"}, 415), ({"Content-Type": ""}, 415),
    ({"Content-Type": "application/jsonx"}, 415), ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
    ({"Content-Encoding": "gzip"}, 415), ({"Content-Encoding": "br"}, 415),
    ({"Content-Encoding": "deflate, gzip"}, 415),
    ({"Content-Length": "2000000"}, 413), ({"X-Long": "x" * 20_000}, 413), ({"Cookie": "a=b; " * 4000}, 413),
]  # fmt: skip


def test_there_are_more_than_three_hundred_bad_requests() -> None:
    bad_json = len(JSON) * 4
    assert len(CASES) + bad_json + 3 * len(NAMES) + len(MANY) + len(LISTS) + len(HEADERS) >= 300


def state(server: Server) -> tuple[list[str], int]:
    with server.client() as client:
        return client.list(limit=1000).streams, client.inspect("target").next_seq


@pytest.fixture(scope="module", autouse=True)
def _target(server: Server) -> None:
    with server.client() as client:
        client.append("target", ["a", "b"], seq=0)


def assert_refused(reply: Any, what: object) -> None:
    assert 400 <= reply.status < 500, (what, reply)
    assert reply.headers["content-type"] == "application/problem+json", (what, reply)
    assert reply.json["code"], (what, reply)
    assert len(reply.body) < 2000, (what, reply)


def test_bodies_of_the_wrong_form_are_refused_and_change_nothing(server: Server) -> None:
    before = state(server)
    for verb, method, body in CASES:
        path = f"/v1/streams/target/{verb}".rstrip("/")
        assert_refused(server.request(method, path, body), (verb, str(body)[:100]))
    for body in MANY:
        assert_refused(server.request("POST", "/v1/query", body), body)
    assert state(server) == before


def test_bodies_that_are_not_json_are_refused_and_change_nothing(server: Server) -> None:
    before, megabytes = state(server), server.memory_mb()
    for verb in ("events", "query", "flush", "rebuild"):
        for data in JSON:
            assert_refused(server.request("POST", f"/v1/streams/target/{verb}", data), (verb, data[:60]))
    assert state(server) == before
    assert server.memory_mb() < megabytes + 50


def test_names_that_are_none_are_refused(server: Server) -> None:
    before = state(server)
    for name in NAMES:
        assert_refused(server.request("POST", f"/v1/streams/{name}/events", {"events": ["a"]}), name)
        assert_refused(server.request("GET", f"/v1/streams/{name}"), name)
        assert_refused(server.request("DELETE", f"/v1/streams/{name}"), name)
    for query in LISTS:
        assert_refused(server.request("GET", f"/v1/streams?{query}"), query)
    assert state(server) == before


def test_headers_that_promise_too_much_are_refused_before_the_body(server: Server) -> None:
    for headers, status in HEADERS:
        reply = server.request("POST", "/v1/streams/target/events", b"{}", headers=headers)
        assert_refused(reply, headers)
        assert reply.status == status
    bomb = gzip.compress(b"[" + b"0," * 10**6 + b"0]")
    reply = server.request("POST", "/v1/streams/target/events", bomb, headers={"Content-Encoding": "gzip"})
    assert reply.json["code"] == "unsupported_type"


def test_a_body_is_bounded_to_the_byte(server: Server) -> None:
    start = b'{"events": ["a"], "seq": 0'
    for size, status in ((2**20, 200), (2**20 + 1, 413)):
        data = start + b" " * (size - len(start) - 1) + b"}"
        assert len(data) == size
        assert server.request("POST", "/v1/streams/target/events", data).status == status


def test_a_chunked_body_without_end_is_cut_off(server: Server) -> None:
    head = (
        f"POST /v1/streams/target/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head.encode())
        chunk, sent = b"10000\r\n" + b" " * 65536 + b"\r\n", 0
        connection.settimeout(0.05)
        reply = b""
        while not reply and sent < 64 * 2**20:
            try:
                connection.sendall(chunk)
                sent += 65536
            except (TimeoutError, ConnectionError):
                pass
            try:
                reply = connection.recv(4096)
            except TimeoutError:
                continue
        assert b" 413 " in reply
        assert sent < 8 * 2**20


def test_slow_headers_and_slow_bodies_are_given_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = Server(tmp_path_factory.mktemp("slow"), deadline=0.5)
    try:
        started = time.monotonic()
        assert b" 408 " in server.raw(b"GET /livez HTTP/1.1\r\nHost:")
        head = f"POST /v1/streams/s/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n"
        slow = head + 'Content-Type: application/json\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{"events"'
        assert b'"deadline"' in server.raw(slow.encode(), timeout=3)
        assert time.monotonic() - started < 5
        with server.client() as client:
            assert client.list().streams == []
    finally:
        assert server.stop() == 0


def test_who_has_an_answer_and_sends_on_is_not_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = Server(tmp_path_factory.mktemp("on"), deadline=0.5)
    refused = b"POST /v1/streams/s/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    try:
        for request, rest in (
            (refused + b"Content-Length: 1000\r\n\r\n{", b"x"),  # the rest of a body that nobody reads
            (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),  # the beginning of nothing
        ):
            with socket.create_connection(("127.0.0.1", server.port), timeout=3) as connection:
                connection.sendall(request)
                assert connection.recv(65536)
                connection.sendall(rest)
                assert connection.recv(65536) == b""
        # headers after a body, without end
        with socket.create_connection(("127.0.0.1", server.port), timeout=3) as connection:
            connection.sendall(refused + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
            before = server.memory_mb()
            with pytest.raises(OSError):  # noqa: PT011
                connection.sendall(b"a: b\r\n" * 3_000_000)
            assert server.memory_mb() < before + 50
    finally:
        assert server.stop() == 0


def test_connections_beyond_the_bound_are_refused_with_503(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = Server(tmp_path_factory.mktemp("crowd"), connections=8, deadline=2.0)
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(8)]
    try:
        time.sleep(0.2)
        refused = server.raw(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 503 " in refused
        assert b"retry-after: 1" in refused
        for connection in held:
            connection.close()
        time.sleep(0.2)
        assert server.request("GET", "/livez").status == 200
    finally:
        assert server.stop() == 0


def test_bytes_that_are_no_requests_end_in_400_or_silence(server: Server) -> None:
    seed = SEED
    chance = random.Random(seed)
    good = b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    odd = [
        b"\x00" * 100, b"\r\n" * 50, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /livez HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n: x\r\n\r\n", b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"POST /v1/query HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http://x/livez HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"X" * 40_000, b"GET /" + b"a" * 40_000,
    ]  # fmt: skip
    for _ in range(60):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        odd.append(bytes(data[: chance.randrange(1, len(data) + 1)]))
    for data in odd:
        reply = server.raw(data, timeout=0.1)
        assert not reply.startswith(b"HTTP/1.1 5"), (seed, data[:100], reply[:200])
    assert server.request("GET", "/readyz").status == 200


def operations(server: Server) -> list[Any]:
    document = server.request("GET", "/openapi.json", token="").json
    document["paths"].pop("/v1/admin/drain")  # it would be obeyed
    return [found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
def test_schemathesis_finds_no_server_error(server: Server, mode: GenerationMode) -> None:
    tried: Counter[int] = Counter()
    headers = {"Authorization": f"Bearer {server.token}"}
    for operation in operations(server):
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.path_parameters):
            continue  # nothing in it can be wrong

        def try_it(case: Any) -> None:
            reply = case.call(base_url=server.url, headers=headers)
            tried[reply.status_code] += 1
            assert reply.status_code < 500, (case.method, case.path, case.body, reply.text)
            assert reply.status_code == 200 or reply.headers["content-type"][0] == "application/problem+json"

        bounded = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        bounded(given(case=operation.as_strategy(generation_mode=mode))(try_it))()
    assert tried.total() >= 60
    assert tried[200] > 0 or mode is GenerationMode.NEGATIVE
    assert server.request("GET", "/readyz").status == 200


@pytest.mark.parametrize(
    ("event", "place", "words"),
    [
        ("", "events[1]", "at least 1 character"),
        (1.5, "events[1]", "expected an object or text or an integer or a list; given was 1.5"),
        ([], "events[1]", "at least 1 item"),
        ([1, True], "events[1][1]", "expected a number; given was True"),
        ({"item": None, "end": 1}, "events[1].end", "not permitted"),
        ({"item": False}, "events[1].item", "expected text or an integer or a list; given was False"),
        ({"item": "a", "ends_segment": 1}, "events[1].ends_segment", "expected true or false; given was 1"),
    ],
    ids=str,
)
def test_a_refusal_names_the_place_and_what_belongs_there(server: Server, event: Any, place: str, words: str) -> None:
    reply = server.request("POST", "/v1/streams/named/events", {"events": ["a", event]})
    assert (reply.status, reply.json["path"]) == (422, place)
    assert reply.json["detail"].startswith(f"{place}: ")
    assert words in reply.json["detail"]


def test_a_body_full_of_faults_is_refused_for_the_first() -> None:
    with pytest.raises(ValidationError) as refused:
        AppendForm.model_validate({"events": [[True] * 1000] * 1000})
    assert refused.value.error_count() < 10
