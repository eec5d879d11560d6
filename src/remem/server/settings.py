"""What an operator may set, with bounds on everything a caller can make large."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass

from remem.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where the server listens and what it refuses."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0 takes a free one."""
    behind_proxy: bool = False
    """A proxy in front ends TLS: listening on other addresses than this machine's own is allowed without it."""
    tls_cert: str | None = None
    tls_key: str | None = None
    body_bytes: int = 2**20
    """Longest body of a request."""
    header_bytes: int = 16 * 2**10
    """Longest request line and headers together."""
    json_depth: int = 16
    """Deepest nesting of a body."""
    deadline: float = 5.0
    """Seconds after which a request is given up, its reading included."""
    admin_deadline: float = 300.0
    """The same for rebuild, restore, export and verify."""
    connections: int = 256
    """Most open connections."""
    queue: int = 2000
    """Most requests that wait for a worker; one more is refused at once."""
    backups: str = ""
    """Folder for copies of the store; by default the one that the store is in."""
    tenant_rate: float = 0.0
    """Requests a second of one tenant, in bursts of as many; 0 sets no limit."""
    drain_window: float = 0.0
    """Seconds that a stopping server goes on serving while /readyz says 503, for balancers to notice."""
    drain_seconds: float = 30.0
    """Seconds that accepted work may take to finish after that."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise BadInput(f"The port is {self.port}; expected 0 to 65535.")
        for name in ("body_bytes", "header_bytes", "json_depth", "deadline", "admin_deadline", "connections", "queue"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{name} is {getattr(self, name)}; expected a number above 0.")
        for name in ("tenant_rate", "drain_window", "drain_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(f"{name} is {getattr(self, name)}; expected a number, 0 or more.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise BadInput("TLS needs a certificate and its key; give --tls-cert and --tls-key.")
        if not self.is_local and self.tls_cert is None and not self.behind_proxy:
            raise BadInput(
                f"{self.host} can be reached from other machines, and tokens would travel in the clear; give "
                "--tls-cert and --tls-key, or --behind-proxy if a proxy in front ends TLS."
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
