"""Streams of vectors, candidate answers and clicks: every method on every kind of task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import assert_close
from torch.nn import functional as F

from remem.build import build_model, build_sampler
from remem.data.batch import Batch, Candidates, QueryBatch, StreamBatch
from remem.data.codec import UNKNOWN_WORD, ClickCodec, Codec, FrameCodec, PassageCodec
from remem.errors import BadInput
from remem.experiments.presets import PRESETS
from remem.model.assembly import MemoryModel
from remem.model.embed import VectorEmbedding
from remem.model.fragments import make_fragments
from remem.model.interface import embed_stream
from remem.model.rehearsal import Rehearsed, item_keys, recollection_loss
from remem.settings.model import ModelSettings
from remem.training.objective import DirectObjective, draw_distractors, make_objective, reason_loss

B, T, N, Q, E = 3, 4, 5, 2, 7
WORDS = [UNKNOWN_WORD, *(f"w{i}" for i in range(8))]
CODECS: dict[str, Codec] = {
    "narrativeqa": PassageCodec(segment_len=N, words=WORDS),
    "activitynetqa": FrameCodec(segment_len=N, width=E, words=WORDS, answers=list("abcd")),
    "lastfm": ClickCodec(segment_len=N, num_items=30),
}
# logs of clicks have the same presets, whoever clicks
LONG = [name for name in PRESETS if name.split("/")[0] in CODECS]


def example(task: str) -> Batch:
    """Three streams, the last with a segment less, segments of different lengths."""
    lengths = torch.randint(1, N + 1, (B * T,))
    item_mask = torch.arange(N) < lengths[:, None]
    items = torch.randn(B * T, N, E) if task == "activitynetqa" else torch.randint(9, (B * T, N))
    segment_mask = torch.ones(B, T, dtype=torch.bool)
    segment_mask[2, 3] = False
    stream = StreamBatch(items, item_mask, torch.arange(B * T).view(B, T), segment_mask, True, T * N)
    candidates = None
    if task == "narrativeqa":
        mask = torch.ones(B, 4, 3, dtype=torch.bool)
        mask[1, 3] = False
        candidates = Candidates(torch.randint(9, (B, 4, 3)), mask)
    w = 1 if task == "lastfm" else 3
    tokens = torch.randint(9, (B, Q, w))
    zero = torch.zeros(B, Q, dtype=torch.long)
    position = segment_mask.sum(dim=1, keepdim=True).expand(B, Q)
    query = QueryBatch(
        tokens, tokens >= 0, position, torch.randint(2, (B, Q)), tokens[..., 0] >= 0, zero, zero, candidates
    )
    return Batch(stream, query, torch.arange(B))


@pytest.mark.parametrize("name", LONG)
def test_every_method_trains_on_every_kind_of_task(name: str, shrink: Any) -> None:
    settings: ModelSettings = shrink(PRESETS[name].model)
    task, _, _ = name.partition("/")
    codec, batch = CODECS[task], example(task)
    model, sampler = build_model(settings, codec), build_sampler(settings, codec)
    loss, _ = make_objective(model, settings.rehearsal, sampler)(batch)
    loss.backward()
    without = [part for part, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    # a last state's own read may go nowhere, but embedding, question and head always learn
    assert not [part for part in without if part.startswith(("embed", "query_encoder", "head", "reasoner"))]
    scores = model.eval()(batch.stream, batch.query)
    assert scores.shape == (B, Q, {"narrativeqa": 4, "activitynetqa": 4, "lastfm": 1}[task])
    sampler_loss, _ = DirectObjective(sampler)(batch)
    sampler_loss.backward()
    assert sampler(batch.stream, batch.query).shape == scores.shape


@pytest.mark.parametrize("method", ["rm", "dnc", "stm", "ct", "directly-reason", "multi-hop-reason"])
@pytest.mark.parametrize("task", CODECS)
def test_padding_changes_no_answer(task: str, method: str, shrink: Any) -> None:
    model = build_model(shrink(PRESETS[f"{task}/{method}"].model), CODECS[task]).eval()
    batch = example(task)
    before = model(batch.stream, batch.query)
    items = batch.stream.items.clone()
    padding = ~batch.stream.item_mask
    padding[batch.stream.order[2, 3]] = True
    items[padding] = 5 * torch.randn(int(padding.sum()), E) if task == "activitynetqa" else 8
    assert_close(model(batch.stream._replace(items=items), batch.query), before)


@pytest.mark.parametrize("task", CODECS)
def test_the_blind_model_sees_no_stream(task: str, shrink: Any) -> None:
    model = build_model(shrink(PRESETS[f"{task}/blind"].model), CODECS[task]).eval()
    batch, other = example(task), example(task)
    assert torch.equal(model(other.stream, batch.query), model(batch.stream, batch.query))
    assert not torch.equal(model(batch.stream, other.query), model(batch.stream, batch.query))


def test_the_target_is_embedded_as_the_streams_items_are() -> None:
    model = build_model(PRESETS["lastfm/rm"].model, CODECS["lastfm"])
    assert isinstance(model, MemoryModel)
    assert model.query_encoder.items is model.embed.table  # type: ignore[union-attr]


def test_vectors_have_no_numbers_and_words_do() -> None:
    frames, words = example("activitynetqa").stream, example("narrativeqa").stream
    assert embed_stream(VectorEmbedding(width=E, item_dim=4), frames).ids is None
    model = build_model(PRESETS["narrativeqa/rm"].model, CODECS["narrativeqa"])
    assert embed_stream(model.embed, words).ids is words.items  # type: ignore[union-attr]


def test_a_click_is_trained_by_binary_cross_entropy_and_a_missing_answer_by_nothing() -> None:
    logits = torch.randn(1, 3, 1, requires_grad=True)
    query = example("lastfm").query
    answer = torch.tensor([[1, 0, -1]])
    query = query._replace(answer=answer, mask=answer > -2)
    expected = F.binary_cross_entropy(logits[0, :2, 0].sigmoid(), torch.tensor([1.0, 0.0]))
    loss = reason_loss(logits, query)
    assert_close(loss, expected)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 2, 0] == 0


def test_padded_candidates_train_nothing() -> None:
    scores = torch.tensor([[[0.5, -0.5, -torch.inf]]], requires_grad=True)
    query = example("narrativeqa").query._replace(answer=torch.tensor([[1]]), mask=torch.tensor([[True]]))
    loss = reason_loss(scores, query)
    assert_close(loss, torch.log1p(torch.tensor(1.0).exp()))
    loss.backward()
    assert scores.grad is not None
    assert scores.grad[0, 0, 2] == 0


def test_equal_vectors_have_equal_keys_and_others_do_not() -> None:
    vectors = torch.randn(2, 3, 50, E)
    keys = item_keys(vectors)
    assert keys.shape == (2, 3, 50)
    assert len(keys.unique()) == 300
    assert torch.equal(item_keys(vectors.clone()), keys)
    assert not torch.equal(item_keys(vectors.flip(-1)), keys)
    numbers = torch.randint(5, (2, 3, 4))
    assert torch.equal(item_keys(numbers), numbers)


def test_keys_are_those_of_unbounded_integers() -> None:
    """Compiled to C++, a number that leaves 63 bits is undefined, and lookups beside it went astray."""
    vector = torch.cat([torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan]), 1e38 * torch.randn(4091)])
    key = 0
    for place, bits in enumerate(vector.view(torch.int32).tolist(), start=1):
        key += (bits ^ (bits >> 15)) * ((place * 0x9E3779B1 & 0x7FFFFFFF) | 1) & 0x3FFFFFFFFFFF
    assert item_keys(vector[None, None, None]).item() == key < 2**63


def test_a_frame_is_recalled_among_others_of_its_stream_and_never_against_itself() -> None:
    """The next frame may be the same: as a distractor it would be counted on both sides."""
    stream = example("activitynetqa").stream
    stream = stream._replace(items=stream.items[:1, :1].expand(B * T, N, E).contiguous())  # nothing but one frame
    chosen = torch.zeros(B, 2, dtype=torch.long)
    fragments = make_fragments(stream, chosen, chosen == 0, mask_ratio=0.5, replace_ratio=0.5)
    rehearsal = PRESETS["activitynetqa/rm"].model.rehearsal
    assert (rehearsal.num_distractors, rehearsal.distractors_from) == (30, "stream")
    distractors = draw_distractors(stream, fragments, None, rehearsal)
    assert distractors is not None
    assert distractors.shape == (B, 2, 30, E)
    rehearsed = Rehearsed(torch.randn(B, 2, fragments.places.shape[2], 4), torch.zeros(2, B, 2))
    embed = VectorEmbedding(width=E, item_dim=4)
    assert recollection_loss(rehearsed, fragments, embed, distractors=distractors) == 0
    other = torch.randn_like(distractors)
    assert recollection_loss(rehearsed, fragments, embed, distractors=other) > 0


def test_a_replaced_frame_is_one_of_another_stream() -> None:
    stream = example("activitynetqa").stream
    owner = torch.arange(B).repeat_interleave(T).float()
    stream = stream._replace(items=owner[:, None, None].expand(-1, N, E).contiguous())
    chosen = torch.zeros(B, 2, dtype=torch.long)
    fragments = make_fragments(stream, chosen, chosen == 0, mask_ratio=0.0, replace_ratio=1.0)
    own = torch.arange(B).float()[:, None, None]
    assert (fragments.negative_items[..., 0] != own)[fragments.item_mask].all()
    assert (fragments.items[..., 0] == own)[fragments.item_mask].all()
    assert (fragments.negative_items == fragments.negative_items[..., :1]).all()  # vectors are replaced whole


def test_vectors_without_distractors_of_their_stream_are_refused() -> None:
    batch = example("activitynetqa")
    settings = replace(PRESETS["activitynetqa/rm"].model.rehearsal, num_distractors=None)
    chosen = torch.zeros(B, 2, dtype=torch.long)
    fragments = make_fragments(batch.stream, chosen, chosen == 0, mask_ratio=0.5, replace_ratio=0.5)
    with pytest.raises(BadInput, match="no vocabulary"):
        draw_distractors(batch.stream, fragments, None, settings)
