"""What the service refuses, as typed errors with stable codes: one table, which a server turns into problem+json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from remem.errors import BadInput, RememError

ERROR_TYPE = "urn:remem:error:"
"""How the type of every problem of ours begins."""


class Code(NamedTuple):
    """What a code means: its HTTP status, a title that never changes, and whether the same call may succeed later."""

    status: int
    title: str
    retry: bool = False


CODES: dict[str, Code] = {
    "invalid_json": Code(400, "The body is not JSON"),
    "invalid_value": Code(400, "A value can't be used"),
    "unauthorized": Code(401, "No valid token was given"),
    "scope": Code(403, "The token does not allow this"),
    "unknown_stream": Code(404, "There is no such stream"),
    "unknown_snapshot": Code(404, "There is no such snapshot"),
    "unknown_route": Code(404, "There is nothing under this path"),
    "wrong_method": Code(405, "The path does not take this method"),
    "sequence_gap": Code(409, "Events before this one are missing"),
    "sequence_conflict": Code(409, "Another event has this number already"),
    "model_mismatch": Code(409, "The memory was written by another model"),
    "numerics_mismatch": Code(409, "The memory was computed with other numerics"),
    "stream_exists": Code(409, "The stream exists with other settings"),
    "stream_changed": Code(409, "The stream changed meanwhile", retry=True),
    "stream_degraded": Code(409, "The stream holds events that the model can't consolidate"),
    "too_many_snapshots": Code(409, "The stream has as many snapshots as it may have"),
    "in_progress": Code(409, "The same call is under way", retry=True),
    "stale_epoch": Code(409, "Another process has taken over the store"),
    "log_not_retained": Code(409, "The events are no longer kept"),
    "incompatible_format": Code(409, "The data has a format this release does not read"),
    "store_in_use": Code(409, "Another process writes to this store"),
    "expired": Code(410, "The stream has expired"),
    "too_large": Code(413, "The request is too large"),
    "unsupported_type": Code(415, "The content type is not supported"),
    "schema": Code(422, "The body does not have the expected form"),
    "key_reused": Code(422, "The key belongs to another call"),
    "over_quota": Code(429, "A quota is used up", retry=True),
    "queue_full": Code(429, "Too much is waiting already", retry=True),
    "internal": Code(500, "An error of the service itself"),
    "memory_damaged": Code(500, "Stored data is damaged"),
    "self_test_failed": Code(503, "The model does not compute the same memory twice"),
    "draining": Code(503, "The service is stopping", retry=True),
    "store_unavailable": Code(503, "The store can't be reached or written", retry=True),
    "not_ready": Code(503, "The service is not ready", retry=True),
    "deadline": Code(504, "The request took too long", retry=True),
    "not_caught_up": Code(504, "The memory has not reached the wanted event", retry=True),
}


class ServiceError(RememError):
    """A refusal with a code; `details` are plain JSON values that a program may act on."""

    code = "internal"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details

    @property
    def status(self) -> int:
        """The HTTP status of this error's code."""
        return CODES[self.code].status

    @property
    def retry(self) -> bool:
        """Whether the same call may succeed later."""
        return CODES[self.code].retry

    def problem(self) -> dict[str, Any]:
        """The error as the members of an RFC 9457 problem document."""
        about = CODES[self.code]
        return {
            "type": f"{ERROR_TYPE}{self.code}",
            "title": about.title,
            "status": about.status,
            "code": self.code,
            "detail": str(self),
            **self.details,
        }


class InvalidValue(ServiceError, BadInput):
    """`path` names the value, such as `events[3]`."""

    code = "invalid_value"


class TooLarge(ServiceError, BadInput):
    """A limit, named in `limit`, is passed."""

    code = "too_large"


class UnknownStream(ServiceError, BadInput):
    """No stream of this name; also said of another tenant's."""

    code = "unknown_stream"


class Expired(ServiceError, BadInput):
    """The stream's time is up; until it is purged this is said instead of `unknown_stream`."""

    code = "expired"


class UnknownSnapshot(ServiceError, BadInput):
    """No snapshot of this name."""

    code = "unknown_snapshot"


class SequenceGap(ServiceError):
    """`expected_seq` is where the writer must go on."""

    code = "sequence_gap"


class SequenceConflict(ServiceError):
    """`seq` is the number that holds another event."""

    code = "sequence_conflict"


class ModelMismatch(ServiceError):
    """`found` wrote the memory, `expected` is loaded; a rebuild makes a memory for it."""

    code = "model_mismatch"


class NumericsMismatch(ServiceError):
    """Only with `strict_numerics`."""

    code = "numerics_mismatch"


class StreamExists(ServiceError):
    """Created before, with other settings."""

    code = "stream_exists"


class StreamChanged(ServiceError):
    """A rebuild or a restore was overtaken, and has changed nothing."""

    code = "stream_changed"


class TooManySnapshots(ServiceError, BadInput):
    """No later call finds more room: a name must be taken again."""

    code = "too_many_snapshots"


class KeyReused(ServiceError, BadInput):
    """Another call on this stream had this key."""

    code = "key_reused"


class InProgress(ServiceError):
    """The first of two calls with the same key has not ended."""

    code = "in_progress"


class StreamDegraded(ServiceError):
    """The tail is full of events that can't be consolidated."""

    code = "stream_degraded"


class StaleEpoch(ServiceError):
    """This process has lost the store to another one and must not write any more."""

    code = "stale_epoch"


class LogNotRetained(ServiceError):
    """A rebuild needs the events: retention `all`, or a replay by the caller."""

    code = "log_not_retained"


class IncompatibleFormat(ServiceError):
    """A store or an archive of another format; it is left as it is."""

    code = "incompatible_format"


class StoreInUse(ServiceError):
    """One process writes to a store file at a time."""

    code = "store_in_use"


class OverQuota(ServiceError):
    """More requests than a tenant may send just now."""

    code = "over_quota"


class QueueFull(ServiceError):
    """The stream's tail is full: consolidation has to catch up first."""

    code = "queue_full"


class MemoryDamaged(ServiceError):
    """A checksum does not fit; restore a snapshot, or rebuild."""

    code = "memory_damaged"


class SelfTestFailed(ServiceError):
    """The model can't promise bit-identical memories on this machine."""

    code = "self_test_failed"


class Draining(ServiceError):
    """Closed, or about to be."""

    code = "draining"


class StoreUnavailable(ServiceError):
    """Nothing was acknowledged; what was acknowledged before is kept."""

    code = "store_unavailable"


class NotCaughtUp(ServiceError):
    """`as_of_seq` says how far the memory is."""

    code = "not_caught_up"


class InvalidJson(ServiceError, BadInput):
    """What came is no JSON, or JSON that means different things to different readers."""

    code = "invalid_json"


class InvalidSchema(ServiceError, BadInput):
    """`path` names the place that has another form than expected."""

    code = "schema"


class UnsupportedType(ServiceError, BadInput):
    """Bodies are `application/json`, and not compressed."""

    code = "unsupported_type"


class Unauthorized(ServiceError):
    """No token, or one that the server does not know."""

    code = "unauthorized"


class ScopeMissing(ServiceError):
    """The token does not have the scope named in `scope`."""

    code = "scope"


class UnknownRoute(ServiceError, BadInput):
    """Also said of a stream's name that a path can't carry."""

    code = "unknown_route"


class WrongMethod(ServiceError, BadInput):
    """The path exists, with other methods."""

    code = "wrong_method"


class NotReady(ServiceError):
    """The service can't be reached, or does not serve yet."""

    code = "not_ready"


class Deadline(ServiceError):
    """Whether an append was stored is not known; the same call with the same number tells."""

    code = "deadline"


def error_of(problem: Mapping[str, Any]) -> ServiceError:
    """The error that a problem document stands for, of the class that the engine would have raised."""
    code = problem.get("code")
    kind = next((kind for kind in ServiceError.__subclasses__() if kind.code == code), ServiceError)
    known = ("type", "title", "status", "code", "detail")
    return kind(str(problem.get("detail", "")), **{k: v for k, v in problem.items() if k not in known})
