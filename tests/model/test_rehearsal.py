from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from builders import CODEC, PAPER, RM, assert_close, disjoint_stream, dot, make_model, random_stream, sigmoid
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from remem.model.embed import ItemEmbedding
from remem.model.fragments import Fragments, make_fragments
from remem.model.rehearsal import (
    RehearsalDecoder,
    Rehearsed,
    familiarity_loss,
    item_set_distractors,
    recollection_loss,
    stream_distractors,
)
from remem.ops.paths import reference_only

B, F, N, K, D = 3, 4, 4, 3, PAPER.item_dim
P = N // 2  # masked places of a whole fragment


def some_fragments(*, ragged: bool = True, mask: Tensor | None = None) -> Fragments:
    stream = random_stream(B, F, N, ragged=ragged)
    real = stream.segment_mask if mask is None else mask
    chosen = torch.arange(F).expand(B, F)
    return make_fragments(stream, chosen, real, mask_ratio=0.5, replace_ratio=0.5)


@pytest.fixture
def embed() -> ItemEmbedding:
    return ItemEmbedding(num_items=CODEC.num_items, item_dim=D, std=1.0)


@pytest.fixture(params=[PAPER, RM], ids=["rm-paper", "rm"])
def decoder(request: pytest.FixtureRequest) -> RehearsalDecoder:
    decoder = make_model(request.param).decoder
    assert decoder is not None
    return decoder


def rehearsed_as(recalled: Tensor, fragments: Fragments) -> Rehearsed:
    """From what is recalled at every place."""
    return Rehearsed(fragments.at_places(recalled), torch.zeros(2, *fragments.mask.shape))


def with_logits(positive: Tensor, negative: Tensor) -> Rehearsed:
    return Rehearsed(torch.zeros(*positive.shape, P, D), torch.stack([positive, negative]))


def loss_by_hand(recalled: list[float], right: list[float], wrong: list[list[float]], scale: float) -> float:
    """-L_i of Eq. 3."""
    own = math.exp(scale * dot(recalled, right))
    return -math.log(own / (own + sum(math.exp(scale * dot(recalled, y)) for y in wrong)))


@pytest.mark.parametrize("scale", [1.0, D**-0.5])
def test_recollection_against_all_items_is_equation_3_one_number_at_a_time(embed: ItemEmbedding, scale: float) -> None:
    fragments = some_fragments()
    recalled, table = torch.randn(B, F, N, D), embed.table.weight.tolist()
    losses = []
    for b, f, n in fragments.masked.nonzero().tolist():
        true = int(fragments.items[b, f, n])
        wrong = [vector for item, vector in enumerate(table) if item != true]
        losses.append(loss_by_hand(recalled[b, f, n].tolist(), table[true], wrong, scale))
    actual = recollection_loss(rehearsed_as(recalled, fragments), fragments, embed, scale=scale)
    assert_close(actual, sum(losses) / len(losses))


@pytest.mark.parametrize("scale", [1.0, D**-0.5])
def test_recollection_against_distractors_is_equation_3_one_number_at_a_time(
    embed: ItemEmbedding, scale: float
) -> None:
    fragments = some_fragments()
    recalled, table = torch.randn(B, F, N, D), embed.table.weight.tolist()
    distractors = torch.randint(CODEC.num_items, (B, F, 5))
    # the true item among its own distractors is not counted against itself
    distractors[..., 0] = fragments.items[..., 0]
    losses = []
    for b, f, n in fragments.masked.nonzero().tolist():
        true = int(fragments.items[b, f, n])
        wrong = [table[item] for item in distractors[b, f].tolist() if item != true]
        losses.append(loss_by_hand(recalled[b, f, n].tolist(), table[true], wrong, scale))
    rehearsed = rehearsed_as(recalled, fragments)
    actual = recollection_loss(rehearsed, fragments, embed, scale=scale, distractors=distractors)
    assert_close(actual, sum(losses) / len(losses))


def test_whole_fragments_average_to_two_over_n_and_then_over_fragments(embed: ItemEmbedding) -> None:
    fragments, recalled = some_fragments(ragged=False), torch.randn(B, F, N, D)
    table, total = embed.table.weight.tolist(), 0.0
    for b in range(B):
        for f in range(F):
            for n in fragments.masked[b, f].nonzero().flatten().tolist():
                true = int(fragments.items[b, f, n])
                wrong = [vector for item, vector in enumerate(table) if item != true]
                total += 2 / N * loss_by_hand(recalled[b, f, n].tolist(), table[true], wrong, 1.0)
    assert_close(recollection_loss(rehearsed_as(recalled, fragments), fragments, embed), total / (B * F))


def test_all_other_items_as_distractors_are_the_same_as_all_items(embed: ItemEmbedding) -> None:
    fragments, recalled = some_fragments(), torch.randn(B, F, N, D)
    rehearsed = rehearsed_as(recalled, fragments)
    everything = torch.arange(CODEC.num_items).expand(B, F, -1)
    assert_close(
        recollection_loss(rehearsed, fragments, embed, distractors=everything),
        recollection_loss(rehearsed, fragments, embed),
    )


@pytest.mark.parametrize("num_distractors", [None, 5])
def test_only_masked_items_are_recollected(embed: ItemEmbedding, num_distractors: int | None) -> None:
    fragments, recalled = some_fragments(), torch.randn(B, F, N, D, requires_grad=True)
    distractors = None if num_distractors is None else item_set_distractors(fragments, CODEC.num_items, num_distractors)
    recollection_loss(rehearsed_as(recalled, fragments), fragments, embed, distractors=distractors).backward()
    assert recalled.grad is not None
    assert torch.equal(recalled.grad.norm(dim=-1) > 0, fragments.masked)


def test_recalling_every_item_costs_nothing_and_recollection_is_never_negative(embed: ItemEmbedding) -> None:
    fragments = some_fragments()
    random = recollection_loss(rehearsed_as(torch.randn(B, F, N, D), fragments), fragments, embed)
    with torch.no_grad():
        embed.table.weight.copy_(torch.nn.functional.normalize(embed.table.weight, dim=-1))
        right = recollection_loss(rehearsed_as(200.0 * embed(fragments.items), fragments), fragments, embed)
    assert random > 1.0
    assert 0 <= right < 1e-3


def test_familiarity_is_equation_4_with_the_sign_that_is_bounded_below() -> None:
    fragments = some_fragments()
    positive, negative = torch.randn(2, B, F)
    losses = [
        -math.log(sigmoid(positive[b, f].item())) - math.log(1.0 - sigmoid(negative[b, f].item()))
        for b, f in fragments.mask.nonzero().tolist()
        # a fragment of one masked item has a negative like itself, and nothing to tell apart
        if (fragments.item_mask & ~fragments.masked)[b, f].any()
    ]
    assert 0 < len(losses) < int(fragments.mask.sum())
    assert_close(familiarity_loss(with_logits(positive, negative), fragments), sum(losses) / len(losses))


@pytest.mark.parametrize("positive", [-1000.0, 1000.0])
@pytest.mark.parametrize("negative", [-1000.0, 1000.0])
def test_familiarity_is_finite_for_sure_answers_right_or_wrong(positive: float, negative: float) -> None:
    fragments = some_fragments(ragged=False)
    logits = (torch.full((B, F), positive, requires_grad=True), torch.full((B, F), negative, requires_grad=True))
    loss = familiarity_loss(with_logits(*logits), fragments)
    loss.backward()
    assert_close(loss, max(-positive, 0.0) + max(negative, 0.0))
    assert all(logit.grad is not None and logit.grad.isfinite().all() for logit in logits)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1000, 1000, width=32), min_size=2 * B * F, max_size=2 * B * F))
def test_familiarity_is_bounded_below_by_zero(logits: list[float]) -> None:
    positive, negative = torch.tensor(logits).view(2, B, F)
    loss = familiarity_loss(with_logits(positive, negative), some_fragments(ragged=False))
    assert loss.isfinite()
    assert loss >= 0


def test_familiarity_falls_as_positives_rise_and_negatives_sink() -> None:
    fragments = some_fragments(ragged=False)
    logits = torch.zeros(2, B, F, requires_grad=True)
    loss = familiarity_loss(Rehearsed(torch.zeros(B, F, P, D), logits), fragments)
    loss.backward()
    assert_close(loss, 2 * math.log(2))
    assert logits.grad is not None
    assert (logits.grad[0] < 0).all()
    assert (logits.grad[1] > 0).all()


@pytest.mark.parametrize("loss", ["recollection", "familiarity"])
def test_without_any_fragment_a_loss_is_zero(loss: str, embed: ItemEmbedding) -> None:
    fragments = some_fragments(mask=torch.zeros(B, F, dtype=torch.bool))
    rehearsed = Rehearsed(torch.randn(B, F, P, D), torch.randn(2, B, F))
    value = (
        recollection_loss(rehearsed, fragments, embed)
        if loss == "recollection"
        else familiarity_loss(rehearsed, fragments)
    )
    assert value == 0


def test_fragments_that_are_not_real_change_no_loss(embed: ItemEmbedding) -> None:
    mask = torch.arange(F) < torch.tensor([4, 2, 1])[:, None]
    fragments = some_fragments(ragged=False, mask=mask)
    rehearsed = Rehearsed(torch.randn(B, F, P, D), torch.randn(2, B, F))
    spoilt = Rehearsed(
        torch.where(mask[..., None, None], rehearsed.recalled, 50.0),
        torch.where(mask, rehearsed.familiarity_logit, 50.0),
    )
    assert_close(recollection_loss(spoilt, fragments, embed), recollection_loss(rehearsed, fragments, embed))
    assert_close(familiarity_loss(spoilt, fragments), familiarity_loss(rehearsed, fragments))


def test_the_decoder_is_cls_and_items_through_every_layer(decoder: RehearsalDecoder, embed: ItemEmbedding) -> None:
    fragments, memory = some_fragments(ragged=False), torch.randn(B, K, D)
    rehearsed = decoder(fragments, embed, memory)
    for sign, items in enumerate([fragments.items, fragments.negative_items]):
        for b in range(B):
            for f in range(F):
                words: list[Tensor] = [decoder.cls]
                for n in range(N):
                    hidden = fragments.masked[b, f, n]
                    words.append(decoder.mask_item if hidden else embed.table.weight[items[b, f, n]])
                features = (torch.stack(words) + decoder.position.table[: N + 1])[None, None]
                for layer in decoder.layers:
                    slots = decoder.read_norm(memory[b : b + 1])
                    features = layer(features, torch.ones(1, 1, N + 1, dtype=torch.bool), slots)
                features = decoder.norm(features)
                assert_close(rehearsed.familiarity_logit[sign, b, f], decoder.familiarity(features[0, 0, 0])[0])
                if sign == 0:
                    assert_close(rehearsed.recalled[b, f], features[0, 0, 1:][fragments.places[b, f]])


def test_leaving_out_places_in_the_last_layer_changes_neither_outputs_nor_any_gradient(
    decoder: RehearsalDecoder, embed: ItemEmbedding
) -> None:
    fragments, memory = some_fragments(), torch.randn(B, K, D, requires_grad=True)
    weights = torch.randn(B, F, P, D) * fragments.place_mask[..., None], torch.randn(2, B, F)
    leaves = [memory, *decoder.parameters(), *embed.parameters()]
    found = []
    for way in (nullcontext, reference_only):
        with way():
            rehearsed = decoder(fragments, embed, memory)
        loss = sum((value * weight).sum() for value, weight in zip(rehearsed, weights, strict=True))
        found.append([*rehearsed, *torch.autograd.grad(loss, leaves, allow_unused=True)])  # type: ignore[arg-type]
    assert len(found[0]) > 20
    for ours, plain in zip(*found, strict=True):
        assert (ours is None) == (plain is None)
        if ours is not None:
            torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


def test_places_are_the_masked_items_of_each_fragment() -> None:
    fragments = some_fragments()
    assert fragments.places.shape == (B, F, P)
    assert not fragments.place_mask.all()
    for b in range(B):
        for f in range(F):
            expected = fragments.masked[b, f].nonzero().flatten().tolist()
            assert fragments.places[b, f][fragments.place_mask[b, f]].tolist() == expected


def test_masked_items_are_hidden_from_the_decoder(decoder: RehearsalDecoder, embed: ItemEmbedding) -> None:
    fragments, memory = some_fragments(), torch.randn(B, K, D)
    others = torch.randint(CODEC.num_items, (B, F, N))
    changed = fragments._replace(
        items=torch.where(fragments.masked, others, fragments.items),
        negative_items=torch.where(fragments.masked, others, fragments.negative_items),
    )
    for before, after in zip(decoder(fragments, embed, memory), decoder(changed, embed, memory), strict=True):
        assert_close(after, before)


def test_padded_items_are_hidden_from_the_decoder(decoder: RehearsalDecoder, embed: ItemEmbedding) -> None:
    fragments, memory = some_fragments(), torch.randn(B, K, D)
    others = torch.randint(CODEC.num_items, (B, F, N))
    changed = fragments._replace(
        items=torch.where(fragments.item_mask, fragments.items, others),
        negative_items=torch.where(fragments.item_mask, fragments.negative_items, others),
    )
    before, after = decoder(fragments, embed, memory), decoder(changed, embed, memory)
    assert_close(after.recalled[fragments.place_mask], before.recalled[fragments.place_mask])
    assert_close(after.familiarity_logit, before.familiarity_logit)
    assert before.recalled.isfinite().all()


def test_a_negative_equal_to_its_positive_is_just_as_familiar(decoder: RehearsalDecoder, embed: ItemEmbedding) -> None:
    fragments = some_fragments()
    logits = decoder(fragments._replace(negative_items=fragments.items), embed, torch.randn(B, K, D)).familiarity_logit
    assert_close(logits[1], logits[0])


def test_a_fragment_rehearsed_alone_gives_what_it_gives_among_others(
    decoder: RehearsalDecoder, embed: ItemEmbedding
) -> None:
    fragments, memory = some_fragments(), torch.randn(B, K, D)
    together = decoder(fragments, embed, memory)
    for f in range(F):
        alone = decoder(Fragments(*(value[:, f : f + 1] for value in fragments)), embed, memory)
        assert_close(alone.recalled[:, 0], together.recalled[:, f])
        assert_close(alone.familiarity_logit[..., 0], together.familiarity_logit[..., f])


def test_a_fragment_asks_its_own_streams_memory_only(decoder: RehearsalDecoder, embed: ItemEmbedding) -> None:
    memory = torch.randn(B, K, D, requires_grad=True)
    rehearsed = decoder(some_fragments(), embed, memory)
    # weights, since the features of a LayerNorm sum to a constant
    (rehearsed.recalled[1] * torch.randn(F, P, D)).sum().backward(retain_graph=True)
    assert memory.grad is not None
    assert memory.grad[1].norm() > 0
    assert (memory.grad[[0, 2]] == 0).all()


def test_recall_is_scaled_only_where_asked() -> None:
    plain, scaled = make_model(PAPER).decoder, make_model(RM).decoder
    assert plain is not None
    assert scaled is not None
    assert plain.recall_scale == 1.0
    assert scaled.recall_scale == pytest.approx(1 / math.sqrt(D))


def test_item_set_distractors_come_from_the_whole_item_set() -> None:
    distractors = item_set_distractors(some_fragments(), 7, 200)
    assert distractors.shape == (B, F, 200)
    assert set(distractors.flatten().tolist()) == set(range(7))


def test_stream_distractors_are_real_items_of_the_same_stream_also_of_a_short_one() -> None:
    stream = disjoint_stream(B, F, N, per_stream=100)
    fragments = make_fragments(
        stream, torch.arange(F).expand(B, F), stream.segment_mask, mask_ratio=0.5, replace_ratio=0.5
    )
    lengths = 1 + torch.arange(len(stream.items)) % N
    ragged = stream._replace(
        item_mask=torch.arange(N) < lengths[:, None],
        segment_mask=torch.arange(F) < torch.tensor([F, 2, 1])[:, None],
    )
    distractors = stream_distractors(ragged, fragments, 200)
    assert distractors.shape == (B, F, 200)
    for b in range(B):
        rows = ragged.order[b][ragged.segment_mask[b]]
        assert set(distractors[b].flatten().tolist()) == set(ragged.items[rows][ragged.item_mask[rows]].tolist())
