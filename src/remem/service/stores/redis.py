"""Streams in Redis: every write is one script that compares and sets, and a reply means the append-only file is synced.

The newest engine on a store owns it; an older one that still runs is refused at its next write.
"""

from __future__ import annotations

import json
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from remem.service.errors import IncompatibleFormat, InvalidValue, MemoryDamaged, StaleEpoch, StoreUnavailable
from remem.service.limits import StreamKey
from remem.service.records import STORE_VERSION, Row, row_of
from remem.service.store import Change, Deleted, Durability, Plan, Stored, is_doomed
from remem.service.stores.redis_scripts import DELETE, PROBE, READ, SNAPSHOT, STALE, WRITE

# what a reply after fsync rests on; the last would leave out the sync while the file is rewritten
_NEEDED = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "no-appendfsync-on-rewrite": "no",
}
_NEEDED_BY_OS = {"appendonly": "yes", "maxmemory-policy": "noeviction"}
_PURGE_SECONDS = 5.0
_READABLE = (b"1", str(STORE_VERSION).encode())
_SINCE_FORMAT_1 = {"ttl": 0.0, "keyed": ""}


class RedisStore:
    """A store under one prefix of a single Redis server (not a cluster)."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "remem",
        durability: Durability = "fsync",
        read_only: bool = False,
        timeout: float = 5.0,
    ) -> None:
        self._prefix, self.durability, self._read_only = prefix, durability, read_only
        self._redis = _client(url, timeout)
        self._purging = threading.Lock()
        # of the last rewrite we asked for: by which run of the server, and which deletes came before it
        self._rewrite: tuple[str, set[bytes]] | None = None
        self._write, self._delete, self._snapshot, self._read, self._probe = map(
            self._redis.register_script, (WRITE, DELETE, SNAPSHOT, READ, PROBE)
        )
        self._epoch = "0"
        try:
            self._prepare()
        except BaseException:
            self._redis.close()
            raise

    @property
    def description(self) -> str:
        """Kind and durability."""
        return f"redis {self._prefix}, durability {self.durability}"

    def update(self, key: StreamKey, plan: Plan) -> Row | None:
        """Read, decide, and write if the row is still the same; otherwise decide again."""
        while True:
            row = self._row_of(key)
            change = plan(row)
            if change is None:
                return row
            if self._written(key, row, change):
                return change.row
            time.sleep(random.random() * 0.002)

    def update_many(self, plans: Sequence[tuple[StreamKey, Plan]]) -> None:
        """One after the other."""
        for key, plan in plans:
            self.update(key, plan)

    def read(self, key: StreamKey, *, log: bool = False) -> Stored | None:
        """Row, memory and events of one moment."""
        stream = self._stream(key)
        found = self._safely(self._read, keys=[stream, stream + "/events"], args=[int(log)])
        return Stored(_row(*found[:2]), found[2] or b"", list(found[3])) if found else None

    def delete(self, key: StreamKey) -> Deleted:
        """Remove the stream, and have the append-only file rewritten without it."""
        existed = self._deleted(key)
        return Deleted(existed, "pending" if self.purge_pending() else "done")

    def expired(self, now: float, most: int) -> list[StreamKey]:
        """By the sorted set of when."""
        names = self._safely(self._redis.zrangebyscore, self._at("expiring"), "-inf", repr(now), start=0, num=most)
        return [_key(name) for name in names]

    def discard(self, keys: Sequence[StreamKey], doomed: Callable[[Row], bool]) -> list[Row]:
        """One after the other, each only as long as its row is the one that was looked at; then one rewrite."""
        gone = []
        for key in keys:
            try:
                row = self._row_of(key)
            except MemoryDamaged:
                continue
            if row is not None and is_doomed(row, doomed) and self._deleted(key, row.check):
                gone.append(row)
        if gone:
            self.purge_pending()
        return gone

    def page(self, tenant: str, prefix: str, after: str, limit: int, now: float) -> list[str]:
        """A page of the sorted names, without those whose time is up."""
        low = f"({after}" if after >= prefix and after else f"[{prefix}"
        high = f"({prefix}\x7f"
        living: list[str] = []
        while True:
            found = self._safely(self._redis.zrangebylex, self._at(f"names/{tenant}"), low, high, start=0, num=limit)
            names = [name.decode() for name in found]
            whole = [f"{tenant}/{name}" for name in names]
            ends = self._safely(self._redis.zmscore, self._at("expiring"), whole) if names else []
            living += [name for name, end in zip(names, ends, strict=True) if end is None or end > now]
            if len(living) >= limit or len(names) < limit:
                return living[:limit]
            low = f"({names[-1]}"

    def keys(self) -> Iterator[StreamKey]:
        """All streams, a thousand at a time."""
        low = "-"
        while True:
            names = self._safely(self._redis.zrangebylex, self._at("names"), low, "+", start=0, num=1000)
            if not names:
                return
            for name in names:
                yield _key(name)
            low = f"({names[-1].decode()}"

    def pending(self) -> list[StreamKey]:
        """Streams with a tail."""
        return sorted(_key(name) for name in self._safely(self._redis.smembers, self._at("pending")))

    def put_snapshot(self, of: Row, name: str, archive: bytes, most: int) -> bool:
        """Keep a copy."""
        keys = [self._at("epoch"), self._stream(of.key), self._stream(of.key) + "/snapshots"]
        return bool(self._safely(self._snapshot, keys=keys, args=[self._epoch, name, archive, most, of.birth]))

    def snapshots(self, key: StreamKey) -> list[str]:
        """Names of copies."""
        names = self._safely(self._redis.hkeys, self._stream(key) + "/snapshots")
        return sorted(name.decode() for name in names)

    def get_snapshot(self, key: StreamKey, name: str) -> bytes | None:
        """A copy."""
        found: bytes | None = self._safely(self._redis.hget, self._stream(key) + "/snapshots", name)
        return found

    def num_bytes(self, key: StreamKey) -> int:
        """Memory, events and copies."""
        stored = self.read(key, log=True)
        if stored is None:
            return 0
        copies = self._safely(self._redis.hvals, self._stream(key) + "/snapshots")
        return sum(map(len, [stored.memory, stored.row.digests, stored.row.keyed, *stored.events, *copies]))

    def purge_pending(self, seconds: float = 0.0) -> bool:
        """Whether the append-only file may still hold deleted streams; rewrites it if so."""
        with self._purging:
            return not self._safely(self._purged)

    def require_writable(self) -> None:
        """Write what is there already; raises what stands against it."""
        self._safely(self._probe, keys=[self._at("epoch")], args=[self._epoch])

    def problems(self) -> list[str]:
        """Whether Redis can write its file."""
        about = self._safely(self._redis.info, "persistence")
        states = {name: about.get(name) for name in ("aof_last_write_status", "aof_last_bgrewrite_status")}
        return [f"{name} is {state}" for name, state in states.items() if state != "ok"]

    def close(self) -> None:
        """Let go of the connections."""
        self._redis.close()

    def _prepare(self) -> None:
        """Check the server's settings and the data's format, and take the store over."""
        needed = _NEEDED if self.durability == "fsync" else _NEEDED_BY_OS
        found = {name: self._safely(self._redis.config_get, name).get(name) for name in needed}
        if wrong := {name: value for name, value in found.items() if value != needed[name]}:
            told = ", ".join(f"{name} is {value!r} and must be {needed[name]!r}" for name, value in wrong.items())
            raise StoreUnavailable(f"This Redis server could lose acknowledged events: {told}. Change its settings.")
        version = self._safely(self._redis.get, self._at("format"))
        if version not in (None, *_READABLE):
            raise IncompatibleFormat(
                f"The store {self._prefix!r} has the format {version!r}; this release reads {STORE_VERSION}."
            )
        if self._read_only:
            return
        # rows of format 1 are read as they are; from now on there may be others, which an older release must not touch
        self._safely(self._redis.set, self._at("format"), STORE_VERSION)
        self._epoch = str(self._safely(self._redis.incr, self._at("epoch")))

    def _row_of(self, key: StreamKey) -> Row | None:
        row, check = self._safely(self._redis.hmget, self._stream(key), "row", "check")
        return None if row is check is None else _row(row, check)

    def _written(self, key: StreamKey, before: Row | None, change: Change) -> bool:
        row = change.row
        text = json.dumps(asdict(row) | {"digests": row.digests.hex(), "keyed": row.keyed.hex()})
        args = [
            self._epoch,
            before.check if before else "",
            row.check,
            text,
            row.next_seq,
            row.consolidated_seq,
            int(change.memory is not None),
            change.memory or b"",
            int(change.drop_all),
            change.keep_from,
            key.stream,
            str(key),
            int(change.anew),
            repr(row.expires) if row.ttl else "",
            secrets.token_hex(8),
            *change.events,
        ]
        return bool(self._safely(self._write, keys=self._keys(key), args=args))

    def _deleted(self, key: StreamKey, check: str = "") -> bool:
        """Remove a stream, or the one whose row has this check."""
        args = [self._epoch, key.stream, str(key), check, secrets.token_hex(8)]
        return bool(self._safely(self._delete, keys=self._keys(key), args=args))

    def _purged(self) -> bool:
        """Have the append-only file rewritten until it holds nothing deleted; False if it can't be, or takes too long.

        Redis itself keeps the list of deletes to purge: neither a lost reply nor a restart forgets one.
        """
        deadline = time.monotonic() + _PURGE_SECONDS
        while wanted := self._redis.smembers(self._at("purging")):
            if self._read_only or time.monotonic() >= deadline:
                return False
            about = self._redis.info()
            if about["aof_rewrite_in_progress"] or about["aof_rewrite_scheduled"]:
                time.sleep(0.01)
                continue
            # one that was not ours may have begun before the delete, and one of an earlier run was cut short
            rewrite, self._rewrite = self._rewrite, None
            if rewrite is None or rewrite[0] != about["run_id"]:
                try:
                    self._redis.bgrewriteaof()
                except ResponseError:
                    return False
                self._rewrite = about["run_id"], wanted
            elif about["aof_last_bgrewrite_status"] != "ok":
                return False
            else:
                self._redis.srem(self._at("purging"), *rewrite[1])
        return True

    def _safely(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except (RedisError, UnicodeError) as error:  # the second of a host that can't be one
            if STALE in str(error):
                raise StaleEpoch(
                    "Another process has taken over this store; this one must not write any more."
                ) from None
            raise StoreUnavailable(f"Redis did not do it ({type(error).__name__}: {error}).") from error

    def _at(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _stream(self, key: StreamKey) -> str:
        # no name holds a slash, so no two streams share a key; the braces keep a stream's keys together
        return f"{self._prefix}/stream/{{{key}}}"

    def _keys(self, key: StreamKey) -> list[str]:
        """What a writing script may touch, in the order it has them."""
        stream = self._stream(key)
        beside = [self._at(name) for name in (f"names/{key.tenant}", "names", "pending", "expiring", "purging")]
        return [self._at("epoch"), stream, stream + "/events", stream + "/snapshots", *beside]


def _client(url: str, timeout: float) -> Any:
    """A client of this address; one that can't be is refused, and not repeated, for it may hold a password."""
    try:
        parts = urlsplit(url)
        if parts.scheme != "unix" and not re.fullmatch(r"/?[0-9]*", parts.path):
            raise ValueError
        # a command that failed half-way must not be sent again behind our back: only the caller knows if that is safe
        client: Any = redis.Redis.from_url(
            url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0)
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # which alone looks at the options' names
        if pool.connection_kwargs.keys() & {"decode_responses", "encoding", "encoding_errors"}:
            raise ValueError
    except (ValueError, TypeError):
        raise InvalidValue(
            "The address of the Redis server can't be used; expected redis://USER:PASSWORD@HOST:PORT/DB, rediss:// for "
            "TLS, or unix://PATH?db=DB, with a number as DB, signs such as / # ? @ in a password written as %2F %23 "
            "%3F %40, and no options but those of redis-py about the connection.",
            path="store",
        ) from None
    return client


def _row(text: bytes | None, check: bytes | None) -> Row:
    """The row, if its check stands beside it too: a write compares that one, and would find another for ever."""
    try:
        values = _SINCE_FORMAT_1 | json.loads(text or b"")
        row = row_of(values | {name: bytes.fromhex(values[name]) for name in ("digests", "keyed")})
    except (ValueError, KeyError, TypeError) as error:
        raise MemoryDamaged(f"A stream's counters can't be read ({error}).") from None
    if check != row.check.encode():
        raise MemoryDamaged(f"The counters of stream {row.key} do not fit the check beside them.", stream=row.stream)
    return row


def _key(name: bytes) -> StreamKey:
    tenant, _, stream = name.decode().partition("/")
    return StreamKey(tenant, stream)
