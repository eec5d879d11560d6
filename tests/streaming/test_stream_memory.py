"""StreamMemory: items one by one, questions at any time, a state of bounded size."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remem import StreamMemory, load_bundle
from remem.build import build_model
from remem.bundle import save_tensors
from remem.data.codec import TextCodec, UnknownItem
from remem.errors import BadInput
from remem.header import MODEL_FILE
from remem.settings.model import ModelSettings
from remem.settings.run import Run
from remem.tasks.load import load_task

ITEMS = st.lists(st.integers(0, 11), max_size=20)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=ITEMS, cuts=st.lists(st.integers(0, 20), max_size=4))
def test_any_chunking_of_items_gives_the_same_memory(tiny_model: Path, items: list[int], cuts: list[int]) -> None:
    bundle = load_bundle(tiny_model)
    single, chunked = StreamMemory.open(bundle), StreamMemory.open(bundle)
    for item in items:
        single.write(item)
    edges = [0, *sorted(min(c, len(items)) for c in cuts), len(items)]
    for start, stop in itertools.pairwise(edges):
        chunked.write_many(items[start:stop])
    torch.testing.assert_close(single.slots(), chunked.slots())
    assert single.state.pending == chunked.state.pending
    assert single.state.items == chunked.state.items == len(items)


def test_a_whole_stream_gives_the_answer_of_the_batched_model(tiny_model: Path, tiny_run: Run) -> None:
    bundle = load_bundle(tiny_model)
    batch = load_task(tiny_run.task).load("test").batch(0, torch.arange(3))
    scores = bundle.model(batch.stream, batch.query)[:, 0].softmax(dim=-1).detach()
    for row in range(3):
        memory = StreamMemory.open(tiny_model)
        memory.write_many(batch.stream.items[batch.stream.order[row]].flatten().tolist())
        answer = memory.query(int(batch.query.tokens[row, 0, 0]), top=3)
        assert answer.answer == int(scores[row].argmax())
        assert answer.probability == pytest.approx(float(scores[row].max()), abs=1e-5)
        assert sum(p for _, p in answer.top) == pytest.approx(1.0, abs=1e-5)
        assert len(answer.read_weights) == 2


def test_a_question_mid_segment_sees_the_pending_items_and_changes_nothing(tiny_model: Path) -> None:
    memory, other = StreamMemory.open(tiny_model), StreamMemory.open(tiny_model)
    memory.write_many([0, 1, 2, 3, 4, 5])
    before = memory.state
    asked = memory.query(0)
    assert memory.state is before
    assert memory.state.pending == (4, 5)
    other.write_many([0, 1, 2, 3, 9, 10])
    assert other.query(0).top != asked.top  # the two differ in pending items alone
    memory.write_many([6, 7])
    fresh = StreamMemory.open(tiny_model)
    fresh.write_many(range(8))
    torch.testing.assert_close(memory.slots(), fresh.slots())


def test_the_state_does_not_grow_with_the_stream(tiny_model: Path) -> None:
    memory = StreamMemory.open(tiny_model)
    memory.write_many([1] * 4)
    size = memory.state.num_bytes()
    memory.write_many([i % 12 for i in range(400)])
    assert memory.state.num_bytes() == size == 4 * 4 * 32 + 16
    assert (memory.state.items, memory.state.segments) == (404, 101)


def test_a_bad_item_is_refused_and_changes_nothing(tiny_model: Path) -> None:
    memory = StreamMemory.open(tiny_model)
    memory.write(3)
    before = memory.state
    for bad in (99, -1, "three", True, None):
        with pytest.raises(UnknownItem, match="expected an integer from 0 to 11"):
            memory.write_many([1, bad])
    with pytest.raises(UnknownItem, match="query"):
        memory.query(77)
    assert memory.state is before


def test_a_saved_stream_goes_on_where_it_was(tiny_model: Path, tmp_path: Path) -> None:
    memory, again = StreamMemory.open(tiny_model), StreamMemory.open(tiny_model)
    memory.write_many(range(7))
    memory.save(tmp_path / "stream.safetensors")
    again.load(tmp_path / "stream.safetensors")
    assert again.state.pending == (4, 5, 6)
    for stream in (memory, again):
        stream.write_many([8, 9, 10])
    assert torch.equal(memory.slots(), again.slots())
    assert again.query(1) == memory.query(1)


def test_a_memory_of_other_weights_is_refused(tiny_model: Path, tiny_run: Run, tmp_path: Path) -> None:
    StreamMemory.open(tiny_model).save(tmp_path / "stream.safetensors")
    codec = load_task(tiny_run.task).codec
    other = StreamMemory(build_model(tiny_run.model, codec), codec)
    with pytest.raises(BadInput, match="written by the weights"):
        other.load(tmp_path / "stream.safetensors")


def test_a_memory_of_other_parts_or_sizes_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    memory = StreamMemory.open(tiny_model)
    info = {"fingerprint": memory.state.fingerprint, "pending": [], "items": 0, "segments": 0}
    path = tmp_path / "stream.safetensors"
    save_tensors(path, {"memory.links": torch.zeros(1)}, info)
    with pytest.raises(BadInput, match="parts"):
        memory.load(path)
    save_tensors(path, {"memory.slots": torch.zeros(1, 2, 3)}, info)
    with pytest.raises(BadInput, match="sizes"):
        memory.load(path)
    save_tensors(path, {"memory.slots": memory.state.memory[0]}, info | {"pending": [1] * 9})
    with pytest.raises(BadInput, match="9 pending items"):
        memory.load(path)


def test_sentences_are_segments_and_long_ones_several(tmp_path: Path) -> None:
    torch.manual_seed(0)
    codec = TextCodec(
        segment_len=4, words=["went", "mary", "to", "the", "garden", "where", "is"], answers=["garden", "x"]
    )
    memory = StreamMemory(build_model(ModelSettings(item_dim=8, model_dim=8), codec), codec)
    memory.write("Mary went to the garden.")
    assert (memory.state.items, memory.state.segments, memory.state.pending) == (1, 2, ())
    assert memory.query("Where is Mary?").answer in ("garden", "x")
    with pytest.raises(UnknownItem, match="'john'"):
        memory.write("John went to the garden.")
    with pytest.raises(UnknownItem, match="expected text"):
        memory.write(7)
    with pytest.raises(UnknownItem, match="no word"):
        memory.query("?!")


def test_a_folder_without_a_model_or_with_a_damaged_one_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        StreamMemory.open(tmp_path)
    (tmp_path / MODEL_FILE).write_bytes((tiny_model / MODEL_FILE).read_bytes()[:-200])
    with pytest.raises(BadInput, match="damaged"):
        StreamMemory.open(tmp_path)
