"""The door: every request passes here first. Who it is and how large it is comes before anything is read or parsed."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from prometheus_client import Counter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remem.errors import BadInput
from remem.server.logs import log
from remem.server.service import Service
from remem.server.tokens import Caller
from remem.service.errors import (
    CODES,
    InvalidValue,
    ScopeMissing,
    ServiceError,
    TooLarge,
    Unauthorized,
    UnsupportedType,
)

OPEN = frozenset({"/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/openapi.json"})
"""Paths without a token: they say nothing about anybody."""
CALLER, REQUEST, DEADLINE, CODE = "remem.caller", "remem.request", "remem.deadline", "remem.code"


def problem_response(error: ServiceError, request: str) -> Response:
    """The error as application/problem+json, with a time to wait where another try may succeed."""
    headers = {}
    if error.status in (429, 503):
        headers["Retry-After"] = str(error.details.get("retry_after", 1))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = json.dumps({**error.problem(), "request": request}).encode()
    return Response(body, error.status, headers, "application/problem+json")


def require_scope(caller: Caller, scope: str) -> None:
    """Refuse a token without this scope."""
    if scope not in caller.scopes:
        raise ScopeMissing(f"The token does not have the scope {scope!r}.", scope=scope)


class Hot(NamedTuple):
    """A route that takes nearly all requests: the guard calls it itself, which halves what a request costs."""

    path: str
    scope: str
    endpoint: Callable[[Request, str], Awaitable[Response]]


ARCHIVE_TYPE = "application/octet-stream"
_ARCHIVE_PATH = re.compile(r"/v1/streams/[^/]+/memory")
_HOT_PATH = re.compile(r"/v1/streams/([A-Za-z0-9][A-Za-z0-9._:@~-]{0,255})/(events|query)")


class Guard:
    """Lets in who has a token and a body of a bearable size; writes one line of log for each request."""

    def __init__(self, app: ASGIApp, service: Service, hot: Mapping[str, Hot]) -> None:
        self._app, self._service, self._hot = app, service, hot
        self._counters: dict[tuple[str, int], Counter] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        started, request, status = time.monotonic(), f"{random.getrandbits(64):016x}", 0
        scope[REQUEST], scope[DEADLINE] = request, started + self._service.settings.deadline

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", request.encode()), (b"cache-control", b"no-store")]
                if self._service.draining:
                    extra.append((b"connection", b"close"))
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        try:
            self._admit(scope)
            if scope["method"] == "POST" and (found := _HOT_PATH.fullmatch(scope["path"])):
                await self._call(self._hot[found[2]], found[1], Request(scope, receive), answer)
            else:
                await self._app(scope, receive, answer)
        except Exception as error:
            known = isinstance(error, ServiceError)
            refusal = error if isinstance(error, ServiceError) else ServiceError("The service failed; see its log.")
            if not known:
                log("failed", level=40, error=error, request=request)
            if not status:
                scope[CODE] = refusal.code
                await problem_response(refusal, request)(scope, receive, answer)
        finally:
            self._note(scope, status, time.monotonic() - started)

    async def _call(self, hot: Hot, stream: str, request: Request, send: Send) -> None:
        """What the router would do."""
        scope = request.scope
        scope["route"] = hot
        require_scope(scope[CALLER], hot.scope)
        try:
            response = await hot.endpoint(request, stream)
        except BadInput as error:
            if isinstance(error, ServiceError):
                raise
            raise InvalidValue(str(error)) from None
        await response(scope, request.receive, send)

    def _admit(self, scope: Scope) -> None:
        # the first of each name counts
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        if scope["path"] not in OPEN:
            scope[CALLER] = caller = self._caller(headers)
            self._service.buckets.take(caller.tenant)
        if scope["method"] == "PUT" and _ARCHIVE_PATH.fullmatch(scope["path"]):  # the one body that is no JSON
            require_scope(caller, "export")
            self._check_body(headers, ARCHIVE_TYPE, "archive_bytes", self._service.engine.limits.archive_bytes)
        else:
            self._check_body(headers, "application/json", "body_bytes", self._service.settings.body_bytes)

    def _caller(self, headers: Mapping[str, str]) -> Caller:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Unauthorized("There is no token; send it as 'Authorization: Bearer TOKEN'.")
        if (caller := self._service.tokens.find(token.strip())) is None:
            raise Unauthorized("The token is not one of this server's.")
        return caller

    def _check_body(self, headers: Mapping[str, str], wanted: str, limit: str, most: int) -> None:
        length = headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 15 or int(length) > most:
            raise TooLarge(f"The body is longer than {most} bytes.", limit=limit, most=most)
        if headers.get("content-encoding", "identity") != "identity":
            raise UnsupportedType("The body is compressed; send it as it is.")
        if length == "0" and "transfer-encoding" not in headers:
            return
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != wanted:
            raise UnsupportedType(f"The body's content type is not {wanted}.")

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "-")
        metrics, code = self._service.metrics, scope.get(CODE)
        if (counter := self._counters.get((route, status))) is None:
            counter = self._counters[route, status] = metrics.requests.labels(route, status)
        counter.inc()
        if code:
            metrics.rejected.labels(code).inc()
        fields: dict[str, Any] = {"request": scope[REQUEST], "method": _method(scope["method"]), "route": route}
        if caller := scope.get(CALLER):
            fields["tenant"], fields["token"] = caller.tenant, caller.id
        if code:
            fields["code"] = code
        level = 40 if status >= 500 and code in (None, "internal", *_OURS) else 20
        log("request", level=level, **fields, status=status, ms=round(1000 * seconds, 2))


_OURS = tuple(name for name, about in CODES.items() if about.status == 500)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})


def _method(name: str) -> str:
    return name if name in _METHODS else "other"
