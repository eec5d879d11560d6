"""StreamMemory over the models of the long tasks: candidates, clicks and vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from remem import StreamMemory
from remem.build import build_model
from remem.data.codec import UNKNOWN_WORD, ClickCodec, FrameCodec, PassageCodec, UnknownItem
from remem.errors import BadInput
from remem.experiments.presets import PRESETS

WORDS = [UNKNOWN_WORD, "anna", "walked", "to", "the", "mill", "castle", ".", "where", "is", "?"]


def memory_of(preset: str, codec: Any, shrink: Any) -> StreamMemory:
    torch.manual_seed(0)
    return StreamMemory(build_model(shrink(PRESETS[preset].model), codec), codec)  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", ["narrativeqa/rm", "narrativeqa/rm-turns"])
def test_an_answer_is_one_of_the_candidates_given(preset: str, shrink: Any) -> None:
    memory = memory_of(preset, PassageCodec(segment_len=6, words=WORDS), shrink)
    memory.write("Anna walked to the old mill, far away.")
    assert memory.state.segments == 2  # nine words and marks
    answer = memory.query("Where is Anna?", candidates=["the mill", "the castle", "nowhere"])
    assert {text for text, _ in answer.top} == {"the mill", "the castle", "nowhere"}
    assert sum(p for _, p in answer.top) == pytest.approx(1)
    turned = memory.query("Where is Anna?", candidates=["nowhere", "the castle", "the mill"])
    assert turned.answer == answer.answer
    assert turned.probability == pytest.approx(answer.probability, abs=1e-5)
    with pytest.raises(BadInput, match="give some with candidates"):
        memory.query("Where is Anna?")


@pytest.mark.parametrize("preset", ["lastfm/rm", "lastfm/rm-delta"])
def test_a_click_is_yes_or_no_with_its_probability(preset: str, shrink: Any) -> None:
    memory = memory_of(preset, ClickCodec(segment_len=4, num_items=9), shrink)
    memory.write_many([1, 2, 3, 4, 5])
    answer = memory.query(3)
    assert dict(answer.top).keys() == {True, False}
    assert sum(p for _, p in answer.top) == pytest.approx(1)
    logit = memory.model.answer(memory.slots(), torch.tensor([[3]]), torch.tensor([[True]])).scores.item()
    assert dict(answer.top)[True] == pytest.approx(torch.tensor(logit).sigmoid().item(), abs=1e-6)
    with pytest.raises(UnknownItem, match="0 to 8"):
        memory.query(9)
    with pytest.raises(BadInput, match="without candidates"):
        memory.query(3, candidates=["a"])


def test_vectors_are_written_one_by_one_and_kept_while_pending(shrink: Any, tmp_path: Path) -> None:
    codec = FrameCodec(segment_len=4, width=3, words=WORDS, answers=["yes", "no"])
    memory, other = (memory_of("activitynetqa/rm", codec, shrink) for _ in range(2))
    frames = torch.randn(6, 3).tolist()
    memory.write_many(frames[:5])
    assert memory.state.segments == 1
    assert len(memory.state.pending) == 1
    memory.save(tmp_path / "state.safetensors")
    other.load(tmp_path / "state.safetensors")
    assert other.state.pending == memory.state.pending
    memory.write(frames[5])
    other.write(frames[5])
    torch.testing.assert_close(memory.slots(), other.slots())
    assert memory.query("Where is Anna?").answer in ("yes", "no")
    with pytest.raises(UnknownItem, match="expected 3 finite numbers"):
        memory.write([1.0, 2.0])
