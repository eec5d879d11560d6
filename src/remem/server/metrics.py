"""Figures for Prometheus. No label names a tenant or a stream, so their number stays bounded and they tell nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from remem.service.errors import ServiceError
from remem.service.limits import StreamKey
from remem.service.records import Row
from remem.service.store import Plan

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """All figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        here = self.registry
        self.requests = Counter("rm_requests", "Requests answered", ["route", "status"], registry=here)
        self.accepted = Counter("rm_events_accepted", "Events stored", registry=here)
        self.duplicates = Counter("rm_events_duplicate", "Events that were there already", registry=here)
        self.rejected = Counter("rm_requests_rejected", "Requests refused", ["code"], registry=here)
        self.append = Histogram(
            "rm_append_duration_seconds", "Appends, queue included", buckets=_SECONDS, registry=here
        )
        self.query = Histogram("rm_query_duration_seconds", "Queries, queue included", buckets=_SECONDS, registry=here)
        self.commits = Histogram(
            "rm_store_commit_duration_seconds", "Writes to the store", buckets=_SECONDS, registry=here
        )
        self.store_errors = Counter("rm_store_errors", "Failed writes to the store", ["code"], registry=here)
        self.folds = Histogram(
            "rm_fold_duration_seconds", "Segments folded into memories", buckets=_SECONDS, registry=here
        )
        self.queue = Gauge("rm_queue_depth", "Requests that wait or are worked on", ["queue"], registry=here)
        self.backlog = Gauge("rm_consolidation_backlog_streams", "Streams that wait for consolidation", registry=here)
        self.given_up = Gauge("rm_streams_given_up", "Times a stream became degraded since the start", registry=here)
        self.connections = Gauge("rm_connections", "Open connections", registry=here)
        self.draining = Gauge("rm_draining", "1 while the server stops", registry=here)
        self.build, self.model = (
            Info("rm_build", "Release", registry=here),
            Info("rm_model", "Model loaded", registry=here),
        )

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)


class MeteredStore:
    """A store whose writes are timed; all else is the store's own."""

    def __init__(self, store: Any, metrics: Metrics) -> None:
        self._store, self._metrics = store, metrics
        if hasattr(store, "submit"):  # not every store can begin without waiting
            self.submit = self._submit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def update(self, key: StreamKey, plan: Plan) -> Row | None:
        """The store's, with its time; a refusal by the plan is no error of the store."""
        started = time.perf_counter()
        try:
            return self._store.update(key, plan)
        except ServiceError as error:
            self._note(error)
            raise
        finally:
            self._metrics.commits.observe(time.perf_counter() - started)

    def _submit(self, key: StreamKey, plan: Plan) -> Future[Row | None]:
        """The same without waiting."""
        started = time.perf_counter()
        written: Future[Row | None] = self._store.submit(key, plan)

        def done(_: Future[Row | None]) -> None:
            self._metrics.commits.observe(time.perf_counter() - started)
            self._note(written.exception())

        written.add_done_callback(done)
        return written

    def _note(self, error: BaseException | None) -> None:
        if isinstance(error, ServiceError) and error.code in ("store_unavailable", "stale_epoch"):
            self._metrics.store_errors.labels(error.code).inc()


class MeteredNetwork:
    """A network whose folds are timed; all else is the network's own."""

    def __init__(self, network: Any, observe: Callable[[float], object]) -> None:
        self._network = network
        for name in ("fold", "fold_many"):
            if (method := getattr(network, name, None)) is not None:
                setattr(self, name, _timed(method, observe))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def _timed(method: Callable[..., Any], observe: Callable[[float], object]) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return method(*args, **options)
        finally:
            observe(time.perf_counter() - started)

    return run
