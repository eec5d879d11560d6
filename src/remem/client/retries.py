"""When to try again: after lost connections and "later", with waits drawn at random below a growing bound."""

from __future__ import annotations

import os
import random
import time
from typing import Any
from urllib.parse import urlsplit

from remem.errors import BadInput
from remem.service.errors import ServiceError

_FIRST, _MOST = 0.05, 2.0
_STATUSES = (429, 503, 504)
_OF_A_PROXY = (429, 502, 503, 504)  # its server restarts, or was lost with the request in hand
_NOT_BEGUN = ("queue_full", "over_quota", "draining", "not_ready", "in_progress")


class Patience:
    """One call's tries; it ends when its time is up."""

    def __init__(self, seconds: float, may_repeat: bool) -> None:
        self._deadline, self._may_repeat, self._tries = time.monotonic() + seconds, may_repeat, 0

    def after_refusal(self, error: ServiceError, retry_after: float) -> float:
        """Seconds to wait after a reply; raises the error where another try is in vain or might do harm."""
        # when asked to come back for these, nothing was begun; `not_caught_up` has waited at the server already
        if (error.status not in _STATUSES and error.code != "in_progress") or error.code == "not_caught_up":
            raise error
        # what no server of ours said says nothing about whether the call was begun
        foreign = error.details.get("http_status")
        if foreign is not None and foreign not in _OF_A_PROXY:
            raise error
        return self._wait(error, harmless=error.code in _NOT_BEGUN and foreign is None, retry_after=retry_after)

    def after_loss(self, error: ServiceError, *, was_sent: bool) -> float:
        """Seconds to wait after a connection that broke, or was never made."""
        return self._wait(error, harmless=not was_sent, retry_after=0.0)

    def _wait(self, error: ServiceError, *, harmless: bool, retry_after: float) -> float:
        if not (self._may_repeat or harmless):
            raise error
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
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        is_address = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:  # a port that is no number, half a bracket, a host with an empty part
        is_address = False
    if not is_address:
        raise BadInput(f"{url!r} is no address of a server; expected http://HOST:PORT or https://HOST:PORT.")
    return url.rstrip("/")


def seconds_in(headers: Any) -> float:
    """What Retry-After says."""
    text = headers.get("retry-after", "")
    return float(text) if text.isdigit() and len(text) < 5 else 0.0
