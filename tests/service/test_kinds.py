"""Models of every task behind the engine: passages with candidates, frames, clicks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from service_parts import SqlitePlace

from remem import StreamMemory
from remem.build import build_model
from remem.bundle import Bundle, fingerprint_of
from remem.data.codec import ClickCodec, Codec, FrameCodec, PassageCodec
from remem.experiments.presets import find_preset
from remem.model.assembly import MemoryModel
from remem.service import MemoryEngine
from remem.service.bundle_network import BundleNetwork
from remem.service.errors import InvalidValue

WORDS = ["<unknown>", "a", "boat", "dog", "who", "swims", "walks"]
CANDIDATES = ["a dog", "a boat", "a cat"]


class Kind:
    """A small untrained model of a preset, with a stream for it and a question."""

    def __init__(self, preset: str, codec: Codec, stream: list[Any], question: Any, asked: dict[str, Any]) -> None:
        run = find_preset(preset)
        run = replace(run, model=replace(run.model, item_dim=16, model_dim=16))
        torch.manual_seed(0)
        model = build_model(run.model, codec)
        assert isinstance(model, MemoryModel)
        self.bundle = Bundle(model, run, codec, fingerprint_of(model))
        self.stream, self.question, self.asked = stream, question, asked


def make_kind(name: str) -> Kind:
    if name.startswith("passage"):
        codec: Codec = PassageCodec(segment_len=4, words=WORDS, stand_ins=50)
        stream = ["a dog swims", "a boat", "who walks", "a stranger walks away on a boat"]
        question = {"question": "who swims", "candidates": CANDIDATES}
        preset = "narrativeqa/rm-turns" if name == "passage in turns" else "narrativeqa/rm"
        return Kind(preset, codec, stream, question, {"question": "who swims", "candidates": CANDIDATES})
    if name == "frames":
        codec = FrameCodec(segment_len=3, width=5, words=WORDS, answers=["dog", "boat"])
        stream = [[0.1 * i * j for j in range(5)] for i in range(8)]
        return Kind("activitynetqa/rm", codec, stream, "who swims", {"question": "who swims"})
    codec = ClickCodec(segment_len=3, num_items=9)
    preset = "lastfm/rm-delta" if name == "clicks that are held" else "lastfm/rm"
    return Kind(preset, codec, [1, 5, 3, 8, 0, 2, 2, 7], 5, {"question": 5})


@pytest.mark.parametrize("name", ["passage", "passage in turns", "frames", "clicks", "clicks that are held"])
def test_a_stream_is_kept_and_answered_as_a_stream_memory_does(name: str, tmp_path: Path) -> None:
    kind, place = make_kind(name), SqlitePlace(tmp_path)
    memory = StreamMemory.open(kind.bundle)
    memory.write_many(kind.stream)
    wanted = memory.query(**kind.asked)
    with MemoryEngine.open(place.open(), kind.bundle) as engine:
        for seq, event in enumerate(kind.stream[:5]):
            engine.append("s", [event], seq=seq)
    with MemoryEngine.open(place.open(), kind.bundle) as engine:
        engine.append("s", kind.stream[3:], seq=3)  # two of them for the second time
        said = engine.query("s", kind.question)
        assert engine.verify().problems == []
    assert said.as_of_seq == len(kind.stream)
    assert {answer for answer, _ in said.answer.top} == {answer for answer, _ in wanted.top}
    chances = dict(said.answer.top)
    for answer, probability in wanted.top:
        assert chances[answer] == pytest.approx(probability, abs=1e-4)


@pytest.mark.parametrize(
    "question",
    [
        "who swims",
        {"question": "who swims"},
        {"question": "who swims", "candidates": []},
        {"question": "who swims", "candidates": "a dog"},
        {"question": "who swims", "candidates": [3]},
        {"question": "who swims", "candidates": CANDIDATES, "more": 1},
    ],
    ids=str,
)
def test_a_question_without_proper_candidates_is_refused(question: Any) -> None:
    with MemoryEngine.open(":memory:", make_kind("passage").bundle) as engine:
        engine.append("s", ["a dog swims"], seq=0)
        with pytest.raises(InvalidValue, match=r"candidates|text"):
            engine.query("s", question)


@pytest.mark.parametrize("vector", [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0, "five"], "who", [1.0, 2.0, 3.0, 4.0, 1e300]])
def test_a_vector_of_another_width_or_of_no_numbers_is_refused_and_changes_nothing(vector: Any) -> None:
    with MemoryEngine.open(":memory:", make_kind("frames").bundle) as engine:
        engine.append("s", [[0.0] * 5], seq=0)
        with pytest.raises(InvalidValue):
            engine.append("s", [[0.0] * 5, vector], seq=1)
        assert engine.inspect("s").next_seq == 1


@pytest.mark.parametrize("name", ["passage", "frames", "clicks"])
def test_the_self_test_reaches_segments_of_every_length(name: str) -> None:
    network = BundleNetwork(make_kind(name).bundle)
    network.self_test()
    lengths = {sum(len(piece) for piece in network._pieces(segment)) for segment in network._test_segments()}
    assert len(lengths) > 1
