"""`AsyncClient`: the same names as `Client`, awaited."""

from __future__ import annotations

import asyncio
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


class AsyncClient:
    """The streams of a server, in the name of the tenant whose token it is.

    Every call is tried again after lost connections, 429, 503 and 504, as long as `patience` lasts and a repetition
    does no harm; it is safe from many tasks at once.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 10.0,
        patience: float = 30.0,
        verify: Any = True,
        transport: httpx.AsyncBaseTransport | None = None,
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
        self._http = httpx.AsyncClient(
            base_url=base_url(url), headers=headers, timeout=timeout, verify=verify, transport=transport, limits=limits
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()

    def stream(self, name: str) -> AsyncStream:
        """One stream, whose events are numbered here."""
        return AsyncStream(self, name)

    async def append(
        self, stream: str, events: Sequence[Any], *, seq: int | None = None, idempotency_key: str | None = None
    ) -> Appended:
        """Add events, all or none; returns when they are on the server's disk.

        It is repeated until it is known to be stored: with `seq`, the number of the first, or by a key, which is drawn
        here unless you give one. A stream knows the keys of its last 64 calls for a day; numbers are known for ever,
        and `stream()` numbers for you.
        """
        return await self._run(calls.append(stream, events, seq, idempotency_key))

    async def flush(self, stream: str, *, seq: int | None = None, idempotency_key: str | None = None) -> Appended:
        """End the segment at hand, and wait until it is in the memory."""
        return await self._run(calls.flush(stream, seq, idempotency_key))

    async def query(
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
        return await self._run(call)

    async def query_many(self, questions: Iterable[tuple[str, Any]], *, top: int = 5) -> list[Answered | ServiceError]:
        """Answers of up to 256 streams, each given as (stream, question); a refusal stands in its answer's place."""
        return await self._run(calls.query_many(questions, top))

    async def create(
        self, stream: str, *, retention: Literal["tail", "all"] | None = None, ttl: float | None = None
    ) -> bool:
        """Make a stream without events, for `ttl` seconds after its last one; False if it was there."""
        return await self._run(calls.create(stream, retention, ttl))

    async def set_ttl(self, stream: str, ttl: float | None) -> None:
        """How many seconds a stream lives after its last event, None for ever; may end it at once."""
        await self._run(calls.set_ttl(stream, ttl))

    async def inspect(self, stream: str) -> Inspected:
        """Where a stream is, how it fares, what it takes; never what it holds."""
        return await self._run(calls.inspect(stream))

    async def list(self, *, prefix: str = "", cursor: str | None = None, limit: int = 100) -> Listed:
        """Names of streams, a page at a time."""
        return await self._run(calls.list_page(prefix, cursor, limit))

    async def delete(self, stream: str) -> Deleted:
        """Remove memory, events and snapshots."""
        return await self._run(calls.delete(stream))

    async def snapshot(self, stream: str, name: str, *, idempotency_key: str | None = None) -> None:
        """Keep a named copy."""
        await self._run(calls.snapshot(stream, name, idempotency_key))

    async def restore(self, stream: str, name: str, *, idempotency_key: str | None = None) -> Appended:
        """Put a copy in place of what the stream holds."""
        return await self._run(calls.restore(stream, name, idempotency_key))

    async def rebuild(
        self, stream: str, events: Sequence[Any] | None = None, *, idempotency_key: str | None = None
    ) -> Appended:
        """Fold the stream again, from its retained events or from those given."""
        return await self._run(calls.rebuild(stream, events, idempotency_key))

    async def export(self, stream: str) -> bytes:
        """The stream as one safetensors file."""
        return await self._run(calls.export(stream))

    async def import_archive(self, stream: str, archive: bytes) -> Appended:
        """Make a stream of what `export` returned; one that is there is refused, unless it has the same events."""
        return await self._run(calls.import_archive(stream, archive))

    async def backup(self) -> dict[str, Any]:
        """Have the server copy its store; returns the copy's name and bytes."""
        return await self._run(calls.backup())

    async def verify(self) -> Verified:
        """Check every checksum of the server's store."""
        return await self._run(calls.verify())

    async def models(self) -> Sequence[dict[str, Any]]:
        """The models that are loaded."""
        return await self._run(calls.models())

    async def limits(self) -> dict[str, Any]:
        """What the server refuses as too large."""
        return await self._run(calls.limits())

    async def ready(self) -> bool:
        """Whether the server takes requests; waits for it as long as patience lasts."""
        return await self._run(calls.ready())

    async def _run(self, call: calls.Call[T]) -> T:
        content, patience = call.content(), Patience(self._patience, call.retry)
        headers = call.headers()
        timeout = httpx.Timeout(self._timeout, read=max(self._timeout, call.seconds))
        while True:
            try:
                reply = await self._http.request(
                    call.method, call.path, content=content, headers=headers, timeout=timeout
                )
                return calls.read_reply(call, reply.status_code, reply.headers.get("content-type", ""), reply.content)
            except ServiceError as error:
                wait = patience.after_refusal(error, seconds_in(reply.headers))
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as lost:
                wait = patience.after_loss(NotReady(f"The server can't be reached ({lost})."), was_sent=False)
            except httpx.TransportError as lost:
                wait = patience.after_loss(NotReady(f"The connection was lost ({lost})."), was_sent=True)
            await asyncio.sleep(wait)


class AsyncStream(Numbered):
    """One stream of a server. It numbers what is appended, so that every append may be repeated safely.

    One writer at a time: if another one appends as well, `SequenceConflict` or `SequenceGap` is raised, and nothing is
    renumbered; `resume()` goes on after what is there. After an append that failed without a reply, or was cancelled,
    the same events sent again keep their numbers; before others are sent, the server is asked whether it has those.
    """

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client, self.name = client, name
        self._lock = asyncio.Lock()

    async def resume(self) -> int:
        """Ask the server where the stream is, and go on from there."""
        try:
            return self._go_on_from((await self._client.inspect(self.name)).next_seq)
        except (Expired, UnknownStream):
            return self._go_on_from(0)

    async def append(self, events: Sequence[Any]) -> Appended:
        """Add events, all or none; returns when they are on the server's disk."""
        async with self._lock:
            seq = await self.resume() if (known := self._seq_of(events)) is None else known
            with self._storing(events, seq):
                return await self._client.append(self.name, events, seq=seq)

    async def flush(self) -> Appended:
        """End the segment at hand, and wait until it is in the memory."""
        async with self._lock:
            seq = await self.resume() if (known := self._seq_of([FLUSH])) is None else known
            with self._storing([FLUSH], seq):
                return await self._client.flush(self.name, seq=seq)

    async def query(
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
        return await self._client.query(
            self.name, question, candidates=candidates, top=top, tail=tail, min_seq=wanted, timeout=timeout
        )

    async def create(self, *, retention: Literal["tail", "all"] | None = None, ttl: float | None = None) -> bool:
        """Make the stream without events, for `ttl` seconds after its last one; False if it was there."""
        return await self._client.create(self.name, retention=retention, ttl=ttl)

    async def set_ttl(self, ttl: float | None) -> None:
        """How many seconds the stream lives after its last event, None for ever; may end it at once."""
        await self._client.set_ttl(self.name, ttl)

    async def inspect(self) -> Inspected:
        """Where the stream is, how it fares, what it takes; never what it holds."""
        return await self._client.inspect(self.name)

    async def snapshot(self, name: str) -> None:
        """Keep a named copy."""
        await self._client.snapshot(self.name, name)

    async def restore(self, name: str) -> Appended:
        """Put a copy in place of what the stream holds, and go on from there."""
        async with self._lock:
            done = await self._client.restore(self.name, name)
            self._go_on_from(done.next_seq)
            return done

    async def rebuild(self, events: Sequence[Any] | None = None) -> Appended:
        """Fold the stream again, from its retained events or from those given."""
        async with self._lock:
            done = await self._client.rebuild(self.name, events)
            self._go_on_from(done.next_seq)
            return done

    async def export(self) -> bytes:
        """The stream as one safetensors file."""
        return await self._client.export(self.name)

    async def import_archive(self, archive: bytes) -> Appended:
        """Make the stream of what `export` returned, and go on from there."""
        async with self._lock:
            done = await self._client.import_archive(self.name, archive)
            self._go_on_from(done.next_seq)
            return done

    async def delete(self) -> Deleted:
        """Remove memory, events and snapshots; a later append begins the stream anew."""
        async with self._lock:
            gone = await self._client.delete(self.name)
            self._go_on_from(0)
            return gone
