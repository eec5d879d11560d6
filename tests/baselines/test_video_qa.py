"""E-VQA, E-MN, E-SA and HCRN: each equation number by number, and that each learns to look."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import qa
import torch
from torch import nn

from remem.baselines.hcrn import RelationUnit
from remem.errors import BadInput
from remem.settings.baselines import (
    BaselineSettings,
    BlindSettings,
    EMNSettings,
    ESASettings,
    EVQASettings,
    HCRNSettings,
)

POSITIONS = 3
SMALL: dict[str, BaselineSettings] = {
    "e-vqa": EVQASettings(num_positions=POSITIONS, dropout=0.0),
    "e-mn": EMNSettings(num_positions=POSITIONS, num_hops=2, dropout=0.0),
    "e-sa": ESASettings(num_positions=POSITIONS, dropout=0.0),
    "hcrn": HCRNSettings(num_clips=5, clip_len=6, dropout=0.0),
}
FRAMES = torch.randn(4, 3, qa.WIDTH, generator=torch.Generator().manual_seed(1)).tolist()  # four segments of three
QUESTION = [7, 3]


def assert_close(actual: torch.Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(actual.detach(), torch.tensor(expected), rtol=1e-4, atol=1e-5)


def tanh(vector: qa.Vector) -> qa.Vector:
    return [math.tanh(v) for v in vector]


def elu(vector: qa.Vector) -> qa.Vector:
    return [v if v > 0 else math.exp(v) - 1 for v in vector]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def times(left: qa.Vector, right: qa.Vector) -> qa.Vector:
    return [a * b for a, b in zip(left, right, strict=True)]


def slow_lstm(lstm: nn.LSTM, rows: list[qa.Vector], suffix: str = "") -> tuple[list[qa.Vector], qa.Vector]:
    """Every hidden state, and the last cell."""
    size = lstm.hidden_size
    w_i, w_h, b_i, b_h = (
        getattr(lstm, f"{name}_l0{suffix}").tolist() for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    hidden, cell, states = [0.0] * size, [0.0] * size, []
    for row in rows:
        gates = [qa.dot(w_i[k], row) + qa.dot(w_h[k], hidden) + b_i[k] + b_h[k] for k in range(4 * size)]
        opened, kept, new, shown = (gates[k * size : (k + 1) * size] for k in range(4))
        cell = [sigmoid(f) * c + sigmoid(i) * math.tanh(g) for f, c, i, g in zip(kept, cell, opened, new, strict=True)]
        hidden = [sigmoid(o) * math.tanh(c) for o, c in zip(shown, cell, strict=True)]
        states.append(hidden)
    return states, cell


def parts(model: Any, segments: int) -> tuple[list[qa.Vector], qa.Vector]:
    """The positions of the video up to a segment, and the question."""
    with torch.no_grad():
        frames = model.embed(torch.tensor(FRAMES[:segments]).flatten(0, 1)).tolist()
        question = model.query_encoder(torch.tensor([QUESTION]), torch.ones(1, 2, dtype=torch.bool))[0].tolist()
    count, length = model.num_positions, len(frames)
    starts = [i * length // count for i in range(count)]
    ends = [max(start + 1, (i + 1) * length // count) for i, start in enumerate(starts)]
    return [qa.mean(frames[start:end]) for start, end in zip(starts, ends, strict=True)], question


def slow_e_vqa(model: Any, video: list[qa.Vector], question: qa.Vector) -> qa.Vector:
    _, cell = slow_lstm(model.lstm, video)
    return times(tanh(qa.affine(model.from_video, cell)), tanh(qa.affine(model.from_question, question)))


def slow_e_sa(model: Any, video: list[qa.Vector], question: qa.Vector) -> qa.Vector:
    values = [tanh(qa.affine(model.from_video, position)) for position in video]
    u = tanh(qa.affine(model.from_question, question))
    return times(u, qa.weighted(qa.softmax([qa.dot(u, value) for value in values]), values))


def slow_e_mn(model: Any, video: list[qa.Vector], question: qa.Vector) -> qa.Vector:
    ahead, _ = slow_lstm(model.lstm, video)
    back, _ = slow_lstm(model.lstm, video[::-1], "_reverse")
    states = [qa.mean(pair) for pair in zip(ahead, back[::-1], strict=True)]
    u = qa.affine(model.first, question)
    for key_map, value_map in pairwise(model.maps):
        weights = qa.softmax([qa.dot(u, tanh(qa.affine(key_map, state))) for state in states])
        u = qa.add(u, qa.weighted(weights, [tanh(qa.affine(value_map, state)) for state in states]))
    return u


def slow_unit(unit: RelationUnit, objects: list[qa.Vector], condition: qa.Vector) -> list[qa.Vector]:
    """The relations of every size, largest first."""
    found = []
    for i, chosen in enumerate(unit.fixed.tolist()):
        subset = [each for each, there in zip(objects, chosen, strict=True) if there]
        assert len(subset) == len(objects) - 1 - i
        both = [*qa.mean(subset), *condition]
        weight = torch.cat([unit.of_mean[i], unit.of_condition[i]]).T.tolist()
        out = [qa.dot(row, both) + b for row, b in zip(weight, unit.bias[i].tolist(), strict=True)]
        size = len(out) // 2 if unit.gated else len(out)
        value = elu(out[:size])
        found.append(times(value, [sigmoid(x) for x in out[size:]]) if unit.gated else value)
    return found


def slow_motion(model: Any, clip: list[qa.Vector]) -> qa.Vector:
    """A convolution over three frames, zeros around the clip, averaged."""
    weight, bias = model.motion.weight.tolist(), model.motion.bias.tolist()
    zero = [0.0] * len(clip[0])
    around = [zero, *clip, zero]
    moving = []
    for t in range(len(clip)):
        near = [[around[t + k][d] for k in range(3)] for d in range(len(zero))]
        moving.append(elu([b + sum(map(qa.dot, row, near)) for row, b in zip(weight, bias, strict=True)]))
    return qa.mean(moving)


def slow_hcrn(model: Any, video: list[qa.Vector], question: qa.Vector) -> qa.Vector:
    length = len(video) // model.num_clips
    clips = [video[i * length : (i + 1) * length] for i in range(model.num_clips)]
    motions = [slow_motion(model, clip) for clip in clips]
    whole = slow_lstm(model.video_motion, motions)[0][-1]
    by_clip = [
        slow_unit(model.frames_by_question, slow_unit(model.frames_by_motion, clip, motion), question)
        for clip, motion in zip(clips, motions, strict=True)
    ]  # clips of length - 4 objects each
    objects = []
    for same in zip(*by_clip, strict=True):  # the same object of every clip
        relations = slow_unit(model.clips_by_motion, list(same), whole)
        objects += slow_unit(model.clips_by_question, relations, question)
    assert len(objects) == (model.num_clips - 4) * (length - 4)
    mapped = [qa.affine(model.object_map, each) for each in objects]
    asked = qa.affine(model.question_map, question)
    scores = [qa.affine(model.score, elu(qa.affine(model.joint, [*each, *times(each, asked)])))[0] for each in mapped]
    found = qa.weighted(qa.softmax(scores), objects)
    out = elu(qa.affine(model.out, [*found, *qa.affine(model.question_out, question)]))
    centre = sum(out) / len(out)
    deviation = math.sqrt(sum((v - centre) ** 2 for v in out) / len(out) + 1e-5)
    normed = [(v - centre) / deviation for v in out]
    return qa.add(times(normed, model.norm.weight.tolist()), model.norm.bias.tolist())


SLOW = {"e-vqa": slow_e_vqa, "e-mn": slow_e_mn, "e-sa": slow_e_sa, "hcrn": slow_hcrn}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("after_all", [False, True])
def test_scores_are_the_equations_one_number_at_a_time(name: str, after_all: bool) -> None:
    model = qa.make(SMALL[name], qa.FRAMES)
    asked = [(QUESTION, 4)] if after_all else [(QUESTION, 4), (QUESTION, 2)]
    scores = model(qa.streams(FRAMES), qa.questions([asked])._replace(after_all=after_all))
    for i, (_, segments) in enumerate(asked):
        expected = qa.affine(model.head.classify, SLOW[name](model, *parts(model, segments)))
        assert_close(scores[0, i], expected)


def test_a_relation_unit_draws_new_subsets_for_training_and_keeps_the_same_for_answers() -> None:
    unit = RelationUnit(num_objects=8, object_dim=4, model_dim=5, gated=True)
    objects, condition = torch.randn(2, 8, 4), torch.randn(2, 5)
    drawn = [unit._subsets() for _ in range(50)]
    for subsets in drawn:
        assert subsets.sum(dim=1).tolist() == [7, 6, 5, 4, 3, 2]
    share = torch.stack(drawn).float().mean(dim=0)  # every object is in a subset of k with the chance k / 8
    assert (share - torch.tensor([7, 6, 5, 4, 3, 2])[:, None] / 8).abs().max() < 0.25
    assert not torch.equal(unit(objects, condition), unit(objects, condition))
    unit.eval()
    assert unit(objects, condition).shape == (2, 6, 5)
    assert torch.equal(unit(objects, condition), unit(objects, condition))
    again = RelationUnit(num_objects=8, object_dim=4, model_dim=5, gated=True)
    assert torch.equal(unit.fixed, again.fixed), "a saved model answers as before"


def test_a_relation_unit_without_a_subset_is_refused() -> None:
    with pytest.raises(BadInput, match="at least two objects"):
        RelationUnit(num_objects=2, object_dim=4, model_dim=4, gated=False)


def test_hcrn_leaves_48_objects_of_8_clips_of_16_frames() -> None:
    model = qa.make(HCRNSettings(), qa.FRAMES)
    assert model.num_positions == 128
    assert model.relate(torch.randn(2, 1, 128, 8), torch.randn(2, 3, 6)).shape == (2, 3, 48, 6)


@pytest.mark.parametrize("name", SMALL)
def test_it_learns_what_was_seen(name: str) -> None:
    """Three answers: chance is a third."""
    model = qa.make(SMALL[name], qa.FRAMES, qa.sized(24))
    assert qa.learn(model, qa.last_seen, steps=110) > 0.85


def test_what_cannot_be_guessed_stays_at_chance_without_the_video() -> None:
    model = qa.make(BlindSettings(), qa.FRAMES, qa.sized(24))
    accuracy = [qa.learn(model, qa.last_seen, steps=40), *(qa.right(model, *qa.last_seen()) for _ in range(4))]
    assert sum(accuracy) / len(accuracy) < 0.5
