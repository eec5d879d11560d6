"""`Client`: the memory of a server, from threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

import httpx

from remem.client import calls
from remem.client.numbering import Numbered
from remem.client.retries import Patience, base_url, seconds_in, token_from
from remem.service.errors import Expired, NotReady, ServiceError, UnknownStream
from remem.service.events import FLUSH
from remem.service.results import Answered, Appended, Inspected, Listed, Verified
from remem.service.store import Deleted

T = TypeVar("T")


class Client:
    """The streams of a server, in the name of the tenant whose token it is.

    Every call is tried again after lost connections, 429, 503 and 504, as long as `patience` lasts and a repetition
    does no harm; it is safe from many threads at once.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 10.0,
        patience: float = 30.0,
        verify: Any = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            token: without it, the environment variable REMEM_TOKEN.
            timeout: seconds for one try; for what may take a server minutes, such as a rebuild, at least five of them.
            patience: seconds for all tries of one call; 0 tries once.
            verify: how to check the server's certificate, as httpx takes it.
        """
        self._patience, self._timeout = patience, timeout
        headers = {"Authorization": f"Bearer {token_from(token)}", "User-Agent": "remem"}
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self._http = httpx.Client(
            base_url=base_url(url), headers=headers, timeout=timeout, verify=verify, transport=transport, limits=limits
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def stream(self, name: str) -> Stream:
        """One stream, whose events are numbered here."""
        return Stream(self, name)

    def append(
        self, stream: str, events: Sequence[Any], *, seq: int | None = None, idempotency_key: str | None = None
    ) -> Appended:
        """Add events, all or none; returns when they are on the server's disk.

        It is repeated until it is known to be stored: with `seq`, the number of the first, or by a key, which is drawn
        here unless you give one. A stream knows the keys of its last 64 calls for a day; numbers are known for ever,
        and `stream()` numbers for you.
        """
        return self._run(calls.append(stream, events, seq, idempotency_key))

    def flush(self, stream: str, *, seq: int | None = None, idempotency_key: str | None = None) -> Appended:
        """End the segment at hand, and wait until it is in the memory."""
        return self._run(calls.flush(stream, seq, idempotency_key))

    def query(
        self,
        stream: str,
        question: Any,
        *,
        candidates: Sequence[Any] | None = None,
        top: int = 5,
        tail: Literal["include", "exclude"] = "include",
        min_seq: int | None = None,
        timeout: float = 5.0,
    ) -> Answered:
        """Answer from the memory; `min_seq` waits until all events below it are taken into account.

        It waits for `timeout` seconds, but no longer than the server's own deadline, 5 seconds unless it was set.
        A model that chooses among answers needs `candidates`.
        """
        call = calls.query(
            stream, question, candidates=candidates, top=top, tail=tail, min_seq=min_seq, timeout=timeout
        )
        return self._run(call)

    def query_many(self, questions: Iterable[tuple[str, Any]], *, top: int = 5) -> list[Answered | ServiceError]:
        """Answers of up to 256 streams, each given as (stream, question); a refusal stands in its answer's place."""
        return self._run(calls.query_many(questions, top))

    def create(self, stream: str, *, retention: Literal["tail", "all"] | None = None, ttl: float | None = None) -> bool:
        """Make a stream without events, for `ttl` seconds after its last one; False if it was there."""
        return self._run(calls.create(stream, retention, ttl))

    def set_ttl(self, stream: str, ttl: float | None) -> None:
        """How many seconds a stream lives after its last event, None for ever; may end it at once."""
        self._run(calls.set_ttl(stream, ttl))

    def inspect(self, stream: str) -> Inspected:
        """Where a stream is, how it fares, what it takes; never what it holds."""
        return self._run(calls.inspect(stream))

    def list(self, *, prefix: str = "", cursor: str | None = None, limit: int = 100) -> Listed:
        """Names of streams, a page at a time."""
        return self._run(calls.list_page(prefix, cursor, limit))

    def delete(self, stream: str) -> Deleted:
        """Remove memory, events and snapshots."""
        return self._run(calls.delete(stream))

    def snapshot(self, stream: str, name: str, *, idempotency_key: str | None = None) -> None:
        """Keep a named copy."""
        self._run(calls.snapshot(stream, name, idempotency_key))

    def restore(self, stream: str, name: str, *, idempotency_key: str | None = None) -> Appended:
        """Put a copy in place of what the stream holds."""
        return self._run(calls.restore(stream, name, idempotency_key))

    def rebuild(
        self, stream: str, events: Sequence[Any] | None = None, *, idempotency_key: str | None = None
    ) -> Appended:
        """Fold the stream again, from its retained events or from those given."""
        return self._run(calls.rebuild(stream, events, idempotency_key))

    def export(self, stream: str) -> bytes:
        """The stream as one safetensors file."""
        return self._run(calls.export(stream))

    def import_archive(self, stream: str, archive: bytes) -> Appended:
        """Make a stream of what `export` returned; one that is there is refused, unless it has the same events."""
        return self._run(calls.import_archive(stream, archive))

    def backup(self) -> dict[str, Any]:
        """Have the server copy its store; returns the copy's name and bytes."""
        return self._run(calls.backup())

    def verify(self) -> Verified:
        """Check every checksum of the server's store."""
        return self._run(calls.verify())

    def models(self) -> Sequence[dict[str, Any]]:
        """The models that are loaded."""
        return self._run(calls.models())

    def limits(self) -> dict[str, Any]:
        """What the server refuses as too large."""
        return self._run(calls.limits())

    def ready(self) -> bool:
        """Whether the server takes requests; waits for it as long as patience lasts."""
        return self._run(calls.ready())

    def _run(self, call: calls.Call[T]) -> T:
        content, patience = call.content(), Patience(self._patience, call.retry)
        headers = call.headers()
        timeout = httpx.Timeout(self._timeout, read=max(self._timeout, call.seconds))
        while True:
            try:
                reply = self._http.request(call.method, call.path, content=content, headers=headers, timeout=timeout)
                return calls.read_reply(call, reply.status_code, reply.headers.get("content-type", ""), reply.content)
            except ServiceError as error:
                wait = patience.after_refusal(error, seconds_in(reply.headers))
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as lost:
                wait = patience.after_loss(NotReady(f"The server can't be reached ({lost})."), was_sent=False)
            except httpx.TransportError as lost:
                wait = patience.after_loss(NotReady(f"The connection was lost ({lost})."), was_sent=True)
            time.sleep(wait)


class Stream(Numbered):
    """One stream of a server. It numbers what is appended, so that every append may be repeated safely.

    One writer at a time: if another one appends as well, `SequenceConflict` or `SequenceGap` is raised, and nothing is
    renumbered; `resume()` goes on after what is there. After an append that failed without a reply, or was cancelled,
    the same events sent again keep their numbers; before others are sent, the server is asked whether it has those.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.name = client, name
        self._lock = threading.Lock()

    def resume(self) -> int:
        """Ask the server where the stream is, and go on from there."""
        try:
            return self._go_on_from((self._client.inspect(self.name)).next_seq)
        except (Expired, UnknownStream):
            return self._go_on_from(0)

    def append(self, events: Sequence[Any]) -> Appended:
        """Add events, all or none; returns when they are on the server's disk."""
        with self._lock:
            seq = self.resume() if (known := self._seq_of(events)) is None else known
            with self._storing(events, seq):
                return self._client.append(self.name, events, seq=seq)

    def flush(self) -> Appended:
        """End the segment at hand, and wait until it is in the memory."""
        with self._lock:
            seq = self.resume() if (known := self._seq_of([FLUSH])) is None else known
            with self._storing([FLUSH], seq):
                return self._client.flush(self.name, seq=seq)

    def query(
        self,
        question: Any,
        *,
        candidates: Sequence[Any] | None = None,
        top: int = 5,
        tail: Literal["include", "exclude"] = "include",
        min_seq: int | None = None,
        timeout: float = 5.0,
    ) -> Answered:
        """Answer from the memory; all that was appended through this object is taken into account."""
        wanted = self.next_seq if min_seq is None and tail == "include" else min_seq
        return self._client.query(
            self.name, question, candidates=candidates, top=top, tail=tail, min_seq=wanted, timeout=timeout
        )

    def create(self, *, retention: Literal["tail", "all"] | None = None, ttl: float | None = None) -> bool:
        """Make the stream without events, for `ttl` seconds after its last one; False if it was there."""
        return self._client.create(self.name, retention=retention, ttl=ttl)

    def set_ttl(self, ttl: float | None) -> None:
        """How many seconds the stream lives after its last event, None for ever; may end it at once."""
        self._client.set_ttl(self.name, ttl)

    def inspect(self) -> Inspected:
        """Where the stream is, how it fares, what it takes; never what it holds."""
        return self._client.inspect(self.name)

    def snapshot(self, name: str) -> None:
        """Keep a named copy."""
        self._client.snapshot(self.name, name)

    def restore(self, name: str) -> Appended:
        """Put a copy in place of what the stream holds, and go on from there."""
        with self._lock:
            done = self._client.restore(self.name, name)
            self._go_on_from(done.next_seq)
            return done

    def rebuild(self, events: Sequence[Any] | None = None) -> Appended:
        """Fold the stream again, from its retained events or from those given."""
        with self._lock:
            done = self._client.rebuild(self.name, events)
            self._go_on_from(done.next_seq)
            return done

    def export(self) -> bytes:
        """The stream as one safetensors file."""
        return self._client.export(self.name)

    def import_archive(self, archive: bytes) -> Appended:
        """Make the stream of what `export` returned, and go on from there."""
        with self._lock:
            done = self._client.import_archive(self.name, archive)
            self._go_on_from(done.next_seq)
            return done

    def delete(self) -> Deleted:
        """Remove memory, events and snapshots; a later append begins the stream anew."""
        with self._lock:
            gone = self._client.delete(self.name)
            self._go_on_from(0)
            return gone
