"""Connections: bounded in number, with headers bounded in size and time before any of them is understood."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from remem.server.settings import ServerSettings
from remem.service.errors import Deadline, InvalidValue, NotReady, ServiceError, TooLarge


class Joined:
    """A connection whose writes of one turn of the loop go out together.

    A reply comes as head and body; sent one by one they would cost two system calls, and wake who waits for it twice.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Soon."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """After what was written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            data, self._parts = b"".join(self._parts), []
            self._transport.write(data)


def bounded_protocol(settings: ServerSettings) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with the settings' bounds."""

    class BoundedProtocol(HttpToolsProtocol):
        """Counts what comes before the end of the headers, and in their place after a body."""

        _in_headers = True
        _moved = False
        _unparsed = 0
        _timer: asyncio.TimerHandle | None = None
        _refused = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(cast(asyncio.Transport, Joined(transport, self.loop)))
            if len(self.connections) > settings.connections:
                self._refuse(NotReady(f"There are {settings.connections} connections already."), status=503)
                return
            self._timer = self.loop.call_later(settings.deadline, self._too_slow)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            in_headers, self._moved = self._in_headers, False
            super().data_received(data)
            under_way = self.cycle is not None and not self.cycle.response_complete
            if (in_headers and self._in_headers) or not (in_headers or self._in_headers or self._moved):
                self._unparsed += len(data)
                if self._unparsed > settings.header_bytes:
                    if self._in_headers or under_way:
                        self._refuse(_long_headers(settings))
                    self.transport.close()
                    return
            # what comes when nothing is under way, such as the rest of a body that was refused, stops uvicorn's clock
            if not under_way and self._timer is None and self.timeout_keep_alive_task is None:
                self._timer = self.loop.call_later(settings.deadline, self._too_slow)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_headers, self._unparsed, self._moved = True, 0, True
            if self._timer is None:
                self._timer = self.loop.call_later(settings.deadline, self._too_slow)

        def on_headers_complete(self) -> None:
            self._in_headers, self._unparsed, self._moved = False, 0, True
            self._stop_timer()
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > settings.header_bytes:
                self._refuse(_long_headers(settings))
                return
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._unparsed, self._moved = 0, True
            if not self._refused:
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._moved = True
            if not self._refused:
                super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            if not self._refused:
                self._refuse(InvalidValue("This is no HTTP request."))

        def _too_slow(self) -> None:
            self._timer = None
            if self._in_headers:
                self._refuse(Deadline("The headers did not arrive in time."), status=408)
            else:
                self.transport.close()

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, error: ServiceError, status: int | None = None) -> None:
            """Answer without the application, then hang up."""
            self._refused = True
            self._stop_timer()
            if self.transport.is_closing():
                return
            status = status or error.status
            body = json.dumps({**error.problem(), "status": status, "request": ""}).encode()
            retry = b"retry-after: 1\r\n" if status == 503 else b""
            head = b"content-type: application/problem+json\r\nconnection: close\r\n" + retry
            length = b"content-length: " + str(len(body)).encode() + b"\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head + length + body)
            self.transport.close()

    return BoundedProtocol


def _long_headers(settings: ServerSettings) -> ServiceError:
    return TooLarge(
        f"The headers are longer than {settings.header_bytes} bytes.", limit="header_bytes", most=settings.header_bytes
    )
