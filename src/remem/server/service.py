"""What the routes share: the engine, its queues, who calls, and whether the server is about to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remem.server.flights import Flights
from remem.server.logs import log
from remem.server.metrics import Metrics
from remem.server.settings import ServerSettings
from remem.server.tokens import TokenFile
from remem.server.work import Batcher, Buckets, Lanes
from remem.service.consolidate import Outcome
from remem.service.engine import MemoryEngine
from remem.service.errors import Draining, InvalidValue
from remem.service.limits import StreamKey

if TYPE_CHECKING:
    from remem.server.reader import Reader


class Service:
    """One engine behind one server."""

    def __init__(self, engine: MemoryEngine, tokens: TokenFile, settings: ServerSettings, metrics: Metrics) -> None:
        self.engine, self.tokens, self.settings, self.metrics = engine, tokens, settings, metrics
        self.lanes, self.buckets = Lanes(settings, metrics), Buckets(settings.tenant_rate)
        self.questions, self.flights = Batcher(engine, self.lanes, settings), Flights()
        self._reader: Reader | None = None
        self._reader_lost = self._closing = False
        self.draining = False
        self.stop: Callable[[], None] = lambda: None
        """Begins an orderly stop; the one who runs the server puts it in."""
        for lane in self.lanes.waiting:
            metrics.queue.labels(lane).set_function(partial(self.lanes.waiting.__getitem__, lane))
        metrics.backlog.set_function(lambda: engine.backlog)
        metrics.given_up.set_function(lambda: engine.given_up)
        metrics.draining.set_function(lambda: self.draining)
        metrics.model.info({"fingerprint": engine.network.fingerprint, "numerics": engine.network.numerics})
        metrics.build.info({"version": release()})

    async def start(self) -> None:
        """In the event loop that will serve."""
        if self._reader is not None:
            await self._reader.connect()
        if hasattr(self.engine.store, "lend"):
            self.engine.store.lend(asyncio.get_running_loop())

    def use(self, reader: Reader) -> None:
        """Let another process compute; should it be lost, this one does."""
        self._reader = self.questions.reader = reader
        self.engine.prepare_by(self._prepared)

    def _prepared(self, keys: Sequence[StreamKey]) -> dict[StreamKey, Outcome]:
        if self._reader_lost or self._reader is None:
            return self.engine.prepare(keys)
        try:
            found, took = self._reader.prepared(keys)
        except ConnectionError:
            if self._closing:
                raise Draining("The server is stopping.") from None
            log("reader lost", level=40, work="folds")
            self._reader_lost = True
            return self.engine.prepare(keys)
        for seconds in took:
            self.metrics.folds.observe(seconds)
        return found

    def require_writable(self) -> None:
        """Go through a commit that changes nothing; raises what stands against it."""
        self.engine.store.require_writable()

    @property
    def item_kind(self) -> str:
        """What the model's events are."""
        network = self.engine.network
        kind = getattr(getattr(network, "codec", None), "kind", None)
        return kind or ("vectors" if hasattr(network, "item_dim") else "other")

    def backup(self) -> dict[str, Any]:
        """A copy of the store in the folder for them; no caller chooses its name."""
        store = getattr(self.engine.store, "path", None)
        if store is None:
            raise InvalidValue("The server's store is no file; back it up by its own means.", path="store")
        now = datetime.now(UTC)
        name = f"{store.stem}-{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}{store.suffix}"
        return {"file": name, "bytes": self.engine.backup(Path(self.settings.backups or store.parent) / name)}

    def close(self) -> None:
        """Finish what was accepted, fold what can be folded in the time left, close the store."""
        self.lanes.close()
        self.engine.settle(self.settings.drain_seconds)
        self._closing = True
        if self._reader is not None:
            self._reader.close()
        self.engine.close()


def release() -> str:
    """The version that is installed."""
    try:
        return version("remem")
    except PackageNotFoundError:
        return "unknown"


def as_json(value: Any) -> Any:
    """A result of the engine as plain JSON values; how a hop looked at slots stays inside."""
    if hasattr(value, "_asdict"):
        return {name: as_json(part) for name, part in value._asdict().items() if name != "read_weights"}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return value
