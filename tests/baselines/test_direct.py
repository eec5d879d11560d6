"""Directly Reason and Multi-Hop Reason: what they see, and what they must not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from remem.baselines.directly_reason import DirectlyReason
from remem.baselines.multi_hop_reason import MultiHopReason
from remem.build import build_model
from remem.bundle import load_bundle, save_bundle
from remem.data.batch import QueryBatch, StreamBatch
from remem.data.codec import IdCodec
from remem.errors import BadInput
from remem.settings.baselines import DirectSettings
from remem.settings.model import ModelSettings, without_rehearsal
from remem.settings.run import Run
from remem.streaming.memory import StreamMemory

CODEC = IdCodec(segment_len=4, num_items=30, num_queries=5, num_answers=3)
PLAIN = without_rehearsal(ModelSettings(item_dim=8, model_dim=6))


def make(attention: bool) -> DirectlyReason | MultiHopReason:
    torch.manual_seed(0)
    model = build_model(replace(PLAIN, machine=DirectSettings(attention=attention)), CODEC)
    assert not hasattr(model, "memorizer")
    return model.eval()  # type: ignore[return-value]


def streams(*rows: list[list[int]]) -> StreamBatch:
    """Streams of segments of at most four items."""
    longest = max(map(len, rows))
    items, mask = torch.zeros(len(rows), longest, 4, dtype=torch.long), torch.zeros(len(rows), longest, 4).bool()
    for i, segments in enumerate(rows):
        for t, segment in enumerate(segments):
            items[i, t, : len(segment)], mask[i, t, : len(segment)] = torch.tensor(segment), True
    order = torch.arange(len(rows) * longest).view(len(rows), longest)
    return StreamBatch(items.flatten(0, 1), mask.flatten(0, 1), order, mask.any(dim=-1))


def questions(*positions: list[int]) -> QueryBatch:
    """The same question at each position."""
    position = torch.tensor(positions)
    zeros = torch.zeros_like(position)
    ones = torch.ones_like(position, dtype=torch.bool)
    return QueryBatch(zeros[..., None] + 2, ones[..., None], position, zeros, ones, zeros, zeros)


@pytest.mark.parametrize("attention", [False, True])
def test_a_question_sees_what_came_before_it_and_nothing_else(attention: bool) -> None:
    model = make(attention)
    stream = streams([[1, 2, 3, 4], [5, 6], [7, 8, 9]])
    scores = model(stream, questions([1, 2, 3]))
    for position, rows in ((1, [[1, 2, 3, 4]]), (2, [[1, 2, 3, 4], [5, 6]])):
        alone = model(streams(rows), questions([position]))
        torch.testing.assert_close(scores[:, position - 1], alone[:, 0], rtol=1e-5, atol=1e-6)
    changed = model(streams([[1, 2, 3, 4], [5, 6], [9, 9, 9]]), questions([1, 2, 3]))
    torch.testing.assert_close(changed[:, :2], scores[:, :2], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(changed[:, 2], scores[:, 2])


@pytest.mark.parametrize("attention", [False, True])
def test_a_question_before_the_first_segment_sees_nothing(attention: bool) -> None:
    model = make(attention)
    one, other = (model(streams([[item, 2, 3, 4], [5, 6]]), questions([0])) for item in (1, 9))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("attention", [False, True])
def test_neither_neighbours_nor_padding_change_an_answer(attention: bool) -> None:
    model = make(attention)
    alone = model(streams([[1, 2], [3]]), questions([2]))
    beside = model(streams([[1, 2], [3]], [[4, 5, 6, 7], [8], [9, 10]]), questions([2], [3]))
    torch.testing.assert_close(beside[:1], alone, rtol=1e-5, atol=1e-6)
    stream = streams([[1, 2], [3]])
    known = stream._replace(most_items=3)
    torch.testing.assert_close(model(known, questions([2])), alone, rtol=1e-5, atol=1e-6)


def test_directly_reason_is_a_gru_a_concatenation_and_a_linear_layer() -> None:
    model = make(attention=False)
    assert isinstance(model, DirectlyReason)
    gru = model.reader.gru
    assert isinstance(gru, nn.GRU)
    assert (gru.num_layers, gru.bidirectional, gru.hidden_size) == (1, False, 6)
    stream = streams([[1, 2], [3, 4]])
    states, _ = model.reader.gru(model.embed(torch.tensor([[1, 2, 3, 4]])))
    question = model.query_encoder(torch.tensor([[2]]), torch.tensor([[True]]))
    expected = model.head(torch.cat([states[:, -1], question], dim=-1))
    torch.testing.assert_close(model(stream, questions([2]))[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_multi_hop_reason_attends_over_every_state() -> None:
    model = make(attention=True)
    assert isinstance(model, MultiHopReason)
    states, _ = model.reader.gru(model.embed(torch.tensor([[1, 2, 3, 4]])))
    question = model.query_encoder(torch.tensor([[2]]), torch.tensor([[True]]))
    reason, weights = model.reasoner(states, question)
    assert weights.shape == (1, 2, 4)
    scores = model(streams([[1, 2], [3, 4]]), questions([2]))
    torch.testing.assert_close(scores[:, 0], model.head(reason), rtol=1e-5, atol=1e-6)


def test_a_question_before_anything_was_read_gets_finite_scores() -> None:
    for attention in (False, True):
        assert make(attention)(streams([[1, 2]]), questions([0])).isfinite().all()


@pytest.mark.parametrize("attention", [False, True])
def test_they_learn_which_item_came_first(attention: bool) -> None:
    model = make(attention).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(0)
    items = torch.randint(3, (256, 3))
    stream = streams(*[[row] for row in items.tolist()])
    query = questions(*[[1]] * 256)
    for _ in range(120):
        loss = nn.functional.cross_entropy(model(stream, query)[:, 0], items[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (model(stream, query)[:, 0].argmax(dim=-1) == items[:, 0]).float().mean() > 0.99


def test_there_is_nothing_to_rehearse_from() -> None:
    with pytest.raises(BadInput, match="no memory to rehearse from"):
        build_model(ModelSettings(machine=DirectSettings()), CODEC)


def test_a_bundle_answers_as_before_and_no_stream_memory_opens_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = make(attention=True)
    run = Run(method="multi-hop-reason", model=replace(PLAIN, machine=DirectSettings(attention=True)))
    save_bundle(tmp_path, model, run, CODEC)
    bundle = load_bundle(tmp_path)
    stream = streams([[1, 2], [3, 4]])
    torch.testing.assert_close(bundle.model(stream, questions([2])), model(stream, questions([2])))
    with pytest.raises(BadInput, match="multi-hop-reason, which reads the whole stream"):
        StreamMemory.open(bundle)
