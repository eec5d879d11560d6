"""`remem serve STORE --model MODEL`: the memory over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from remem.errors import BadInput
from remem.header import model_path, read_header


@dataclass(frozen=True, kw_only=True)
class Options:
    """Serve a store's streams over HTTP until stopped by SIGTERM or Ctrl-C."""

    store: tyro.conf.Positional[str]
    """A store file, made if it is not there, or redis://HOST:PORT/DB."""
    model: Path
    """Folder of a run or of a saved model."""
    host: str = "127.0.0.1"
    """Address to listen on; other than this machine's own needs TLS or --behind-proxy."""
    port: int = 8080
    """Port to listen on; 0 takes a free one."""
    tokens: Path | None = None
    """File of tokens; by default beside the store. Where there is none, one token is made and printed."""
    behind_proxy: bool = False
    """A proxy in front ends TLS."""
    tls_cert: str | None = None
    """Certificate, as a PEM file."""
    tls_key: str | None = None
    """Its key."""
    retention: Literal["tail", "all"] = "tail"
    """What new streams keep: the tail, or all events, which makes them rebuildable."""
    ttl: float | None = None
    """Seconds that new streams live after their last append; without it for ever."""
    backups: Path | None = None
    """Folder for copies of the store; by default the one that the store is in."""
    durability: Literal["fsync", "os"] = "fsync"
    """Whether to survive a power cut, or the end of the process alone."""
    queue: int = 2000
    """Most requests that wait; one more is answered with 429."""
    connections: int = 256
    """Most open connections."""
    deadline: float = 5.0
    """Seconds for a request."""
    tenant_rate: float = 0.0
    """Requests a second of one tenant; 0 sets no limit."""
    drain_window: float = 0.0
    """Seconds that a stopping server goes on serving while /readyz says 503, for balancers to notice."""
    drain_seconds: float = 30.0
    """Seconds that accepted work may take to finish after that."""
    reader: bool = True
    """Answer questions and fold events in a process of its own, on a second core; for a store file."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Info writes a line for every request, without its content."""


def main(argv: list[str]) -> None:
    """Open, print where and with which token, serve."""
    options = tyro.cli(Options, args=argv, prog="remem serve")
    try:
        from remem.server.logs import log, use_json_logs
        from remem.server.metrics import MeteredNetwork, MeteredStore, Metrics
        from remem.server.reader import Reader
        from remem.server.run import listen, require_certificate, serve
        from remem.server.service import Service
        from remem.server.settings import ServerSettings
        from remem.server.tokens import SCOPES, TokenFile
    except ImportError as error:
        raise BadInput(
            f"{error.name} is not installed; install the server with: pip install 'remem[service]'."
        ) from None
    from remem.service.engine import DEFAULT_TENANT, MemoryEngine
    from remem.service.expiry import checked_ttl
    from remem.service.opening import open_network, open_store, shown_store
    from remem.service.stores.sqlite import SqliteStore

    settings = ServerSettings(
        host=options.host,
        port=options.port,
        behind_proxy=options.behind_proxy,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        queue=options.queue,
        connections=options.connections,
        deadline=options.deadline,
        backups=str(options.backups or ""),
        tenant_rate=options.tenant_rate,
        drain_window=options.drain_window,
        drain_seconds=options.drain_seconds,
    )
    checked_ttl(options.ttl)
    require_certificate(settings)
    if options.backups is not None and not options.backups.is_dir():
        raise BadInput(f"{options.backups} is no folder; make it first, for the server's user alone.")
    read_header(model_path(options.model), "run")  # before the store is made and a second process begins
    use_json_logs(options.log_level)
    tokens = TokenFile(options.tokens or tokens_beside(options.store))
    listener = listen(settings)
    metrics = Metrics()
    opened = open_store(options.store, durability=options.durability)
    reader = Reader(options.store, options.model) if options.reader and isinstance(opened, SqliteStore) else None
    network = MeteredNetwork(open_network(options.model), metrics.folds.observe)
    engine = MemoryEngine.open(MeteredStore(opened, metrics), network, retention=options.retention, ttl=options.ttl)
    service = Service(engine, tokens, settings, metrics)
    if reader is not None:
        try:
            reader.wait_until_ready()
            service.use(reader)
        except ConnectionError:
            log("reader lost", level=40, work="all")

    def on_start() -> None:
        host, port = listener.getsockname()[:2]
        kind = "https" if options.tls_cert else "http"
        at = f"{kind}://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"remem: serving {shown_store(options.store)} on {at}", flush=True)
        if (made := tokens.add_first(DEFAULT_TENANT, SCOPES)) is not None:
            print(f"remem: token {made} (all scopes, tenant {DEFAULT_TENANT}; shown this once)", flush=True)

    serve(service, listener, on_start)


def tokens_beside(store: str) -> Path:
    """Where a store's tokens are: beside its file, or in this folder."""
    return Path("remem.tokens.json") if "://" in store or store == ":memory:" else Path(f"{store}.tokens.json")
