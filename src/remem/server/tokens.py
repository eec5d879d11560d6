"""Bearer tokens: each stands for a tenant and what may be done in its name. Only hashes are kept."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remem.errors import BadInput
from remem.server.logs import log
from remem.service.limits import checked_name

SCOPES = ("append", "query", "inspect", "delete", "export", "admin", "metrics")
_PREFIX = "remem_"
_LOOK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Caller:
    """Who a token stands for."""

    id: str
    """Names the token, without giving it away."""
    tenant: str
    scopes: tuple[str, ...]
    hash: str


class TokenFile:
    """The tokens of a server, in a JSON file of its own; a change to the file counts within a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._callers: list[Caller] = []
        self._seen: tuple[int, int] | None = None
        self._looked = 0.0
        self._load()

    def find(self, token: str) -> Caller | None:
        """Whose token this is."""
        if time.monotonic() - self._looked > _LOOK_AGAIN_SECONDS:
            try:
                self._load()
            except (BadInput, OSError) as error:  # those read last stay good until it is mended
                log("tokens unreadable", level=40, error=error)
        given = _hash(token)
        found = None
        for caller in self._callers:  # all of them, so that the time says nothing
            if hmac.compare_digest(caller.hash, given):
                found = caller
        return found

    @property
    def callers(self) -> list[Caller]:
        """All tokens, without themselves."""
        return list(self._callers)

    def add(self, tenant: str, scopes: Sequence[str]) -> str:
        """A new token, which is shown this once."""
        checked_name(tenant, "tenant")
        if not scopes or (wrong := [scope for scope in scopes if scope not in SCOPES]):
            raise BadInput(f"The scopes are {', '.join(scopes) or 'none'}; expected some of {', '.join(SCOPES)}.")
        del wrong
        token = _PREFIX + secrets.token_urlsafe(32)
        chosen = tuple(scope for scope in SCOPES if scope in scopes)
        with self._changing():
            self._save([*self._callers, Caller(secrets.token_hex(4), tenant, chosen, _hash(token))])
        return token

    def add_first(self, tenant: str, scopes: Sequence[str]) -> str | None:
        """A new token if there is none at all, of anybody's making."""
        self._load()
        return None if self._callers else self.add(tenant, scopes)

    def remove(self, id: str) -> bool:
        """Take a token back; False if there is none."""
        with self._changing():
            left = [caller for caller in self._callers if caller.id != id]
            if len(left) == len(self._callers):
                return False
            self._save(left)
            return True

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One change after the other, each to the tokens as they are then: other processes change them too."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._load()
            yield
        finally:
            os.close(lock)

    def _load(self) -> None:
        with self._lock:
            self._looked = time.monotonic()
            try:
                about = self.path.stat()
            except FileNotFoundError:
                self._callers, self._seen = [], None
                return
            if self._seen == (about.st_mtime_ns, about.st_ino):
                return
            self._callers = _read(self.path)
            self._seen = (about.st_mtime_ns, about.st_ino)

    def _save(self, callers: list[Caller]) -> None:
        """Whole or not at all, readable by the owner alone."""
        beside = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(json.dumps({"format": 1, "tokens": [asdict(caller) for caller in callers]}, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()
            raise
        self._load()


def _hash(token: str) -> str:
    # a token has 256 bits of chance, so a plain hash gives nothing to guess
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path) -> list[Caller]:
    try:
        whole: Any = json.loads(path.read_text())
        if whole["format"] != 1:
            raise ValueError(f"format {whole['format']}")
        callers = [
            Caller(str(entry["id"]), checked_name(entry["tenant"], "tenant"), tuple(entry["scopes"]), entry["hash"])
            for entry in whole["tokens"]
        ]
        if any(len(bytes.fromhex(caller.hash)) != 32 or not set(caller.scopes) <= set(SCOPES) for caller in callers):
            raise ValueError("a hash or a scope that is none")
        return callers
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{path} is not a file of tokens ({error}); expected one that remem wrote.") from None
