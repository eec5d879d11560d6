"""The application: routes, health, and every refusal as application/problem+json."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from remem.errors import BadInput
from remem.server import schemas
from remem.server.body import place_of
from remem.server.guard import CODE, REQUEST, Guard, problem_response
from remem.server.logs import log
from remem.server.routes import add_other_routes, add_stream_routes
from remem.server.service import Service, release
from remem.service.errors import (
    Draining,
    InvalidSchema,
    InvalidValue,
    NotReady,
    ServiceError,
    UnknownRoute,
    WrongMethod,
)
from remem.service.limits import shown

_PROBE_SECONDS = 2.0
_FORMS = (
    schemas.AppendForm, schemas.QueryForm, schemas.ManyQueriesForm, schemas.CreateForm, schemas.FlushForm,
    schemas.SnapshotForm, schemas.RebuildForm, schemas.ProblemForm,
)  # fmt: skip


def make_app(service: Service) -> tuple[FastAPI, ASGIApp]:
    """The routes, and the same behind the guard, which is what a server runs."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await anyio.to_thread.run_sync(service.close)

    app = FastAPI(title="remem", version=release(), lifespan=lifespan, docs_url=None, redoc_url=None)
    hot = add_stream_routes(app, service)
    add_other_routes(app, service)
    _add_health(app, service)
    _add_refusals(app)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app, Guard(app, service, hot)


def _add_health(app: FastAPI, service: Service) -> None:
    async def live() -> Response:
        """The event loop turns."""
        return JSONResponse({"live": True})

    async def ready(request: Request) -> Response:
        """The store takes commits, and the server is not about to stop."""
        if service.draining:
            raise Draining("The server is stopping.")
        try:
            await service.lanes.run("health", time.monotonic() + _PROBE_SECONDS, service.require_writable)
        except ServiceError as error:
            raise NotReady(f"The store takes no commits ({error.code}).") from None
        return JSONResponse({"ready": True})

    for path in ("/livez", "/v2/health/live"):
        app.get(path, include_in_schema=False)(live)
    for path in ("/readyz", "/v2/health/ready"):
        app.get(path, include_in_schema=False)(ready)


def _add_refusals(app: FastAPI) -> None:
    def refuse(request: Request, error: ServiceError) -> Response:
        request.scope[CODE] = error.code
        return problem_response(error, request.scope[REQUEST])

    @app.exception_handler(ServiceError)
    async def of_the_service(request: Request, error: ServiceError) -> Response:
        if error.status == 500:
            log("failed", level=40, error=error, request=request.scope[REQUEST])
        return refuse(request, error)

    @app.exception_handler(BadInput)
    async def of_the_model(request: Request, error: BadInput) -> Response:
        return refuse(request, InvalidValue(str(error)))

    @app.exception_handler(RequestValidationError)
    async def of_the_path(request: Request, error: RequestValidationError) -> Response:
        first: dict[str, Any] = error.errors()[0]
        kind = InvalidValue if first["loc"][0] == "path" else InvalidSchema
        path = place_of(tuple(first["loc"][1:]))
        return refuse(request, kind(f"{path}: {first['msg']}; given was {shown(first.get('input'))}.", path=path))

    @app.exception_handler(HTTPException)
    async def of_the_router(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            response = refuse(request, WrongMethod("The path does not take this method."))
            response.headers.update(error.headers or {})
            return response
        return refuse(request, UnknownRoute("There is nothing under this path."))


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the forms of the bodies that the routes check themselves."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        parts = document.setdefault("components", {})
        known = parts.setdefault("schemas", {})
        for form in _FORMS:
            schema = form.model_json_schema(ref_template="#/components/schemas/{model}")
            known |= schema.pop("$defs", {}) | {form.__name__: schema}
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)  # part of 4XX
        app.openapi_schema = document
    return app.openapi_schema
