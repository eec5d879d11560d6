"""Real networks behind the engine: the same events give the same bits, however they come, for every kind of stream."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from service_parts import SqlitePlace

from remem import StreamMemory, load_bundle
from remem.baselines.dnc import DNC
from remem.bundle import Bundle
from remem.errors import BadInput
from remem.experiments.presets import find_preset
from remem.model.encoder import GRUEncoder
from remem.model.machine import MemoryMachine
from remem.model.writer import SlotWriter
from remem.service import Event, MemoryEngine, Network
from remem.service.bundle_network import BundleNetwork
from remem.service.errors import InvalidValue, MemoryDamaged, SelfTestFailed
from remem.service.events import cut_events, pack_event
from remem.service.network import Fold
from remem.service.numerics import pack_state, require_same_bits, unpack_state
from remem.service.vector_network import VectorNetwork
from remem.streaming.steps import Answer

MODELS = Path(__file__).resolve().parents[2] / "models"
STORY = [
    "Mary moved to the bathroom.",
    "John went to the hallway.",
    "Mary journeyed to the garden.",
    "Sandra went to the office.",
    "John moved to the kitchen.",
]


def vectors(dnc: bool = False) -> VectorNetwork:
    """Vectors of 8 numbers, 4 to a segment, asked for the nearest slot."""
    torch.manual_seed(0)
    settings: Any = find_preset("synthetic/dnc").model.machine
    if dnc:
        memory: Any = DNC(item_dim=8, num_slots=4, **{k: v for k, v in vars(settings).items() if k != "num_slots"})
    else:
        writer = SlotWriter(item_dim=8, model_dim=8, num_slots=3)
        memory = MemoryMachine(encoder=GRUEncoder(item_dim=8), writer=writer, num_slots=3, item_dim=8)

    def nearest(slots: torch.Tensor, question: Any, top: int) -> list[int]:
        return (slots[0] @ torch.tensor(question)).topk(min(top, slots.shape[1])).indices.tolist()

    return VectorNetwork(memory, item_dim=8, segment_len=4, reader=nearest)


@pytest.fixture(scope="module")
def networks() -> dict[str, Network]:
    return {
        "text": BundleNetwork.open(MODELS / "babi"),
        "ids": BundleNetwork.open(MODELS / "demo"),
        "vectors": vectors(),
        "dnc vectors": vectors(dnc=True),
    }


def stream_of(kind: str, length: int, seed: int = 0) -> list[Any]:
    chance = random.Random(seed)
    if kind == "text":
        return [chance.choice(STORY) for _ in range(length)]
    if kind == "ids":
        return [Event(chance.randrange(96), ends_segment=chance.random() < 0.1) for _ in range(length)]
    return [[chance.gauss(0, 1) for _ in range(8)] for _ in range(length)]


def memory_of(engine: MemoryEngine, stream: str) -> bytes:
    assert engine.settle()
    stored = engine.store.read(("default", stream))  # type: ignore[arg-type]
    assert stored is not None
    return stored.memory


@pytest.mark.parametrize("kind", ["text", "ids", "vectors", "dnc vectors"])
def test_any_way_of_sending_gives_the_same_bits(kind: str, networks: dict[str, Network], tmp_path: Path) -> None:
    network, events = networks[kind], stream_of(kind, 27)
    place, chance = SqlitePlace(tmp_path), random.Random(1)
    engine = MemoryEngine.open(place.open(), network, retention="all")
    engine.append("at-once", events, seq=0)
    for seq, event in enumerate(events):
        engine.append("singly", [event], seq=seq)
    seq = 0
    while seq < len(events):  # in pieces, among other streams, across restarts and crashes
        size = chance.randrange(1, 9)
        engine.append("in-pieces", events[seq : seq + size], seq=seq)
        engine.append("neighbour", stream_of(kind, 3, seed=seq), tenant="two")
        seq += size
        if chance.random() < 0.4:
            if chance.random() < 0.5:
                engine.close()
            else:
                place.crash(engine.store)
            engine = MemoryEngine.open(place.open(), network, retention="all")
    with engine:
        wanted = memory_of(engine, "at-once")
        assert memory_of(engine, "singly") == memory_of(engine, "in-pieces") == wanted
        engine.rebuild("in-pieces")
        assert memory_of(engine, "in-pieces") == wanted
        checked = engine.verify()
        assert checked.problems == []
        assert checked.refolded == 4
        assert wanted != network.initial_memory()


def test_the_engine_answers_as_a_stream_memory_does(networks: dict[str, Network]) -> None:
    memory = StreamMemory.open(MODELS / "babi")
    with MemoryEngine.open(":memory:", networks["text"]) as engine:
        for number, sentence in enumerate(STORY):
            memory.write(sentence)
            engine.append("s", [sentence], seq=number)
            for question in ("Where is Mary?", "Where is John?"):
                assert_same_answer(engine.query("s", question).answer, memory.query(question))
        assert engine.query("s", "Where is Mary?").answer.answer == "garden"
        assert isinstance(networks["text"], BundleNetwork)
        (slots,) = unpack_state(memory_of(engine, "s"), networks["text"]._empty)
        torch.testing.assert_close(slots, memory.state.memory[0], rtol=1e-5, atol=1e-5)


def assert_same_answer(said: Answer, wanted: Answer) -> None:
    """The same but for the last bits: a stream alone in its process is folded in a batch of one."""
    assert [answer for answer, _ in said.top[:2]] == [answer for answer, _ in wanted.top[:2]]
    assert said.probability == pytest.approx(wanted.probability, abs=1e-4)


def test_item_streams_are_answered_mid_segment(networks: dict[str, Network]) -> None:
    memory, items = StreamMemory.open(MODELS / "demo"), [4, 17, 2, 95, 9, 0, 13, 5, 61, 18, 7, 3]
    memory.write_many(items)
    with MemoryEngine.open(":memory:", networks["ids"]) as engine:
        engine.append("s", items, seq=0)
        before = engine.query("s", 2).answer
        assert_same_answer(before, memory.query(2))
        assert engine.settle()
        assert engine.query("s", 2).answer == before
        about = engine.inspect("s")
        assert (about.consolidated_seq, about.tail_events, about.memory["slots"]) == (10, 2, 8)
        assert len(about.memory["slot_norms"]) == 8


def test_vector_streams_are_checked_and_answered() -> None:
    with MemoryEngine.open(":memory:", vectors()) as engine:
        engine.append("s", [[float(place == number) for place in range(8)] for number in range(6)], seq=0)
        assert len(engine.query("s", [1.0] * 8, top=2).answer) == 2
        bad: Sequence[Any] = (
            [1.0] * 7, [1.0] * 9, ["1"] * 8, [True] * 8, [float("nan")] * 8, [float("inf")] * 8, [1e5] * 8,
            [10**400] * 8, "12345678", 7, [[1.0]] * 8,
        )  # fmt: skip
        for vector in bad:
            with pytest.raises(InvalidValue) as refused:
                engine.append("s", [[0.0] * 8, vector], seq=6)
            assert refused.value.details["path"] == "events[1]"
        assert engine.inspect("s").next_seq == 6


def test_words_and_items_that_the_model_does_not_know_are_refused(networks: dict[str, Network]) -> None:
    with MemoryEngine.open(":memory:", networks["text"]) as engine:
        for bad in ("Mary xyzzied.", "", "?!", 7, ["Mary"], True):
            with pytest.raises(InvalidValue, match=r"events\[1\]"):
                engine.append("s", [STORY[0], bad])
        engine.append("s", STORY)
        for question in ("Where is Xyzzy?", 3, None, ""):
            with pytest.raises(InvalidValue, match="query"):
                engine.query("s", question)
    with MemoryEngine.open(":memory:", networks["ids"]) as engine:
        for bad in (-1, 10**9, "4", 1.0, True):
            with pytest.raises(InvalidValue):
                engine.append("s", [bad])


def test_the_fingerprint_names_weights_words_and_settings(networks: dict[str, Network]) -> None:
    bundle = load_bundle(MODELS / "babi")
    assert BundleNetwork(bundle).fingerprint == networks["text"].fingerprint
    assert bundle.codec.kind == "text"
    fewer = type(bundle.codec)(segment_len=15, words=bundle.codec.words, answers=bundle.codec.answers[::-1])
    assert BundleNetwork(bundle._replace(codec=fewer)).fingerprint != networks["text"].fingerprint
    with torch.no_grad():
        next(bundle.model.parameters()).view(-1)[0] += 1.0
    changed = Bundle(bundle.model, bundle.run, bundle.codec, "other")
    network = BundleNetwork(changed)
    assert network.fingerprint != networks["text"].fingerprint
    assert network.numerics.rsplit("/", 1)[0] == networks["text"].numerics.rsplit("/", 1)[0]


def test_streams_side_by_side_get_the_bits_they_get_alone(networks: dict[str, Network]) -> None:
    for kind in ("text", "ids", "vectors", "dnc vectors"):
        network = networks[kind]
        network.self_test()
        events = [Event(item) if not isinstance(item, Event) else item for item in stream_of(kind, 60, seed=3)]
        payloads = [pack_event(event.item, event.ends_segment) for event in events]
        folds = [
            Fold(network.initial_memory(), cut_events(payloads[start : start + 9], network.segment_events).segments)
            for start in range(0, 50, 5)
        ]
        assert network.fold_many(folds) == [network.fold(*fold) for fold in folds]
        assert network.rows in ((1, 1), (2, 16))  # type: ignore[attr-defined]


def test_a_row_that_differs_in_company_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    network = vectors()
    write = network._written

    def sloppy(state: Any, pieces: Any) -> Any:
        """Sums in another order for batches of five, as a library may."""
        written = write(state, pieces)
        return type(written)(*(part + 1e-7 * (len(pieces) == 5) for part in written))

    monkeypatch.setattr(network, "_written", sloppy)
    network.self_test()
    assert network.rows == (1, 1)
    segments = network._test_segments()
    one_by_one = network.initial_memory()
    for segment in segments:
        one_by_one = network.fold(one_by_one, [segment])
    assert network.fold_many([Fold(network.initial_memory(), segments)] * 5) == [one_by_one] * 5


def test_the_self_test_finds_a_model_that_can_not_be_relied_on() -> None:
    network, calls = vectors(), 0

    def drifting(memory: bytes, segments: Sequence[Sequence[bytes]]) -> bytes:
        nonlocal calls
        calls += 1
        folded = network.fold(memory, segments)
        return folded[:-1] + bytes([folded[-1] ^ (calls == 4)])  # the second segment of those one by one

    with pytest.raises(SelfTestFailed, match="one by one"):
        require_same_bits(drifting, network.initial_memory(), network._test_segments())
    network.self_test()


def test_models_without_a_memory_or_built_in_inference_mode_are_refused() -> None:
    bundle = load_bundle(MODELS / "demo")
    with pytest.raises(BadInput, match="keeps no memory"):
        BundleNetwork(bundle._replace(model=torch.nn.Linear(2, 2)))  # type: ignore[arg-type]
    with torch.inference_mode():
        inside = load_bundle(MODELS / "demo")
    with pytest.raises(BadInput, match="inference_mode"):
        BundleNetwork(inside)
    with pytest.raises(BadInput, match="no memory"):
        VectorNetwork(torch.nn.Linear(2, 2), item_dim=2, segment_len=2)
    silent = VectorNetwork(vectors()._memorizer, item_dim=8, segment_len=4)  # type: ignore[arg-type]
    with MemoryEngine.open(":memory:", silent) as engine:
        engine.append("s", [[0.0] * 8])
        with pytest.raises(InvalidValue, match="no reader"):
            engine.query("s", [0.0] * 8)


def test_a_stored_memory_must_have_the_models_parts(networks: dict[str, Network]) -> None:
    network = networks["ids"]
    assert isinstance(network, BundleNetwork)
    with pytest.raises(MemoryDamaged, match="can't be read"):
        network.fold(b"not safetensors", [])
    with pytest.raises(MemoryDamaged, match="other sizes"):
        network.fold(vectors_memory_named_slots(), [])
    assert pack_state(unpack_state(network.initial_memory(), network._empty)) == network.initial_memory()


def vectors_memory_named_slots() -> bytes:
    from safetensors.torch import save

    return save({"slots": torch.zeros(1, 2, 3)})


def test_a_memory_that_is_not_finite_is_never_stored() -> None:
    network = vectors()
    memorizer: Any = network._memorizer
    with MemoryEngine.open(":memory:", network) as engine:
        engine.append("s", stream_of("vectors", 4), seq=0)
        good = memory_of(engine, "s")
        with torch.no_grad():
            memorizer.writer.cell.weight_ih.fill_(float("nan"))
        engine.append("s", stream_of("vectors", 4), seq=4)
        assert memory_of(engine, "s") == good
        assert engine.inspect("s").state == "degraded"
        assert engine.query("s", [0.0] * 8).stale


def test_one_thread_is_used_whatever_was_set_before(networks: dict[str, Network]) -> None:
    network = networks["text"]
    segments = network._test_segments()  # type: ignore[attr-defined]
    wanted = network.fold(network.initial_memory(), segments)
    torch.set_num_threads(2)
    assert network.fold(network.initial_memory(), segments) == wanted
    assert torch.get_num_threads() == 1
