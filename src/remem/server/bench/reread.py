"""What if the history were kept raw and read again for every question? The same store, the same model, both ways.

Streams hold the synthetic task's facts, one evidence for every 200 of them; each evidence belongs to another question.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remem.bundle import load_bundle
from remem.data.batch import StreamBatch
from remem.data.random import StableRandom
from remem.data.synthetic import logic_chains
from remem.errors import BadInput
from remem.service.bundle_network import BundleNetwork
from remem.service.engine import DEFAULT_TENANT, MemoryEngine
from remem.service.events import cut_events, unpack_event
from remem.service.limits import StreamKey
from remem.service.numerics import use_one_thread
from remem.service.records import verified_events
from remem.settings.tasks import SyntheticTask
from remem.streaming.steps import Asked, answer_question

LENGTHS = (200, 1000, 5000, 20000)
WINDOW = 200
_SPACING = 200
Ask = Callable[[int], Any]
"""From a question to its answer."""


@dataclass(frozen=True)
class Story:
    """A stream and what can be asked about it."""

    facts: list[int]
    questions: list[tuple[int, int]]
    """Query and its answer."""


def make_story(task: SyntheticTask, length: int, number: int) -> Story:
    """Random facts, with an evidence of another query in each stretch of 200."""
    chains = logic_chains(task)
    random = StableRandom(task.data_seed, f"reread {length}", number)
    facts = [int(fact) for fact in random.integers(task.num_facts, length)]
    queries = [int(query) for query in random.permutation(task.num_queries)]
    stretches = [int(place) for place in random.permutation(max(1, length // _SPACING))]
    questions = []
    for query, stretch in zip(queries, stretches, strict=False):
        answer = int(random.integers(task.num_answers, 1)[0])
        room = min(_SPACING, length) - task.evidence_len
        start = stretch * _SPACING + int(random.integers(room + 1, 1)[0])
        facts[start : start + task.evidence_len] = chains[query, answer].tolist()
        questions.append((query, answer))
    return Story(facts, questions)


class Ways:
    """The ways to an answer, over one store."""

    def __init__(self, engine: MemoryEngine, network: BundleNetwork) -> None:
        self._engine, self._network = engine, network

    def memory(self, stream: str) -> Ask:
        """The service: the memory that is there."""
        return lambda question: self._engine.query(stream, question, top=1).answer.answer

    def whole(self, stream: str) -> Ask:
        """Every event read from the store, encoded all at once, written to a fresh memory."""
        return self._reread(stream, None)

    def window(self, stream: str) -> Ask:
        """The same with the last 200 events."""
        return self._reread(stream, WINDOW)

    def _reread(self, stream: str, last: int | None) -> Ask:
        stored = self._engine.store.read(StreamKey(DEFAULT_TENANT, stream), log=True)
        assert stored is not None
        payloads = verified_events(stored.row, stored.events, 0)
        cut = cut_events(payloads if last is None else payloads[-last:], self._network.segment_events)
        segments = [*cut.segments, *([cut.rest] if cut.rest else [])]
        shape = len(segments), self._network.codec.segment_len
        items, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
        for place, segment in enumerate(segments):
            numbers = [int(unpack_event(payload).item) for payload in segment]
            items[place, : len(numbers)] = torch.tensor(numbers)
            mask[place, : len(numbers)] = True
        model = self._network.model
        with torch.no_grad():
            whole = torch.arange(len(segments))[None]
            trace = model.memorize(StreamBatch(items, mask, whole, torch.ones_like(whole, dtype=torch.bool)))
        slots = trace.memories[:, -1]
        return lambda question: answer_question(model, self._network.codec, slots, Asked(question, 1)).answer


def compare(model: Path, lengths: tuple[int, ...], streams: tuple[int, ...], repeats: int) -> Iterator[dict[str, Any]]:
    """One row for each length and way: latency, processor time, bytes per stream, right answers."""
    bundle = load_bundle(model)
    network, task = BundleNetwork(bundle), bundle.run.task
    if not isinstance(task, SyntheticTask):
        raise BadInput("The comparison asks questions of the synthetic task; give a model trained on it.")
    use_one_thread()
    with tempfile.TemporaryDirectory() as folder:
        kept, lean = Path(folder) / "all.db", Path(folder) / "tail.db"
        with (
            MemoryEngine.open(kept, network, retention="all") as engine,
            MemoryEngine.open(lean, network) as small,
        ):
            ways = Ways(engine, network)
            for length, count in zip(lengths, streams, strict=True):
                stories = {f"{length}-{number}": make_story(task, length, number) for number in range(count)}
                for name, story in stories.items():
                    for opened in (engine, small) if name.endswith("-0") else (engine,):
                        for start in range(0, length, 1000):
                            opened.append(name, story.facts[start : start + 1000], seq=start, timeout=600.0)
                for opened in (engine, small):
                    assert opened.settle(3600.0)
                bytes_of = {"memory": small.inspect(f"{length}-0").bytes, "raw": engine.inspect(f"{length}-0").bytes}
                for name, way in (("memory", ways.memory), ("whole history", ways.whole), ("last 200", ways.window)):
                    stored = bytes_of["memory"] if name == "memory" else bytes_of["raw"]
                    yield {"events": length, "way": name, "bytes_per_stream": stored, **_measure(way, stories, repeats)}


def _measure(way: Callable[[str], Ask], stories: dict[str, Story], repeats: int) -> dict[str, Any]:
    """Right answers, each history read once for all its questions; then the time of one question, reading included."""
    right = asked = 0
    for name, story in stories.items():
        ask = way(name)
        right += sum(ask(query) == answer for query, answer in story.questions)
        asked += len(story.questions)
    walls, cpus = [], []
    names = list(stories)
    for number in range(repeats):
        name = names[number % len(names)]
        query, _ = stories[name].questions[0]
        wall, cpu = time.perf_counter(), time.process_time()
        way(name)(query)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {
        "p50_ms": round(1000 * sorted(walls)[len(walls) // 2], 2),
        "cpu_ms": round(1000 * sum(cpus) / len(cpus), 2),
        "accuracy": round(100 * right / asked, 1),
        "questions": asked,
    }
