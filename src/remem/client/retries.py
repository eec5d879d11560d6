"""When to try again: after lost connections and "later", with waits drawn at random below a growing bound."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from remem.errors import BadInput
from remem.service.errors import ServiceError

_FIRST, _MOST = 0.05, 2.0
_STATUSES = (429, 503, 504)


class Patience:
    """One call's tries; it ends when its time is up."""

    def __init__(self, seconds: float, may_repeat: bool) -> None:
        self._deadline, self._may_repeat, self._tries = time.monotonic() + seconds, may_repeat, 0

    def wait_after(self, error: Exception, *, was_sent: bool, retry_after: float = 0.0) -> float:
        """Seconds to wait before the next try; raises the error where there is none.

        What certainly was not begun may always be sent again: a connection that was never made, or a 429 or 503.
        """
        unsent = not was_sent or (isinstance(error, ServiceError) and error.status in (429, 503))
        if not (self._may_repeat or unsent) or (isinstance(error, ServiceError) and error.status not in _STATUSES):
            raise error
        if isinstance(error, ServiceError) and error.code == "not_caught_up":
            raise error  # the server has waited already
        bound = min(_MOST, _FIRST * 2**self._tries)
        self._tries += 1
        wait = retry_after * random.random() + bound * random.random()
        if time.monotonic() + wait > self._deadline:
            raise error
        return wait


def token_from(given: str | None) -> str:
    """The token given, or that of the environment."""
    token = given or os.environ.get("REMEM_TOKEN", "")
    if not token:
        raise BadInput("There is no token; give one, or set the environment variable REMEM_TOKEN.")
    if not token.isascii() or any(character.isspace() for character in token):
        raise BadInput("The token holds characters that no token has; expected the one the server printed.")
    return token


def base_url(url: str) -> str:
    """The server's address, checked."""
    if not url.startswith(("http://", "https://")):
        raise BadInput(f"{url!r} is no address of a server; expected http://HOST:PORT or https://HOST:PORT.")
    return url.rstrip("/")


def seconds_in(headers: Any) -> float:
    """What Retry-After says."""
    text = headers.get("retry-after", "")
    return float(text) if text.isdigit() and len(text) < 5 else 0.0
