"""The memory of a server, with the verbs, results and errors of the engine: `Client`, and `AsyncClient` alike."""

from __future__ import annotations

from remem.client.aio import AsyncClient, AsyncStream
from remem.client.calls import Said
from remem.client.sync import Client, Stream

__all__ = ["AsyncClient", "AsyncStream", "Client", "Said", "Stream"]
