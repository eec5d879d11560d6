"""A server's life: listen, serve, and stop without losing anything that was accepted."""

from __future__ import annotations

import gc
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from remem.errors import BadInput
from remem.server.app import make_app
from remem.server.http import bounded_protocol
from remem.server.logs import log
from remem.server.service import Service
from remem.server.settings import ServerSettings

_SWITCH_SECONDS = 0.00005
_KEEP_ALIVE_SECONDS = 75


class DrainingServer(uvicorn.Server):
    """On the first signal /readyz says 503 while all goes on; after the window it stops accepting, and finishes."""

    def __init__(self, config: uvicorn.Config, service: Service, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._on_start = service, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so only when connections are taken and signals are heeded."""
        await super().startup(sockets)
        self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT; a second SIGINT does not wait."""
        if self._service.draining:
            if sig == signal.SIGINT:
                self.force_exit = True
            return
        self.begin_drain()

    def begin_drain(self) -> None:
        """Stop in good order."""
        if self._service.draining:
            return
        self._service.draining = True
        timer = threading.Timer(self._service.settings.drain_window, self._stop_accepting)
        timer.daemon = True
        timer.start()

    def _stop_accepting(self) -> None:
        self.should_exit = True


def require_certificate(settings: ServerSettings) -> None:
    """Refuse files that are none, before anything is opened."""
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:
        raise BadInput(
            f"{settings.tls_cert} and {settings.tls_key} are no certificate and its key ({error.strerror}); expected "
            "two PEM files that belong together."
        ) from None


def listen(settings: ServerSettings) -> socket.socket:
    """A bound socket, so that a taken port is a refusal and a free one is known."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise BadInput(f"{settings.host}:{settings.port} can't be listened on ({error.strerror}).") from None
    return listener


def serve(service: Service, listener: socket.socket, on_start: Callable[[], None]) -> None:
    """Serve until told to stop; returns when all that was accepted is done and the store is closed."""
    settings = service.settings
    config = uvicorn.Config(
        make_app(service)[1],
        http=bounded_protocol(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    server = DrainingServer(config, service, on_start)
    service.stop = server.begin_drain
    service.metrics.connections.set_function(lambda: len(server.server_state.connections))
    # the event loop and the thread that writes hand over to each other several times for every append; by default each
    # would keep the other waiting for up to 5 ms
    sys.setswitchinterval(_SWITCH_SECONDS)
    # all that lives as long as the process need not be looked at again and again
    gc.collect()
    gc.freeze()
    host, port = listener.getsockname()[:2]
    log("started", host=host, port=port, store=service.engine.store.description)
    server.run(sockets=[listener])
    log("stopped")
