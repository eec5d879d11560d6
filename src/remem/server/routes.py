"""The paths under /v1: each reads a body, runs one verb of the engine in its lane, returns what that returned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from remem.server import schemas
from remem.server.body import Form, as_form, parse_json, read_body
from remem.server.flights import KEY_PARAMETER, key_of
from remem.server.guard import ARCHIVE_TYPE, CALLER, DEADLINE, Hot, require_scope
from remem.server.service import Service, as_json
from remem.server.work import Busy
from remem.service.asking import Question
from remem.service.errors import NotCaughtUp, QueueFull, ServiceError
from remem.service.events import FLUSH, Event
from remem.service.limits import LAST_SEQ
from remem.service.results import Answered, Appended, Inspected, Listed, Verified
from remem.service.store import Deleted

_FEW_EVENTS = 200  # checking more would keep the event loop from its other work
StreamName = Annotated[str, Path(pattern=schemas.NAME_PATTERN, max_length=256)]
_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemForm"}}}


def scope_of(scope: str) -> Any:
    """A dependency that refuses tokens without this scope."""

    async def require(request: Request) -> None:
        require_scope(request.scope[CALLER], scope)

    return Depends(require)


def about(
    scope: str, returns: type[Any], body: type[BaseModel] | None = None, *, keyed: bool = False
) -> dict[str, Any]:
    """What a route needs and how it answers, for the check and for the OpenAPI document alike."""
    extra: dict[str, Any] = {"security": [{"token": [scope]}]}
    if keyed:
        extra["parameters"] = [KEY_PARAMETER]
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {
        "dependencies": [scope_of(scope)],
        "responses": {200: {"model": returns}, "4XX": {"description": "Refused", "content": _PROBLEM}},
        "openapi_extra": extra,
    }


def add_stream_routes(app: FastAPI, service: Service) -> dict[str, Hot]:
    """Verbs on one stream, and on several; returns those that the guard may call without the router."""
    engine, lanes, settings, metrics = service.engine, service.lanes, service.settings, service.metrics
    can_begin = hasattr(engine.store, "submit")

    async def form(request: Request, kind: type[Form]) -> Form:
        data = await read_body(request, settings.body_bytes, request.scope[DEADLINE])
        return as_form(kind, parse_json(data, settings.json_depth))

    def tenant_of(request: Request) -> str:
        return request.scope[CALLER].tenant

    async def long_run(request: Request, call: Callable[[], Any]) -> Any:
        return await lanes.run("admin", time.monotonic() + settings.admin_deadline, call)

    @app.put("/v1/streams/{stream}", **about("append", schemas.Created, schemas.CreateForm))
    async def create(request: Request, stream: StreamName) -> Response:
        """Make a stream; it may be there already, with the same settings."""
        asked, tenant = await form(request, schemas.CreateForm), tenant_of(request)
        made = await lanes.run(
            "append",
            request.scope[DEADLINE],
            lambda: engine.create(stream, retention=asked.retention, ttl=asked.ttl, tenant=tenant),
        )
        return JSONResponse({"created": made})

    @app.patch("/v1/streams/{stream}", **about("delete", schemas.LifeForm, schemas.LifeForm))
    async def set_ttl(request: Request, stream: StreamName) -> Response:
        """Let a stream live longer, or less long, which may end it at once."""
        asked, tenant = await form(request, schemas.LifeForm), tenant_of(request)
        await lanes.run("append", request.scope[DEADLINE], lambda: engine.set_ttl(stream, asked.ttl, tenant=tenant))
        return JSONResponse({"ttl": asked.ttl})

    async def store_events(request: Request, stream: str, events: list[Any], seq: int | None) -> Appended:
        deadline = request.scope[DEADLINE]
        key = key_of(request) if seq is None else None
        given: dict[str, Any] = {"seq": seq, "idempotency_key": key, "tenant": tenant_of(request)}
        if can_begin and len(events) <= _FEW_EVENTS:  # no thread is held while the disk works
            try:
                return await lanes.begun("append", deadline, lambda: engine.begin_append(stream, events, **given))
            except Busy:
                raise
            except QueueFull:
                pass  # its turn comes below
        return await lanes.until(
            "append", deadline, lambda: engine.append(stream, events, **given, timeout=0.0), again=QueueFull
        )

    @app.post("/v1/streams/{stream}/events", **about("append", Appended, schemas.AppendForm, keyed=True))
    async def append(request: Request, stream: StreamName) -> Response:
        """Add events, all or none. 200 means that they are on disk; with `seq` the same call may be repeated."""
        started = time.perf_counter()
        asked = await form(request, schemas.AppendForm)
        events = [_event(event) for event in asked.events]
        done = await store_events(request, stream, events, asked.seq)
        metrics.accepted.inc(done.accepted)
        metrics.duplicates.inc(done.duplicates)
        metrics.append.observe(time.perf_counter() - started)
        return JSONResponse(vars(done))

    @app.post("/v1/streams/{stream}/flush", **about("append", Appended, schemas.FlushForm, keyed=True))
    async def flush(request: Request, stream: StreamName) -> Response:
        """End the segment at hand, and wait until it is in the memory."""
        asked, tenant, deadline = await form(request, schemas.FlushForm), tenant_of(request), request.scope[DEADLINE]

        marked = await store_events(request, stream, [FLUSH], asked.seq)
        seq = marked.next_seq - 1 if asked.seq is None else asked.seq
        done: Appended = await lanes.until(
            "append", deadline, lambda: engine.flush(stream, seq=seq, tenant=tenant, timeout=0.0), again=NotCaughtUp
        )
        return JSONResponse(as_json(done) | {"accepted": marked.accepted, "duplicates": marked.duplicates})

    async def ask(stream: str, asked: schemas.QueryForm, tenant: str, deadline: float) -> dict[str, Any]:
        if asked.timeout_ms is not None:
            deadline = min(deadline, time.monotonic() + asked.timeout_ms / 1000)

        question = Question(stream, asked.asked(), asked.top, asked.tail, asked.min_seq, tenant)
        return as_json(await service.questions.ask(question, deadline))

    @app.post("/v1/streams/{stream}/query", **about("query", Answered, schemas.QueryForm))
    async def query(request: Request, stream: StreamName) -> Response:
        """Answer from the memory; changes nothing."""
        started = time.perf_counter()
        asked = await form(request, schemas.QueryForm)
        said = await ask(stream, asked, tenant_of(request), request.scope[DEADLINE])
        metrics.query.observe(time.perf_counter() - started)
        return JSONResponse(said)

    @app.post("/v1/query", **about("query", schemas.AnsweredMany, schemas.ManyQueriesForm))
    async def query_many(request: Request) -> Response:
        """Answer from several memories; each answer or refusal stands for itself."""
        many, tenant = await form(request, schemas.ManyQueriesForm), tenant_of(request)

        async def one(asked: schemas.StreamQuery) -> dict[str, Any]:
            try:
                return {
                    "stream": asked.stream,
                    "answered": await ask(asked.stream, asked, tenant, request.scope[DEADLINE]),
                }
            except ServiceError as error:
                return {"stream": asked.stream, "problem": error.problem()}

        return JSONResponse({"results": await asyncio.gather(*map(one, many.queries))})

    @app.get("/v1/streams/{stream}", **about("inspect", Inspected))
    async def inspect(request: Request, stream: StreamName) -> Response:
        """Where a stream is, how it fares, what it takes; never what it holds."""
        tenant = tenant_of(request)
        seen = await lanes.run("query", request.scope[DEADLINE], lambda: engine.inspect(stream, tenant=tenant))
        return JSONResponse(as_json(seen))

    @app.get("/v1/streams", **about("inspect", Listed))
    async def list_streams(
        request: Request,
        prefix: Annotated[str, Query(pattern=f"{schemas.NAME_PATTERN}|^$")] = "",
        cursor: Annotated[str, Query(pattern=f"{schemas.NAME_PATTERN}|^$")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """Names of the caller's streams, a page at a time."""
        tenant = tenant_of(request)
        page = await lanes.run(
            "query",
            request.scope[DEADLINE],
            lambda: engine.list(prefix=prefix, cursor=cursor or None, limit=limit, tenant=tenant),
        )
        return JSONResponse(as_json(page))

    @app.delete("/v1/streams/{stream}", **about("delete", Deleted))
    async def delete(request: Request, stream: StreamName) -> Response:
        """Remove memory, events and snapshots, from the store's files as well."""
        tenant = tenant_of(request)
        gone = await lanes.run("append", request.scope[DEADLINE], lambda: engine.delete(stream, tenant=tenant))
        return JSONResponse(as_json(gone))

    async def keyed_run(request: Request, stream: str, call: Callable[[str | None], Any]) -> Any:
        key = key_of(request)
        with service.flights.of(tenant_of(request), stream, key):
            return await long_run(request, lambda: call(key))

    named = schemas.SnapshotForm

    @app.post("/v1/streams/{stream}/snapshot", **about("append", named, named, keyed=True))
    async def snapshot(request: Request, stream: StreamName) -> Response:
        """Keep a named copy; an older one of that name is replaced."""
        name, tenant = (await form(request, named)).name, tenant_of(request)
        await keyed_run(request, stream, lambda key: engine.snapshot(stream, name, idempotency_key=key, tenant=tenant))
        return JSONResponse({"name": name})

    @app.post("/v1/streams/{stream}/restore", **about("delete", Appended, named, keyed=True))
    async def restore(request: Request, stream: StreamName) -> Response:
        """Put a copy in place of what the stream holds; what came after it is gone."""
        name, tenant = (await form(request, named)).name, tenant_of(request)
        done = await keyed_run(
            request, stream, lambda key: engine.restore(stream, name, idempotency_key=key, tenant=tenant)
        )
        return JSONResponse(as_json(done))

    @app.post("/v1/streams/{stream}/rebuild", **about("delete", Appended, schemas.RebuildForm, keyed=True))
    async def rebuild(request: Request, stream: StreamName) -> Response:
        """Fold the stream again with the model that is loaded, from its retained events or from those given."""
        asked, tenant = await form(request, schemas.RebuildForm), tenant_of(request)
        events = None if asked.events is None else [_event(event) for event in asked.events]
        done = await keyed_run(
            request, stream, lambda key: engine.rebuild(stream, events, idempotency_key=key, tenant=tenant)
        )
        return JSONResponse(as_json(done))

    @app.get(
        "/v1/streams/{stream}/memory",
        dependencies=[scope_of("export")],
        responses={
            200: {"content": {ARCHIVE_TYPE: {}}, "description": "A safetensors file"},
            "4XX": {"description": "Refused", "content": _PROBLEM},
        },
        openapi_extra={"security": [{"token": ["export"]}]},
        response_class=Response,
    )
    async def export(request: Request, stream: StreamName) -> Response:
        """The stream as one safetensors file: memory, counters, and the events that are kept."""
        tenant = tenant_of(request)
        data = await long_run(request, lambda: engine.export(stream, tenant=tenant))
        return Response(data, media_type=ARCHIVE_TYPE)

    @app.put("/v1/streams/{stream}/memory", **_archive_route())
    async def import_archive(request: Request, stream: StreamName) -> Response:
        """Make a stream of an archive; one that is there already is refused, unless it has the same events."""
        tenant, deadline = tenant_of(request), request.scope[DEADLINE]
        archive = await read_body(request, engine.limits.archive_bytes, deadline)
        done = await long_run(request, lambda: engine.import_archive(stream, archive, tenant=tenant))
        return JSONResponse(as_json(done))

    return {
        "events": Hot("/v1/streams/{stream}/events", "append", append),
        "query": Hot("/v1/streams/{stream}/query", "query", query),
    }


def add_other_routes(app: FastAPI, service: Service) -> None:
    """What is said about the server itself, and what an operator does to it."""
    engine, lanes, settings = service.engine, service.lanes, service.settings

    @app.get("/v1/models", **about("inspect", schemas.Models))
    async def models(request: Request) -> Response:
        """The model that is loaded."""
        network = engine.network
        shown = {"fingerprint": network.fingerprint, "numerics": network.numerics, "items": service.item_kind}
        return JSONResponse({"models": [{**shown, "segment_events": network.segment_events}]})

    @app.get("/v1/limits", **about("inspect", dict[str, Any]))
    async def limits(request: Request) -> Response:
        """What is refused as too large."""
        names = ("body_bytes", "header_bytes", "json_depth", "deadline", "connections", "queue", "tenant_rate")
        return JSONResponse(as_json(engine.limits) | {name: getattr(settings, name) for name in names}
                            | {"last_seq": LAST_SEQ})  # fmt: skip

    @app.post("/v1/admin/verify", **about("admin", Verified))
    async def verify(request: Request) -> Response:
        """Check every checksum of the store, and fold retained events again."""
        deadline = time.monotonic() + settings.admin_deadline
        return JSONResponse(as_json(await lanes.run("admin", deadline, engine.verify)))

    @app.post("/v1/admin/backup", **about("admin", schemas.BackedUp))
    async def backup(request: Request) -> Response:
        """Copy the store, as it is in one moment, into the server's folder for copies."""
        deadline = time.monotonic() + settings.admin_deadline
        return JSONResponse(await lanes.run("admin", deadline, service.backup))

    @app.post("/v1/admin/drain", **about("admin", dict[str, bool]))
    async def drain(request: Request) -> Response:
        """Stop in good order, as SIGTERM does."""
        service.stop()
        return JSONResponse({"draining": True})

    @app.get("/metrics", dependencies=[scope_of("metrics")], include_in_schema=False)
    async def metrics(request: Request) -> Response:
        """Figures for Prometheus."""
        from remem.server.metrics import CONTENT_TYPE

        return Response(service.metrics.exposition(), headers={"content-type": CONTENT_TYPE})


def _archive_route() -> dict[str, Any]:
    """An archive in place of a form."""
    parts = about("export", Appended)
    archive = {ARCHIVE_TYPE: {"schema": {"type": "string", "format": "binary"}}}
    parts["openapi_extra"]["requestBody"] = {"required": True, "content": archive}
    return parts


def _event(given: Any) -> Any:
    return Event(given.item, given.ends_segment) if isinstance(given, schemas.EventForm) else given
