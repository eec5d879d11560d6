"""Calls with a key that are under way: the same one is not begun a second time before the first has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastapi import Request

from remem.service.errors import InProgress

KEY_HEADER = "Idempotency-Key"
KEY_PARAMETER = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "description": "Drawn by the caller, one for each call that no number protects; sent again, the call is made once.",
    "schema": {"type": "string", "pattern": "^[!-~]+$", "minLength": 1, "maxLength": 256},
}


def key_of(request: Request) -> str | None:
    """The key that a request carries."""
    return request.headers.get(KEY_HEADER)


class Flights:
    """For the event loop alone; as many as there are requests, which are bounded elsewhere."""

    def __init__(self) -> None:
        self._under_way: set[tuple[str, str, str]] = set()

    @contextlib.contextmanager
    def of(self, tenant: str, stream: str, key: str | None) -> Iterator[None]:
        """While the call lasts; refused if the same one lasts already."""
        if key is None:
            yield
            return
        if (flight := (tenant, stream, key)) in self._under_way:
            raise InProgress("A call with this key is under way; ask again for its reply.")
        self._under_way.add(flight)
        try:
            yield
        finally:
            self._under_way.discard(flight)
