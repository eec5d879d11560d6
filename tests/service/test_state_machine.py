"""Any order of calls, restarts and crashes, on every store: the engine equals a list of events in a plain Python dict.

`REMEM_STATE_EXAMPLES` and `REMEM_STATE_STEPS` make it longer.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from service_parts import Clock, HashChain, Place, SqlitePlace

from remem.service import FLUSH, Event, MemoryEngine, ServiceError
from remem.service.errors import Expired, UnknownStream
from remem.service.events import cut_events, pack_event
from remem.service.records import WINDOW

EXAMPLES = {"memory": 60, "sqlite": 12, "redis": 20}
STEPS = int(os.environ.get("REMEM_STATE_STEPS", "30"))
STREAMS = st.sampled_from(["a", "b", "a-b"])
ITEMS = st.builds(Event, st.integers(0, 5) | st.sampled_from(["x", "y"]), ends_segment=st.booleans())
KEYS = st.sampled_from(["k1", "k2", "k3"])
BATCH = st.lists(ITEMS, min_size=1, max_size=7)


@dataclass
class Reference:
    """What a stream should be."""

    events: list[Event] = field(default_factory=list)
    lives: float = math.inf
    """Seconds after its last append that it lives."""
    touched: float = 0.0
    keys: dict[str, tuple[list[Event], int]] = field(default_factory=dict)
    """Calls with a key: their events, and the number after the last."""
    snapshots: dict[str, list[Event]] = field(default_factory=dict)


def answer_of(events: list[Event], *, whole_segments: bool = False) -> str:
    chain = HashChain()
    cut = cut_events([pack_event(event.item, event.ends_segment) for event in events], chain.segment_events)
    rest = [] if whole_segments or not cut.rest else [cut.rest]
    return chain.answer(chain.fold(chain.initial_memory(), [*cut.segments, *rest]))


class Streams(RuleBasedStateMachine):
    """The rules; `make_place` is set by the test."""

    make_place: Callable[[], Place]

    @initialize()
    def begin(self) -> None:
        self.place = type(self).make_place()
        self.streams: dict[str, Reference] = {}
        self.clock = Clock()
        self.left_behind: list[MemoryEngine] = []
        self.reopen()

    def made(self, stream: str) -> Reference:
        """The stream, written to now; made if it is not there."""
        reference = self.streams.setdefault(stream, Reference())
        reference.touched = self.clock.now
        return reference

    def refused(self, code: str, call: Callable[[], object]) -> None:
        with pytest.raises(ServiceError) as caught:
            call()
        assert caught.value.code == code

    @rule(stream=STREAMS, batch=BATCH)
    def append(self, stream: str, batch: list[Event]) -> None:
        reference = self.made(stream)
        done = self.engine.append(stream, batch, seq=len(reference.events))
        reference.events += batch
        assert (done.accepted, done.duplicates, done.next_seq) == (len(batch), 0, len(reference.events))

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), batch=BATCH)
    def send_again(self, data: st.DataObject, batch: list[Event]) -> None:
        stream = data.draw(st.sampled_from(sorted(self.streams)))
        events = self.streams[stream].events
        start = data.draw(st.integers(0, len(events)))
        done = self.engine.append(stream, [*events[start:], *batch], seq=start)
        assert (done.accepted, done.duplicates) == (len(batch), len(events) - start)
        events += batch
        self.made(stream)

    @rule(stream=STREAMS, batch=BATCH, key=KEYS)
    def append_with_a_key(self, stream: str, batch: list[Event], key: str) -> None:
        known = self.streams[stream].keys.get(key) if stream in self.streams else None
        if known is not None and known[0] != batch:
            self.refused("key_reused", lambda: self.engine.append(stream, batch, idempotency_key=key))
            return
        done = self.engine.append(stream, batch, idempotency_key=key)
        if known is None:
            reference = self.made(stream)
            reference.events += batch
            reference.keys[key] = (batch, len(reference.events))
        assert (done.accepted, done.next_seq) == (len(batch), self.streams[stream].keys[key][1])

    @precondition(lambda self: any(reference.keys for reference in self.streams.values()))
    @rule(data=st.data())
    def send_a_key_again(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(name for name, ref in self.streams.items() if ref.keys)))
        key = data.draw(st.sampled_from(sorted(self.streams[stream].keys)))
        batch, next_seq = self.streams[stream].keys[key]
        done = self.engine.append(stream, batch, idempotency_key=key)
        assert (done.accepted, done.next_seq) == (len(batch), next_seq)

    @rule(stream=STREAMS, ttl=st.sampled_from([5.0, 50.0]))
    def make_with_a_time_to_live(self, stream: str, ttl: float) -> None:
        known = self.streams.get(stream)
        if known is not None and known.lives != ttl:
            self.refused("stream_exists", lambda: self.engine.create(stream, ttl=ttl))
            return
        assert self.engine.create(stream, ttl=ttl) == (known is None)
        if known is None:
            self.made(stream).lives = ttl

    @rule(seconds=st.sampled_from([1.0, 4.0, 30.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.now += seconds
        for stream, reference in list(self.streams.items()):
            if reference.touched + reference.lives <= self.clock.now:
                del self.streams[stream]
                with pytest.raises((Expired, UnknownStream)):  # the sweep of a new engine may have come already
                    self.engine.query(stream, "?")

    @rule()
    def sweep(self) -> None:
        self.engine.sweep()
        assert sorted(key.stream for key in self.engine.store.keys()) == sorted(self.streams)  # noqa: SIM118

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), name=STREAMS)
    def export_and_import(self, data: st.DataObject, name: str) -> None:
        stream = data.draw(st.sampled_from(sorted(self.streams)))
        source, archive = self.streams[stream], self.engine.export(stream)
        if (there := self.streams.get(name)) is None:
            self.streams[name] = Reference(list(source.events), source.lives, self.clock.now)
            assert self.engine.import_archive(name, archive).next_seq == len(source.events)
        elif there.events == source.events:
            assert self.engine.import_archive(name, archive).next_seq == len(source.events)
        else:
            self.refused("stream_exists", lambda: self.engine.import_archive(name, archive))

    @precondition(lambda self: any(reference.events for reference in self.streams.values()))
    @rule(data=st.data())
    def send_other_content(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(name for name, ref in self.streams.items() if ref.events)))
        events = self.streams[stream].events
        seq = data.draw(st.integers(max(0, len(events) - WINDOW), len(events) - 1))
        self.refused("sequence_conflict", lambda: self.engine.append(stream, ["never sent", "new"], seq=seq))

    @rule(stream=STREAMS, ahead=st.integers(1, 3))
    def leave_a_gap(self, stream: str, ahead: int) -> None:
        known = len(self.streams[stream].events) if stream in self.streams else 0
        self.refused("sequence_gap", lambda: self.engine.append(stream, ["x"], seq=known + ahead))

    @rule(stream=STREAMS)
    def flush(self, stream: str) -> None:
        reference = self.made(stream)
        done = self.engine.flush(stream, seq=len(reference.events))
        reference.events.append(FLUSH)
        assert done.consolidated_seq == done.next_seq == len(reference.events)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), name=st.sampled_from(["one", "two"]))
    def take_snapshot(self, data: st.DataObject, name: str) -> None:
        stream = data.draw(st.sampled_from(sorted(self.streams)))
        self.engine.snapshot(stream, name)
        self.streams[stream].snapshots[name] = list(self.streams[stream].events)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), name=st.sampled_from(["one", "two"]))
    def restore_snapshot(self, data: st.DataObject, name: str) -> None:
        stream = data.draw(st.sampled_from(sorted(self.streams)))
        reference = self.streams[stream]
        if name in reference.snapshots:
            self.engine.restore(stream, name)
            reference.events = list(reference.snapshots[name])
            self.made(stream)
        else:
            self.refused("unknown_snapshot", lambda: self.engine.restore(stream, name))

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def rebuild_without_one(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(self.streams)))
        events = self.streams[stream].events
        if events:
            del events[data.draw(st.integers(0, len(events) - 1))]
            self.engine.rebuild(stream, events)
            self.made(stream)

    @rule(stream=STREAMS)
    def delete(self, stream: str) -> None:
        # a rewrite of the append-only file takes seconds in all; its own test waits for it
        deleted = self.engine.delete(stream)
        assert deleted.existed == (self.streams.pop(stream, None) is not None)

    @rule()
    def restart(self) -> None:
        self.engine.close()
        self.reopen()

    @rule()
    def crash(self) -> None:
        self.place.crash(self.store)
        self.left_behind.append(self.engine)
        self.reopen()

    @rule()
    def let_another_in(self) -> None:
        if isinstance(self.place, SqlitePlace):
            self.refused("store_in_use", self.place.open)
        else:
            self.left_behind.append(self.engine)
            self.reopen()
            self.refused("stale_epoch", lambda: self.left_behind[-1].append("a", ["late"]))

    @rule()
    def open_with_another_model(self) -> None:
        self.engine.close()
        other_chain = HashChain(salt="-other")
        with MemoryEngine.open(self.place.open(), other_chain, clock=self.clock, sweep_seconds=3600) as other:
            for stream in self.streams:
                self.refused("model_mismatch", lambda stream=stream: other.query(stream, "?"))
                self.refused("model_mismatch", lambda stream=stream: other.append(stream, ["x"]))
        self.reopen()

    @rule()
    def settle(self) -> None:
        assert self.engine.settle()
        for stream, reference in self.streams.items():
            said = self.engine.query(stream, "?", tail="exclude")
            assert said.answer == answer_of(reference.events, whole_segments=True)
        assert self.engine.verify().problems == []

    @invariant()
    def streams_are_what_they_should_be(self) -> None:
        if not hasattr(self, "engine"):
            return
        assert self.engine.list().streams == sorted(self.streams)
        for stream, reference in self.streams.items():
            said = self.engine.query(stream, "?", min_seq=len(reference.events))
            assert (said.as_of_seq, said.answer) == (len(reference.events), answer_of(reference.events))
            assert self.engine.inspect(stream).snapshots == sorted(reference.snapshots)

    def reopen(self) -> None:
        self.store = self.place.open()
        self.engine = MemoryEngine.open(self.store, HashChain(), clock=self.clock, sweep_seconds=3600)

    def teardown(self) -> None:
        for engine in [*getattr(self, "left_behind", []), *([self.engine] if hasattr(self, "engine") else [])]:
            engine.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
def test_any_history_equals_the_reference(
    kind: str, make_place: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "redis":
        redis_store = pytest.importorskip("remem.service.stores.redis")
        # the rewrite after a delete has its own test; here it would take all the time
        monkeypatch.setattr(redis_store.RedisStore, "purge_pending", lambda self, seconds=0.0: False)
    machine = type("Streams", (Streams,), {"make_place": staticmethod(lambda: make_place(kind))})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("REMEM_STATE_EXAMPLES", EXAMPLES[kind])),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
