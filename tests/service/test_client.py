"""What the clients make of an address, and of what answers there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from remem import AsyncClient, Client
from remem.errors import BadInput
from remem.service.errors import NotReady

CALLS: list[Callable[[Any], Any]] = [
    lambda client: client.models(),
    lambda client: client.inspect("s"),
    lambda client: client.list(),
    lambda client: client.append("s", ["a"], seq=0),
    lambda client: client.query("s", "?"),
    lambda client: client.query_many([("s", "?")]),
    lambda client: client.create("s"),
    lambda client: client.delete("s"),
    lambda client: client.backup(),
    lambda client: client.verify(),
]


@pytest.mark.parametrize("reply", [{"status": "ok"}, ["ok"], "ok", None], ids=str)
def test_json_of_something_else_is_said_to_be_so(reply: Any) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=reply))
    with Client("http://elsewhere", token="x", transport=transport) as client:
        for call in CALLS:
            with pytest.raises(NotReady, match="no remem server"):
                call(client)

    async def run() -> None:
        async with AsyncClient("http://elsewhere", token="x", transport=transport) as client:
            for call in CALLS:
                with pytest.raises(NotReady, match="no remem server"):
                    await call(client)

    asyncio.run(run())


@pytest.mark.parametrize("url", ["http://a..b", f"http://{'a' * 64}.org:8080", "https://.org"])
def test_a_host_that_no_name_can_have_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="is no address of a server"):
        Client(url, token="x")
