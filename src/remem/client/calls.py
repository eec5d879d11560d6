"""What goes over the wire, without the wire: each verb as a request and the way to read its reply."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from remem.service.errors import ERROR_TYPE, InvalidValue, NotReady, ServiceError, error_of
from remem.service.events import Event
from remem.service.limits import checked_name
from remem.service.results import Answered, Appended, Inspected, Listed, Problem, Verified
from remem.service.store import Deleted

T = TypeVar("T")
_LONG = 310.0  # the server gives up after 300


class Said(NamedTuple):
    """The likeliest answer with its probability, and the runners-up in order."""

    answer: Any
    probability: float
    top: list[tuple[Any, float]]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: dict[str, Any] | bytes | None = None
    retry: bool = True
    """Whether repeating it after a lost reply does no harm."""
    key: str | None = None
    """Tells the server that a repetition is one."""
    seconds: float = 0.0
    """How long the server may take for it, where that is longer than for others."""

    def headers(self) -> dict[str, str]:
        """What is sent beside the body."""
        headers = {} if self.key is None else {"Idempotency-Key": self.key}
        if self.body is None:
            return headers
        kind = "application/octet-stream" if isinstance(self.body, bytes) else "application/json"
        return headers | {"Content-Type": kind}

    def content(self) -> bytes | None:
        """The body as it is sent."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        try:
            return json.dumps(self.body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidValue(f"What was given can't be sent as JSON ({error}).") from None


def append(stream: str, events: Sequence[Any], seq: int | None, key: str | None = None) -> Call[Appended]:
    """Without a number a key tells a repetition from new events."""
    body = {"events": _events(events), "seq": seq}
    return Call("POST", _path(stream, "events"), _of(Appended), body, key=_key(key) if seq is None else None)


def flush(stream: str, seq: int | None, key: str | None = None) -> Call[Appended]:
    """End the segment at hand."""
    key = _key(key) if seq is None else None
    return Call("POST", _path(stream, "flush"), _of(Appended), {"seq": seq}, key=key)


def query(
    stream: str,
    question: Any,
    *,
    candidates: Sequence[Any] | None,
    top: int,
    tail: str,
    min_seq: int | None,
    timeout: float,
) -> Call[Answered]:
    """Ask."""
    body = {"question": question, "top": top, "tail": tail, "min_seq": min_seq,
            "timeout_ms": max(1, min(60_000, round(1000 * timeout)))}  # fmt: skip
    if candidates is not None:
        body["candidates"] = list(candidates)
    return Call("POST", _path(stream, "query"), _answered, body, seconds=min(60.0, timeout) + 1)


def query_many(questions: Iterable[tuple[str, Any]], top: int) -> Call[list[Answered | ServiceError]]:
    """Ask several streams at once."""
    asked = [
        {"stream": checked_name(stream, "stream"), "question": question, "top": top} for stream, question in questions
    ]
    return Call("POST", "/v1/query", _answers, {"queries": asked})


def create(stream: str, retention: str | None, ttl: float | None) -> Call[bool]:
    """Make a stream."""
    return Call("PUT", _path(stream), lambda reply: reply["created"], {"retention": retention, "ttl": ttl})


def set_ttl(stream: str, ttl: float | None) -> Call[None]:
    """Let a stream live longer, or less long."""
    return Call("PATCH", _path(stream), lambda _: None, {"ttl": ttl})


def inspect(stream: str) -> Call[Inspected]:
    """Look at a stream."""
    return Call("GET", _path(stream), _of(Inspected))


def list_page(prefix: str, cursor: str | None, limit: int) -> Call[Listed]:
    """A page of names."""
    path = f"/v1/streams?prefix={quote(prefix, safe='')}&cursor={quote(cursor or '', safe='')}&limit={limit}"
    return Call("GET", path, _of(Listed))


def delete(stream: str) -> Call[Deleted]:
    """Remove a stream."""
    return Call("DELETE", _path(stream), _of(Deleted))


def snapshot(stream: str, name: str, key: str | None = None) -> Call[None]:
    """Keep a copy."""
    return Call("POST", _path(stream, "snapshot"), lambda reply: None, {"name": name}, key=_key(key), seconds=_LONG)


def restore(stream: str, name: str, key: str | None = None) -> Call[Appended]:
    """Go back to a copy. Repeated, it would undo what came in between, were it not for its key."""
    return Call("POST", _path(stream, "restore"), _of(Appended), {"name": name}, key=_key(key), seconds=_LONG)


def rebuild(stream: str, events: Sequence[Any] | None, key: str | None = None) -> Call[Appended]:
    """Fold again."""
    body = {"events": None if events is None else _events(events)}
    return Call("POST", _path(stream, "rebuild"), _of(Appended), body, key=_key(key), seconds=_LONG)


def export(stream: str) -> Call[bytes]:
    """The stream as a file."""
    return Call("GET", _path(stream, "memory"), lambda reply: reply, seconds=_LONG)


def import_archive(stream: str, archive: bytes) -> Call[Appended]:
    """A stream of a file. Repeated, it finds the same stream."""
    if not isinstance(archive, bytes):
        raise InvalidValue("An archive is bytes, as `export` returns them.", path="archive")
    return Call("PUT", _path(stream, "memory"), _of(Appended), archive, seconds=_LONG)


def backup() -> Call[dict[str, Any]]:
    """Copy the whole store. Repeated, there would be two copies."""
    return Call("POST", "/v1/admin/backup", _backup_of, retry=False, seconds=_LONG)


def verify() -> Call[Verified]:
    """Check the whole store."""
    return Call("POST", "/v1/admin/verify", _verified, seconds=_LONG)


def models() -> Call[list[dict[str, Any]]]:
    """What is loaded."""
    return Call("GET", "/v1/models", lambda reply: reply["models"])


def limits() -> Call[dict[str, Any]]:
    """What is refused as too large."""
    return Call("GET", "/v1/limits", lambda reply: reply)


def ready() -> Call[bool]:
    """Whether the server takes requests."""
    return Call("GET", "/readyz", lambda reply: True)


def read_reply(call: Call[T], status: int, kind: str, content: bytes) -> T:
    """What the verb returns; a refusal is raised as the engine would have raised it."""
    kind = kind.partition(";")[0].strip()
    if kind == "application/octet-stream" and status == 200:
        return call.read(content)
    try:
        reply = json.loads(content)
    except ValueError:
        reply = None
    if status == 200 and kind == "application/json":
        with contextlib.suppress(AttributeError, IndexError, KeyError, TypeError):  # JSON of something else
            return call.read(reply)
    # others say "code" too: a gateway in front is not the server, and its word on a call is another
    if isinstance(reply, dict) and str(reply.get("type")).startswith(ERROR_TYPE):
        raise error_of(reply)
    raise NotReady(f"Something that is no remem server answered with the status {status}.", http_status=status)


def _path(stream: str, verb: str = "") -> str:
    # names need no quoting, and no name can leave its place in the path
    return f"/v1/streams/{checked_name(stream, 'stream')}" + (f"/{verb}" if verb else "")


def _backup_of(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: reply[name] for name in ("file", "bytes")}


def _key(given: str | None) -> str:
    return given if given is not None else secrets.token_urlsafe(16)


def _events(events: Any) -> list[Any]:
    if isinstance(events, str | bytes) or not isinstance(events, Sequence):
        raise InvalidValue("Expected a list of events, even for a single one.", path="events")
    return [_event(event) for event in events]


def _event(event: Any) -> Any:
    return {"item": event.item, "ends_segment": event.ends_segment} if isinstance(event, Event) else event


def _of(kind: type[T]) -> Callable[[Any], T]:
    """Reads a dataclass; fields that a newer server adds are left out."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return lambda reply: kind(**{name: value for name, value in reply.items() if name in names})


def _answered(reply: Any) -> Answered:
    said = reply["answer"]
    if isinstance(said, dict) and said.keys() == set(Said._fields):
        said = Said(said["answer"], said["probability"], [(answer, p) for answer, p in said["top"]])
    return _of(Answered)({**reply, "answer": said})


def _answers(reply: Any) -> list[Answered | ServiceError]:
    return [
        _answered(result["answered"]) if result.get("answered") else error_of(result["problem"])
        for result in reply["results"]
    ]


def _verified(reply: Any) -> Verified:
    return _of(Verified)({**reply, "problems": [Problem(**problem) for problem in reply["problems"]]})
