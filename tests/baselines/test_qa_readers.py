"""What all directly reasoning methods of text and video QA hold to: what they see, and what they must not."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import qa
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from remem.baselines.reading import spread
from remem.build import build_memorizer, build_model
from remem.bundle import load_bundle, save_bundle
from remem.data.batch import QueryBatch, StreamBatch
from remem.data.codec import IdCodec
from remem.errors import BadInput
from remem.settings.baselines import (
    ASReaderSettings,
    BaselineSettings,
    BlindSettings,
    E2EMNSettings,
    EMNSettings,
    ESASettings,
    EVQASettings,
    HCRNSettings,
)
from remem.settings.model import ModelSettings
from remem.settings.run import Run

TEXT: dict[str, BaselineSettings] = {"as-reader": ASReaderSettings(), "e2e-mn": E2EMNSettings(num_ages=5)}
VIDEO: dict[str, BaselineSettings] = {
    "e-vqa": EVQASettings(num_positions=4),
    "e-mn": EMNSettings(num_positions=4),
    "e-sa": ESASettings(num_positions=4),
    "hcrn": HCRNSettings(num_clips=5, clip_len=6),
}
READERS = [*TEXT, *VIDEO]
EVERY = [*READERS, "blind", "blind text"]
WORDS = [[1, 2, 3, 4], [5, 6], [8, 9, 10]], [[4, 5, 6, 7, 11], [8]]  # two streams
CHOICES = [[[5, 6], [9], [20]], [[8], [11, 4, 3], [1]]]
VECTORS = torch.randn(len(qa.NAMES), qa.WIDTH, generator=torch.Generator().manual_seed(3))


def make(name: str) -> Any:
    machine = {**TEXT, **VIDEO, "blind": BlindSettings(), "blind text": BlindSettings()}[name]
    return qa.make(machine, qa.PASSAGE if is_text(name) else qa.FRAMES)


def is_text(name: str) -> bool:
    return name in TEXT or name == "blind text"


def streams(name: str, *rows: Any, **sizes: int) -> StreamBatch:
    """The same streams for all: of words, or of a vector for each."""
    if not is_text(name):
        rows = tuple([[VECTORS[word].tolist() for word in segment] for segment in row] for row in rows)
    return qa.streams(*rows, **sizes)


def questions(name: str, asked: Any, choices: Any = None, **more: Any) -> QueryBatch:
    """Questions, with the first streams' candidates where the method chooses among them."""
    return qa.questions(asked, (choices or CHOICES)[: len(asked)] if is_text(name) else None, **more)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", READERS)
def test_a_question_sees_what_came_before_it_and_nothing_else(name: str) -> None:
    model, text = make(name), list(WORDS[0])
    at = [([12, 13], position) for position in (1, 2, 3)]
    scores = model(streams(name, text), questions(name, [at]))
    assert scores.shape == (1, 3, 3)
    for i, position in enumerate((1, 2, 3)):
        alone = model(streams(name, text[:position]), questions(name, [at[i : i + 1]]))
        assert_close(scores[:, i], alone[:, 0])
    changed = model(streams(name, [*text[:2], [10, 8, 5]]), questions(name, [at]))
    assert_close(changed[:, :2], scores[:, :2])
    assert not torch.allclose(changed[:, 2], scores[:, 2], atol=1e-4)


@pytest.mark.parametrize("name", READERS)
def test_one_reading_for_questions_at_the_end_is_as_good_as_one_each(name: str) -> None:
    model, stream = make(name), streams(name, *WORDS)
    query = questions(name, [[([12], 3), ([13, 14], 3)], [([15, 2], 2), ([3], 2)]])
    assert_close(model(stream, query._replace(after_all=True)), model(stream, query))


@pytest.mark.parametrize("name", EVERY)
def test_padding_anywhere_changes_nothing(name: str) -> None:
    model, asked = make(name), [[([12, 13], 3)], [([14], 2), ([3, 4], 1)]]
    scores = model(streams(name, *WORDS), questions(name, asked))
    choices = [[*row, [], []] for row in CHOICES]
    longer = questions(name, [[*row, ([], 0), ([], 0)] for row in asked], choices, words=6)
    for after_all in (False, True):
        query = questions(name, asked)._replace(after_all=after_all)
        plain = model(streams(name, *WORDS), query)
        stream = streams(name, *WORDS, segments=6, items=9)
        padded = model(stream, longer._replace(after_all=after_all))
        assert_close(padded[:, :2, :3], plain)
        assert_close(model(stream._replace(most_items=9), longer._replace(after_all=after_all))[:, :2, :3], plain)
        if is_text(name):
            assert (padded[:, :, 3:] == -torch.inf).all()
    assert scores.isfinite().all()


@pytest.mark.parametrize("name", EVERY)
def test_no_stream_touches_another(name: str) -> None:
    model, asked = make(name), [[([12, 13], 3)], [([14], 2)]]
    together = model(streams(name, *WORDS), questions(name, asked))
    for i in range(2):
        alone = model(streams(name, WORDS[i]), questions(name, [asked[i]], [CHOICES[i]]))
        assert_close(together[i : i + 1], alone)
    # neither in training, but for what is drawn at random
    stream, query = streams(name, *WORDS), questions(name, asked)
    changed = streams(name, WORDS[0], [[1, 1, 1], [2]], segments=3, items=5)
    model.train()
    torch.manual_seed(1)
    before = model(stream, query)
    torch.manual_seed(1)
    assert_close(model(changed, query)[0], before[0])


@pytest.mark.parametrize("name", EVERY)
def test_gradients_reach_every_parameter(name: str) -> None:
    model = make(name).train()
    query = questions(name, [[([12, 13], 3)], [([14, 20], 2)]], answers=torch.tensor([[1], [0]]))
    scores = model(streams(name, *WORDS), query)
    torch.nn.functional.cross_entropy(scores.flatten(0, 1), query.answer.flatten()).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", EVERY)
def test_a_question_before_anything_was_read_gets_finite_scores_and_gradients(name: str) -> None:
    model = make(name).train()
    scores = model(streams(name, *WORDS), questions(name, [[([12], 0)], [([14], 0)]]))
    assert scores.isfinite().all()
    scores.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["blind", "blind text"])
def test_the_blind_model_sees_no_stream(name: str) -> None:
    model, query = make(name), questions(name, [[([12], 3)]])
    scores = model(streams(name, WORDS[0]), query)
    assert torch.equal(model(streams(name, [[9]]), query), scores)
    other = model(streams(name, WORDS[0]), questions(name, [[([13], 3)]]))
    assert not torch.allclose(other, scores)


class Waiting(TorchDispatchMode):
    """Catches whatever would make the host wait for the device, or a shape depend on values."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        assert name not in self.forbidden, f"{name} waits for the device"
        if name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1]):
            raise AssertionError("a mask as an index has a shape that depends on values")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("after_all", [False, True])
def test_nothing_waits_for_the_device(name: str, after_all: bool) -> None:
    model = make(name).train()
    stream = streams(name, *WORDS)._replace(most_items=9)
    query = questions(name, [[([12, 13], 3)], [([14], 2)]])._replace(after_all=after_all)
    with Waiting():
        model(stream, query)
    with pytest.raises(AssertionError, match="waits for the device"), Waiting():
        query.answer.sum().item()


@pytest.mark.parametrize("name", READERS)
def test_a_long_stream_is_read_in_time_that_grows_with_its_length(name: str) -> None:
    """60 segments of 20 words, 40 of 20 frames: nothing is as large as the square of that."""
    machine = {**TEXT, **VIDEO, "hcrn": HCRNSettings()}[name]
    model, t = qa.make(machine, qa.PASSAGE if is_text(name) else qa.FRAMES), 60 if is_text(name) else 40
    words = torch.randint(len(qa.NAMES), (t, 20)).tolist()
    query = questions(name, [[([12, 13], t)] * 4])._replace(after_all=True)
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    started = time.perf_counter()
    with Sizes(), torch.no_grad():
        assert model(streams(name, words), query).isfinite().all()
    assert largest < (20 * t) ** 2 / 4
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("length", [0, 1, 3, 7, 8, 23])
def test_positions_are_means_of_even_shares(length: int) -> None:
    count, items = 7, torch.randn(1, 25, 4)
    positions = spread(items, (torch.arange(25) < length)[None, None], count)
    for i in range(count):
        start = i * length // count
        share = items[0, start : min(length, max(start + 1, (i + 1) * length // count))]
        assert_close(positions[0, 0, i], share.mean(dim=0) if length else torch.zeros(4))
    if length >= count:
        taken = [max(i * length // count + 1, (i + 1) * length // count) - i * length // count for i in range(count)]
        assert sum(taken) == length, "every item is in one position"


@pytest.mark.parametrize("name", EVERY)
def test_a_bundle_answers_as_before(name: str, tmp_path: Any) -> None:
    model = make(name)
    codec = qa.PASSAGE if is_text(name) else qa.FRAMES
    machine = {**TEXT, **VIDEO, "blind": BlindSettings(), "blind text": BlindSettings()}[name]
    save_bundle(tmp_path, model, Run(method=name, model=replace(qa.PLAIN, machine=machine)), codec)
    stream, query = streams(name, *WORDS), questions(name, [[([12, 13], 3)], [([14], 2)]])
    assert_close(load_bundle(tmp_path).model.eval()(stream, query), model(stream, query))


@pytest.mark.parametrize("name", EVERY)
def test_sixteen_bits_come_close_to_thirty_two(name: str) -> None:
    model, stream = make(name), streams(name, *WORDS)
    query = questions(name, [[([12, 13], 3)], [([14], 2)]])
    scores = model(stream, query)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        short = model(stream, query)
    torch.testing.assert_close(short.float(), scores, rtol=0.1, atol=0.1)


def test_what_cannot_be_built_is_refused_with_a_sentence() -> None:
    ids = IdCodec(segment_len=4, num_items=30, num_queries=5, num_answers=3)
    for machine in TEXT.values():
        with pytest.raises(BadInput, match="choose among candidates"):
            build_model(replace(qa.PLAIN, machine=machine), ids)
        model = qa.make(machine, qa.PASSAGE)
        with pytest.raises(BadInput, match="came without any"):
            model(qa.streams(WORDS[0]), qa.questions([[([1], 1)]]))
    for machine in (*TEXT.values(), *VIDEO.values(), BlindSettings()):
        with pytest.raises(BadInput, match="no memory to rehearse from"):
            build_model(ModelSettings(machine=machine), qa.PASSAGE)
        with pytest.raises(BadInput, match="no memory of its own"):
            build_memorizer(replace(qa.PLAIN, machine=machine), qa.PASSAGE)
    with pytest.raises(BadInput, match="at least 5 clips of 5 frames"):
        qa.make(HCRNSettings(num_clips=4), qa.FRAMES)
