"""What the engine's verbs return: frozen values, ready for JSON. Sequence numbers count events: all below are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["compatible", "rebuild_needed", "degraded", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Appended:
    """The events are durable; how many of them were new, and where the stream is."""

    accepted: int
    duplicates: int
    next_seq: int
    consolidated_seq: int
    memory_version: int


@dataclass(frozen=True, kw_only=True)
class Answered:
    """An answer, and what it was given from."""

    answer: Any
    """What the model says: for a bundle, `remem.streaming.steps.Answer`."""
    as_of_seq: int
    """Events below were taken into account."""
    consolidated_seq: int
    memory_version: int
    model: str
    stale: bool
    """Whether acknowledged events had to be left out, because the model can't consolidate them."""


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """All about a stream but its content."""

    tenant: str
    stream: str
    state: State
    """Whether this engine's model wrote it, and whether it could; unknown where the engine has no model."""
    next_seq: int
    consolidated_seq: int
    tail_events: int
    memory_version: int
    generation: int
    model: str
    numerics: str
    numerics_changes: int
    retention: str
    bytes: int
    created: float
    updated: float
    error: str
    snapshots: list[str]
    memory: dict[str, Any]
    """The model's figures about it, such as slot norms; empty where another model wrote it."""
    purge_pending: bool
    ttl: float | None = None
    """Seconds after its last append that the stream lives; None for ever."""
    expires: float | None = None
    """When that is, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A page of streams; `cursor` fetches the next one, None after the last."""

    streams: list[str]
    cursor: str | None


@dataclass(frozen=True)
class Problem:
    """One thing that `verify` found."""

    stream: str
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What `verify` looked at and found."""

    streams: int
    events: int
    refolded: int
    """Streams whose retained events were folded again and compared bit by bit."""
    problems: list[Problem]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems
