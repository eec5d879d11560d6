"""Questions side by side: each gets what it would get alone, streams are read once, tails are folded once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from service_parts import POISON, HashChain
from torch import Tensor, nn

from remem.service import MemoryEngine
from remem.service.asking import Question
from remem.service.bundle_network import BundleNetwork
from remem.service.network import Ask, Fold
from remem.service.recent import Recent
from remem.service.results import Answered
from remem.service.torch_network import TorchNetwork
from remem.service.traced import traced

ROOT = Path(__file__).resolve().parents[2]


def question(stream: str, **options: Any) -> Question:
    asked: dict[str, Any] = {"question": "?", "top": 1, "tail": "include", "min_seq": None, "tenant": "default"}
    return Question(stream, **asked | options)


def codes(found: Sequence[Answered | Exception]) -> list[str]:
    return ["" if isinstance(each, Answered) else getattr(each, "code", type(each).__name__) for each in found]


def test_each_question_gets_what_it_would_get_alone() -> None:
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        for name in "abc":
            engine.append(name, [name, "x", "y", "z"], seq=0)
        engine.append("a", ["other"], seq=0, tenant="other")
        engine.settle()
        many = [
            question("a"),
            question("missing"),
            question("b", tail="exclude"),
            question("a", tenant="other"),
            question("c", min_seq=9),
            question("c", top=0),
            question("a"),
            question("no/name"),
        ]
        found = engine.query_many(many)
        assert codes(found) == ["", "unknown_stream", "", "", "not_caught_up", "invalid_value", "", "invalid_value"]
        for asked, answered in zip(many, found, strict=True):
            if isinstance(answered, Answered):
                assert engine.query(**asked._asdict()) == answered
        assert found[0] == found[6] != found[3]
        assert isinstance(found[2], Answered)
        assert (found[2].as_of_seq, found[2].consolidated_seq) == (3, 3)
        assert engine.query_many([]) == []


def test_a_stream_is_read_once_for_all_its_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        engine.append("a", ["x", "y"], seq=0)
        engine.append("b", ["z"], seq=0)
        reads = []
        read = engine.store.read
        monkeypatch.setattr(engine.store, "read", lambda key, **options: (reads.append(key), read(key, **options))[1])
        engine.query_many([question("a"), question("b"), question("a", tail="exclude"), question("a")])
        assert [key.stream for key in reads] == ["a", "b"]


def test_a_tail_that_breaks_the_memory_is_left_out_for_its_own_stream_alone() -> None:
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        engine.append("good", ["x"], seq=0)
        engine.append("bad", [POISON], seq=0)
        good, bad = engine.query_many([question("good"), question("bad")])
        assert isinstance(good, Answered)
        assert isinstance(bad, Answered)
        assert (good.stale, good.as_of_seq) == (False, 1)
        assert (bad.stale, bad.as_of_seq) == (True, 0)
        assert bad.answer == HashChain().answer(HashChain().initial_memory())


class Breaking(HashChain):
    """Can't answer from one stream, and says so for the whole group."""

    def ask_many(self, asks: Sequence[Ask]) -> list[Any]:
        if any(b"broken" in payload for ask in asks for segment in ask.fold.segments for payload in segment):
            raise RuntimeError("broken")
        return super().ask_many(asks)


def test_a_stream_that_nobody_can_answer_from_stops_no_other() -> None:
    with MemoryEngine.open(":memory:", Breaking()) as engine:
        for name in ("a", "broken", "b"):
            engine.append(name, [name], seq=0)
        assert codes(engine.query_many([question("a"), question("broken"), question("b")])) == ["", "RuntimeError", ""]


@pytest.fixture(scope="module")
def network() -> BundleNetwork:
    return BundleNetwork.open(ROOT / "models" / "synthetic")


def asks_of(network: BundleNetwork, count: int, seed: int = 0) -> list[Ask]:
    """Questions about streams of different lengths, with tails of different lengths."""
    chance, asks = random.Random(seed), []
    for number in range(count):
        memory = network.initial_memory()
        segments = [segment_of(chance, network.segment_events) for _ in range(number % 3)]
        tail = (segment_of(chance, 1 + number % network.segment_events),)
        asks.append(Ask(Fold(network.fold(memory, segments), tail), chance.randrange(10), 1 + number % 4))
    return asks


def segment_of(chance: random.Random, length: int) -> tuple[bytes, ...]:
    from remem.service.events import pack_event

    return tuple(pack_event(chance.randrange(50), False) for _ in range(length))


def test_an_answer_does_not_depend_on_its_company(network: BundleNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_recent", Recent(0))
    asks = asks_of(network, 21)
    together = network.ask_many(asks)
    singly = [network.ask_many([ask])[0] for ask in asks]
    assert [answer.answer for answer in together] == [answer.answer for answer in singly]
    for some, other in zip(together, singly, strict=True):  # a memory's bits are promised, an answer's are not
        assert some.probability == pytest.approx(other.probability, rel=1e-5)
    assert len({answer.probability for answer in together}) > 10  # they are answers to different things
    assert [len(answer.top) for answer in together] == [ask.top for ask in asks]


def test_equal_tails_are_folded_once(network: BundleNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_recent", Recent(2**20))
    rows = []
    written = TorchNetwork._side_by_side

    def counted(self: TorchNetwork, states: Sequence[Any], pieces: Sequence[Any]) -> list[Any]:
        rows.append(len(pieces))
        return written(self, states, pieces)

    (ask,) = asks_of(network, 1)
    monkeypatch.setattr(TorchNetwork, "_side_by_side", counted)
    network.ask_many([ask._replace(question=number) for number in range(5)])
    assert rows == [1]
    # nor the next time they are asked about, alone or beside a tail that has grown meanwhile
    (same,) = network.ask_many([ask])
    assert rows == [1]
    grown = ask._replace(fold=ask.fold._replace(segments=((*ask.fold.segments[0], *ask.fold.segments[0]),)))
    again, other = network.ask_many([ask, grown])
    assert rows == [1, 1]
    assert again.probability == pytest.approx(same.probability, rel=1e-5)
    assert other.probability != pytest.approx(same.probability, rel=1e-3)
    monkeypatch.setattr(network, "_recent", Recent(0))
    for found, known in zip(network.ask_many([ask, grown]), (again, other), strict=True):
        assert found.probability == pytest.approx(known.probability, rel=1e-5)


def test_what_was_asked_for_last_is_kept_up_to_a_number_of_bytes() -> None:
    recent: Recent[str, int] = Recent(10)
    for number, name in enumerate("abc"):
        recent.keep(name, number, 4)
    assert [recent.get(name) for name in "abc"] == [None, 1, 2]
    recent.get("b")
    recent.keep("d", 3, 4)
    recent.keep("e", 4, 11)
    assert [recent.get(name) for name in "bcde"] == [1, None, 3, None]
    recent.keep("d", 5, 2)  # known: the same fold gives the same memory
    recent.keep("f", 6, 2)
    assert [recent.get(name) for name in "bdf"] == [1, 3, 6]


@pytest.mark.parametrize("name", ["synthetic", "babi"])
def test_the_recorded_step_gives_the_bits_of_the_module(name: str) -> None:
    network = BundleNetwork.open(ROOT / "models" / name)
    assert isinstance(network._write, torch.jit.ScriptModule)
    chance = torch.Generator().manual_seed(0)
    for rows in (1, 2, 5, 16, 7):
        items = torch.randint(network.codec.num_items, (rows, network.codec.segment_len), generator=chance)
        length = torch.randint(1, items.shape[1] + 1, (rows, 1), generator=chance)
        mask = torch.arange(items.shape[1]) < length
        state = [torch.randn(rows, *part.shape[1:], generator=chance) for part in network._empty]
        with torch.no_grad():
            plain = network.model.write(type(network._empty)(*state), items, mask)
            assert all(map(torch.equal, network._write(items, mask, *state), plain))


class Doubling(nn.Module):
    """A step with a weight, and a branch that a recording can't see."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def step(self, values: Tensor) -> tuple[Tensor, ...]:
        return (values * self.weight if values.shape[0] != 3 else values.clone(),)


def test_a_step_that_a_recording_changes_is_left_as_it_is() -> None:
    module = Doubling()
    whole, one = torch.ones(2), torch.ones(1)
    recorded = traced(module, module.step, [(whole,), (one,)])
    assert recorded != module.step
    assert recorded(torch.ones(4))[0].tolist() == [2.0] * 4
    assert traced(module, module.step, [(whole,), (torch.ones(3),)]) == module.step

    def fails(values: Tensor) -> tuple[Tensor, ...]:
        if torch.jit.is_tracing():
            raise RuntimeError
        return module.step(values)

    assert traced(module, fails, [(whole,)]) is fails


def test_a_question_that_comes_again_is_answered_the_same(
    network: BundleNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph's executor rewrites it after its first runs; nobody may notice."""
    monkeypatch.setattr(network, "_recent", Recent(0))
    (ask,) = asks_of(network, 1, seed=5)
    assert len({repr(network.ask_many([ask])[0]) for _ in range(6)}) == 1
