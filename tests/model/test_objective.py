from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from builders import CODEC, PAPER, RM, assert_close, batch_of, make_model, questions_at, random_stream
from torch import Tensor

from remem.build import build_sampler
from remem.data.batch import Batch
from remem.errors import BadInput
from remem.model.sampler import RandomSampler
from remem.settings.model import ModelSettings, RehearsalSettings, without_rehearsal
from remem.training.objective import (
    DirectObjective,
    Losses,
    MemoryObjective,
    missed_streams,
    reason_loss,
    rehearsed_question,
    slot_spread,
)


def some_batch(t: int = 6) -> Batch:
    return batch_of(random_stream(3, t), questions_at([[t, 2, t], [1, 1, -1], [1, -1, -1]]))


def cross_entropy(scores: Tensor, answer: int) -> float:
    return -math.log(math.exp(scores[answer].item()) / sum(math.exp(s) for s in scores.tolist()))


def test_the_total_is_the_weighted_sum_of_equation_7() -> None:
    losses = Losses(reason=torch.tensor(2.0), recollection=torch.tensor(3.0), familiarity=torch.tensor(5.0))
    weights = RehearsalSettings(recollection_weight=0.25, familiarity_weight=0.5, reason_weight=4.0)
    assert losses.total(weights).item() == 0.25 * 3.0 + 0.5 * 5.0 + 4.0 * 2.0
    assert losses.total(RehearsalSettings()).item() == 3.0 + 0.5 * 5.0 + 2.0


def test_the_reason_loss_is_the_mean_cross_entropy_over_real_questions() -> None:
    query, scores = questions_at([[1, 2], [3, -1]]), torch.randn(2, 2, 3)
    losses = [cross_entropy(scores[b, q], int(query.answer[b, q])) for b, q in query.mask.nonzero().tolist()]
    assert_close(reason_loss(scores, query), sum(losses) / 3)


def test_padded_questions_count_for_nothing() -> None:
    query, scores = questions_at([[1, 2], [3, -1]]), torch.randn(2, 2, 3, requires_grad=True)
    other = query._replace(answer=torch.where(query.mask, query.answer, 1 - query.answer.clamp(max=1)))
    spoilt = torch.where(query.mask[..., None], scores, 77.0)
    loss = reason_loss(scores, query)
    loss.backward()
    assert_close(reason_loss(spoilt, other), loss)
    assert scores.grad is not None
    assert torch.equal(scores.grad.norm(dim=-1) > 0, query.mask)


def test_questions_whose_answer_was_never_seen_count_for_nothing() -> None:
    query, scores = questions_at([[1, 2], [3, 3]]), torch.randn(2, 2, 3)
    unseen = query._replace(answer=query.answer.clone())
    unseen.answer[0, 1] = -1
    padded = query._replace(mask=torch.tensor([[True, False], [True, True]]))
    assert_close(reason_loss(scores, unseen), reason_loss(scores, padded))


def test_per_stream_a_stream_counts_once_however_many_questions_it_has() -> None:
    query, scores = questions_at([[1, 2], [3, -1], [-1, -1]]), torch.randn(3, 2, 3)
    losses = {(b, q): cross_entropy(scores[b, q], int(query.answer[b, q])) for b, q in query.mask.nonzero().tolist()}
    assert_close(reason_loss(scores, query), sum(losses.values()) / 3)
    by_stream = ((losses[0, 0] + losses[0, 1]) / 2 + losses[1, 0]) / 2
    assert_close(reason_loss(scores, query, per_stream=True), by_stream)
    settings = replace(without_rehearsal(RM).rehearsal, per_stream=True)
    model, batch = make_model(RM).eval(), some_batch()
    _, logs = MemoryObjective(model, settings, None)(batch)
    answers = model(batch.stream, batch.query)
    assert_close(logs["loss_reason"], reason_loss(answers, batch.query, per_stream=True).detach())


def test_without_any_question_that_counts_the_reason_loss_is_zero() -> None:
    query = questions_at([[-1, -1], [3, -1]])
    assert reason_loss(torch.randn(2, 2, 3), query._replace(answer=torch.full((2, 2), -1))) == 0


def test_a_stream_is_missed_by_one_wrong_answer_that_counts() -> None:
    query = questions_at([[1, 2], [3, -1], [2, 2], [1, 1]])._replace(
        answer=torch.tensor([[0, 1], [2, 0], [1, -1], [1, 1]])
    )
    right = torch.nn.functional.one_hot(query.answer.clamp(min=0), 3).float()
    assert missed_streams(right, query).tolist() == [False] * 4
    wrong = right.roll(1, dims=-1)
    # of the first all, of the second the padding alone, of the third the one without an answer, of the last one
    scores = torch.stack([wrong[0], torch.stack([right[1, 0], wrong[1, 1]]), torch.stack([right[2, 0], wrong[2, 1]]),
                          torch.stack([right[3, 0], wrong[3, 1]])])  # fmt: skip
    assert missed_streams(scores, query).tolist() == [True, False, False, True]
    clicks = torch.tensor([[[2.0], [3.0]], [[-1.0], [9.0]], [[1.0], [-5.0]], [[1.0], [1.0]]])
    asked = query._replace(answer=torch.tensor([[1, 0], [0, 0], [1, -1], [1, 1]]))
    assert missed_streams(clicks, asked).tolist() == [True, False, False, False]


def test_one_real_question_of_each_stream_is_rehearsed_and_each_has_its_turn() -> None:
    query = questions_at([[1, 2, 3, 4], [5, 6, -1, -1], [7, -1, -1, -1]])
    seen: list[set[int]] = [set(), set(), set()]
    for _ in range(100):
        drawn = rehearsed_question(query)
        assert drawn.position.shape == (3, 1)
        assert drawn.mask.all()
        for b in range(3):
            seen[b].add(int(drawn.position[b, 0]))
    assert seen == [{1, 2, 3, 4}, {5, 6}, {7}]


def test_all_fields_of_the_rehearsed_question_are_of_the_same_question() -> None:
    query = questions_at([[1, 2, 3, 4], [5, 6, 7, 8]])
    place = torch.arange(4).expand(2, 4)
    query = query._replace(answer=place, part=place, evidence=place, tokens=place[..., None])
    drawn = rehearsed_question(query)
    for b in range(2):
        chosen = int(drawn.answer[b, 0])
        assert drawn.part[b, 0] == drawn.evidence[b, 0] == drawn.tokens[b, 0, 0] == chosen
        assert drawn.position[b, 0] == query.position[b, chosen]


def test_a_stream_without_questions_rehearses_nothing() -> None:
    model, settings = make_model(RM), RM.rehearsal
    batch = batch_of(random_stream(3, 5), questions_at([[-1, -1]] * 3))
    losses, _ = MemoryObjective(model, settings, RandomSampler()).losses(model.memorize(batch.stream), batch)
    assert (losses.recollection.item(), losses.familiarity.item()) == (0.0, 0.0)


def test_recollection_is_scaled_as_the_decoder_says() -> None:
    model, batch = make_model(RM), some_batch()
    assert model.decoder is not None
    # with all inner products scaled to nothing, every item is as likely as any other
    model.decoder.recall_scale = 0.0
    losses, _ = MemoryObjective(model, RM.rehearsal, RandomSampler()).losses(model.memorize(batch.stream), batch)
    assert_close(losses.recollection, math.log(CODEC.num_items))


@pytest.mark.parametrize("num_distractors", [None, 4])
def test_what_comes_after_the_question_is_not_rehearsed(num_distractors: int | None) -> None:
    model, settings = make_model(RM), replace(RM.rehearsal, num_distractors=num_distractors)
    batch = batch_of(random_stream(3, 6, ragged=False), questions_at([[2], [3], [1]]))
    items = batch.stream.items.clone()
    for b, count in enumerate([2, 3, 1]):
        items[batch.stream.order[b, count:]] = torch.randint(CODEC.num_items, (6 - count, 4))
    recollection = []
    for stream in (batch.stream, batch.stream._replace(items=items)):
        torch.manual_seed(5)
        changed = batch._replace(stream=stream)
        losses, _ = MemoryObjective(model, settings, RandomSampler()).losses(model.memorize(stream), changed)
        recollection.append(losses.recollection)
    # negatives may come from any part of other streams, so familiarity is left out
    assert_close(recollection[1], recollection[0])


def test_the_objective_weighs_its_parts_and_logs_each_of_them() -> None:
    model = make_model(RM)
    total, logs = MemoryObjective(model, RM.rehearsal, RandomSampler())(some_batch())
    expected = logs["loss_recollection"] + 0.5 * logs["loss_familiarity"] + logs["loss_reason"]
    assert_close(total, expected)
    assert_close(logs["loss"], expected)
    assert logs["loss_recollection"] > 0
    assert logs["loss_familiarity"] > 0
    assert total.requires_grad
    assert not any(value.requires_grad for value in logs.values())


def test_the_objectives_reason_loss_is_that_of_the_models_answers() -> None:
    model, batch = make_model(RM), some_batch()
    _, logs = MemoryObjective(model, RM.rehearsal, RandomSampler())(batch)
    assert_close(logs["loss_reason"], reason_loss(model(batch.stream, batch.query), batch.query).detach())


@pytest.mark.parametrize("sampler", [None, RandomSampler()])
def test_without_rehearsal_both_its_losses_are_zero(sampler: RandomSampler | None) -> None:
    settings = without_rehearsal(RM)
    model = make_model(settings)
    total, logs = MemoryObjective(model, settings.rehearsal, sampler)(some_batch())
    assert model.decoder is None
    assert logs["loss_recollection"] == 0
    assert logs["loss_familiarity"] == 0
    assert_close(total, logs["loss_reason"])


@pytest.mark.parametrize("settings", [PAPER, RM], ids=["rm-paper", "rm"])
@pytest.mark.parametrize("kind", ["history", "random"])
def test_every_weight_of_the_model_receives_a_gradient_and_the_sampler_none(settings: ModelSettings, kind: str) -> None:
    model, teacher = make_model(settings), build_sampler(settings, CODEC)
    sampler = teacher if kind == "history" else RandomSampler()
    total, _ = MemoryObjective(model, settings.rehearsal, sampler)(some_batch())
    total.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())
    # a softmax does not see what is added to all keys alike, so a key's bias learns nothing
    assert all(g is not None and g.norm() > 0 for name, g in gradients.items() if not name.endswith("key.bias"))
    assert all(p.grad is None for p in teacher.parameters())


def test_rehearsal_with_distractors_is_finite() -> None:
    settings = replace(RM.rehearsal, num_distractors=4)
    total, logs = MemoryObjective(make_model(RM), settings, RandomSampler())(some_batch())
    assert total.isfinite()
    # five candidates, so chance costs log 5 where recall is unsure
    assert 0 < logs["loss_recollection"] < 10


def test_diagnostics_are_entropies_and_a_spread() -> None:
    _, logs = MemoryObjective(make_model(RM), RM.rehearsal, RandomSampler())(some_batch())
    for name in ("write_entropy", "read_entropy"):
        assert 0 < logs[name] <= math.log(3) + 1e-6
    assert logs["slot_spread"] > 0


def test_no_gradient_needs_sorting_and_memories_are_looked_up_once() -> None:
    total, _ = MemoryObjective(make_model(RM), RM.rehearsal, RandomSampler())(some_batch())
    names: list[str] = []
    seen, nodes = set(), [total.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.append(node.name())
            nodes += [parent for parent, _ in node.next_functions]
    assert "IndexSelectBackward0" in names
    # on a GPU each of these sorts its indices first
    assert not {"EmbeddingBackward0", "IndexBackward0", "IndexPutBackward0"} & set(names)
    (scan,) = (node for node in seen if node.name() in ("CpuScanBackward", "NativeScanBackward"))
    readers = [node for node in seen if any(parent is scan for parent, _ in node.next_functions)]
    assert len(readers) == 1


def test_rehearsal_without_a_sampler_is_refused_with_a_sentence() -> None:
    with pytest.raises(BadInput, match="no sampler"):
        MemoryObjective(make_model(RM), RM.rehearsal, None)


def test_rehearsal_without_a_decoder_is_refused_with_a_sentence() -> None:
    objective = MemoryObjective(make_model(without_rehearsal(RM)), RM.rehearsal, RandomSampler())
    with pytest.raises(BadInput, match="without a rehearsal decoder"):
        objective(some_batch())


def test_rehearsal_of_a_single_stream_is_refused_with_a_sentence() -> None:
    objective = MemoryObjective(make_model(RM), RM.rehearsal, RandomSampler())
    with pytest.raises(BadInput, match="a batch of one stream has none"):
        objective(batch_of(random_stream(1, 4), questions_at([[4]])))


def test_equal_slots_have_no_spread() -> None:
    assert_close(slot_spread(torch.randn(3, 1, 8).expand(3, 5, 8)), 0.0)
    assert slot_spread(torch.zeros(3, 5, 8)) == 0


def test_the_spread_of_two_opposite_slots_is_one_whatever_their_length() -> None:
    slot = torch.randn(3, 8)
    opposite = torch.stack([slot, -slot], dim=1)
    assert_close(slot_spread(opposite), 1.0)
    assert_close(slot_spread(1e-3 * opposite), 1.0)


def test_the_sampler_is_trained_by_its_own_answers() -> None:
    batch, sampler = some_batch(), build_sampler(PAPER, CODEC)
    loss, logs = DirectObjective(sampler)(batch)
    assert_close(loss, reason_loss(sampler(batch.stream, batch.query), batch.query))
    assert_close(logs["loss"], loss.detach())
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in sampler.parameters())


def test_padded_questions_do_not_change_the_read_entropy() -> None:
    settings = without_rehearsal(RM)
    model, stream, query = make_model(settings), random_stream(2, 3), questions_at([[3, -1, -1], [1, -1, -1]])
    first = query.each(lambda value: value[:, :1])
    logs = [MemoryObjective(model, settings.rehearsal, None)(batch_of(stream, q))[1] for q in (query, first)]
    assert_close(logs[0]["read_entropy"], logs[1]["read_entropy"])


def test_anytime_rehearsal_comes_after_any_number_of_segments_up_to_the_question() -> None:
    query = questions_at([[5]] * 400)._replace(after_all=True)
    earlier = rehearsed_question(query, anytime=True)
    assert not earlier.after_all
    assert rehearsed_question(query).after_all
    assert set(earlier.position.flatten().tolist()) == {1, 2, 3, 4, 5}
    assert torch.equal(earlier.tokens, query.tokens)
    assert torch.equal(rehearsed_question(query).position, query.position)


@pytest.mark.parametrize("source", ["item-set", "stream"])
def test_sampled_distractors_give_a_finite_loss_with_gradients(source: Literal["item-set", "stream"]) -> None:
    rehearsal = replace(RM.rehearsal, num_distractors=5, distractors_from=source)
    model = make_model(replace(RM, rehearsal=rehearsal))
    loss, logs = MemoryObjective(model, rehearsal, RandomSampler())(
        batch_of(random_stream(3, 4), questions_at([[4]] * 3))
    )
    loss.backward()
    assert 0 < logs["loss_recollection"] < 100
    assert model.memorizer.first_slots.grad is not None
