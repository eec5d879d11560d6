"""Questions: each stream read once, tails written to copies that are thrown away, all answered side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from remem.service.errors import InvalidValue, NotCaughtUp
from remem.service.events import cut_events
from remem.service.inputs import checked_question, checked_seq
from remem.service.limits import Limits, StreamKey, stream_key
from remem.service.network import Ask, Fold, Network, NotFinite
from remem.service.records import Row
from remem.service.results import Answered

Opened = tuple[Row, bytes, Sequence[bytes]]
"""A stream's row, its memory and the payloads of its tail, all of them checked."""


class Question(NamedTuple):
    """What `MemoryEngine.query` is asked."""

    stream: str
    question: Any
    top: int
    tail: Literal["include", "exclude"]
    min_seq: int | None
    tenant: str


@dataclass
class _Due:
    """A question that can be answered."""

    row: Row
    ask: Ask
    as_of: int
    stale: bool

    def without_tail(self) -> _Due:
        fold = self.ask.fold._replace(segments=())
        return replace(self, ask=self.ask._replace(fold=fold), as_of=self.row.consolidated_seq, stale=True)

    def answered(self, answer: Any) -> Answered:
        return Answered(
            answer=answer,
            as_of_seq=self.as_of,
            consolidated_seq=self.row.consolidated_seq,
            memory_version=self.row.version,
            model=self.row.fingerprint,
            stale=self.stale,
        )


def answers(
    questions: Sequence[Question], opened: Callable[[StreamKey], Opened], network: Network, limits: Limits
) -> list[Answered | Exception]:
    """Each answer, or what stands against it; nobody waits for a stream to catch up."""
    results: list[Answered | Exception] = []
    due: dict[int, _Due] = {}
    streams: dict[StreamKey, Opened] = {}

    def once(key: StreamKey) -> Opened:
        if key not in streams:
            streams[key] = opened(key)
        return streams[key]

    for place, question in enumerate(questions):
        try:
            due[place] = _due(question, once, network, limits)
            results.append(NotFinite())
        except Exception as refused:
            results.append(refused)
    while due:
        said = _said(network, [each.ask for each in due.values()])
        again: dict[int, _Due] = {}
        for (place, each), answer in zip(due.items(), said, strict=True):
            if isinstance(answer, NotFinite) and each.ask.fold.segments:
                again[place] = each.without_tail()
            else:
                results[place] = answer if isinstance(answer, Exception) else each.answered(answer)
        due = again
    return results


def _said(network: Network, asks: Sequence[Ask]) -> list[Any | Exception]:
    """Answers side by side; where that fails as a whole, whose fault it is shows one by one, and it stops no other."""
    try:
        return network.ask_many(asks)
    except Exception as whole:
        return [each for ask in asks for each in _said(network, [ask])] if len(asks) > 1 else [whole]


def _due(question: Question, opened: Callable[[StreamKey], Opened], network: Network, limits: Limits) -> _Due:
    key = stream_key(question.stream, question.tenant)
    if question.tail not in ("include", "exclude"):
        raise InvalidValue(f"tail is {question.tail!r}; expected 'include' or 'exclude'.", path="tail")
    top = question.top
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= 1000:
        raise InvalidValue(f"top is {top!r}; expected an integer from 1 to 1000.", path="top")
    checked = checked_question(network, limits, question.question)
    wanted = checked_seq(question.min_seq, "min_seq") or 0
    row, memory, payloads = opened(key)
    with_tail = question.tail == "include" and not row.error
    as_of = row.next_seq if with_tail else row.consolidated_seq
    if as_of < wanted:
        raise NotCaughtUp(
            f"Stream {key} has {row.next_seq} events, {row.consolidated_seq} of them consolidated; that is less than "
            "was asked for.",
            as_of_seq=row.next_seq,
            consolidated_seq=row.consolidated_seq,
        )
    segments = _segments(payloads, network.segment_events) if with_tail else ()
    return _Due(row, Ask(Fold(memory, segments), checked, top), as_of, bool(row.error))


def _segments(payloads: Sequence[bytes], segment_events: int) -> tuple[tuple[bytes, ...], ...]:
    cut = cut_events(payloads, segment_events)
    return tuple(map(tuple, [*cut.segments, *([cut.rest] if cut.rest else [])]))
