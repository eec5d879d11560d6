"""Questions that a story asks by itself: when each is asked, what it hides, and what learns from it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from builders import (
    CODEC,
    RM,
    TEXT_CODEC,
    assert_close,
    batch_of,
    dot,
    make_model,
    matvec,
    questions_at,
    random_stream,
    stream_of,
)

from remem.data.batch import Batch, StreamBatch
from remem.errors import BadInput
from remem.model.assembly import MemoryModel
from remem.model.embed import ItemEmbedding, SentenceQueryEncoder
from remem.model.own_questions import Asker, OwnQuestions, draw_questions
from remem.settings.model import ModelSettings, without_rehearsal
from remem.training.objective import MemoryObjective

WORDS = len(TEXT_CODEC.words)
ASKING = replace(without_rehearsal(RM), rehearsal=replace(without_rehearsal(RM).rehearsal, ask_weight=0.5, asks=4))


def asking_model(settings: ModelSettings = ASKING) -> MemoryModel:
    return make_model(settings, TEXT_CODEC)


def a_batch(b: int = 3, t: int = 5) -> Batch:
    stream = random_stream(b, t, num_items=WORDS)
    ends = stream.segment_mask.sum(dim=1).tolist()
    return batch_of(stream, questions_at([[end] for end in ends], num_queries=WORDS, num_answers=2))


def drawn(stream: StreamBatch, times: int = 300) -> OwnQuestions:
    """Many draws of four questions, as if they were many streams."""
    draws = [draw_questions(stream, 4) for _ in range(times)]
    return OwnQuestions(*(torch.cat(values) for values in zip(*draws, strict=True)))


def test_the_first_half_is_asked_right_before_a_sentence_and_for_its_last_word() -> None:
    own = drawn(stream_of([[[0, 1], [2, 3, 4], [5]]]))
    first_word = own.tokens[:, :2, 0]
    assert torch.equal(own.position[:, :2], torch.tensor([0, -1, 1, -1, -1, 2])[first_word])
    assert torch.equal(own.answer[:, :2], torch.tensor([1, -1, 4, -1, -1, 5])[first_word])
    assert set(own.position[:, :2].flatten().tolist()) == {0, 1, 2}


def test_the_others_are_asked_at_any_moment_after_it_and_half_of_them_for_any_word() -> None:
    own = drawn(stream_of([[[0, 1], [2, 3, 4], [5]]]))
    after = own.position[:, 2:] - torch.tensor([0, -1, 1, -1, -1, 2])[own.tokens[:, 2:, 0]]
    assert set(after.flatten().tolist()) == {1, 2, 3}  # in a stream of three, one to three segments later
    assert int(own.position.max()) == 3
    assert set(own.answer[:, 2].tolist()) == {1, 4, 5}
    assert set(own.answer[:, 3].tolist()) == {0, 1, 2, 3, 4, 5}


def test_streams_ask_about_their_own_sentences_and_never_about_padding() -> None:
    stream = stream_of([[[0, 1], [2, 3]], [[9]]], padding=11)
    own = drawn(stream)
    mine, other = own.tokens[0::2], own.tokens[1::2]
    assert own.token_mask.gather(2, own.gap[..., None]).all()
    assert (other[..., 0] == 9).all()
    assert not (mine == 9).any()
    assert int(own.position[1::2].max()) == 1
    assert not (own.answer == 11).any()


def test_one_question_alone_is_asked_after_its_sentence() -> None:
    own = draw_questions(stream_of([[[3, 4]]]), 1)
    assert own.position.tolist() == [[1]]


def test_the_word_that_is_left_out_can_not_be_seen() -> None:
    model = asking_model()
    assert isinstance(model.asker, Asker)
    assert isinstance(model.query_encoder, SentenceQueryEncoder)
    own = draw_questions(a_batch().stream, 4)
    changed = own._replace(tokens=own.tokens.scatter(2, own.gap[..., None], (own.answer[..., None] + 1) % WORDS))
    assert not torch.equal(own.answer, changed.answer)
    question = model.asker.question(own, model.query_encoder)
    assert torch.equal(question, model.asker.question(changed, model.query_encoder))
    elsewhere = own._replace(gap=(own.gap + 1) % own.token_mask.sum(dim=-1).clamp(min=1))
    moved = (elsewhere.gap != own.gap).flatten()
    assert not torch.equal(question[moved], model.asker.question(elsewhere, model.query_encoder)[moved])


def test_the_loss_is_the_cross_entropy_of_scaled_inner_products_one_number_at_a_time() -> None:
    asker, words = Asker(item_dim=4, model_dim=3), ItemEmbedding(num_items=5, item_dim=4, std=1.0)
    own = draw_questions(stream_of([[[0, 1, 2]], [[4]]]), 2)
    reason = torch.randn(4, 3)
    total = 0.0
    for row, answer in zip(reason.tolist(), own.answer.flatten().tolist(), strict=True):
        named = [
            w + b for w, b in zip(matvec(asker.named.weight.tolist(), row), asker.named.bias.tolist(), strict=True)
        ]
        scores = [dot(named, word) / math.sqrt(4) for word in words.table.weight.tolist()]
        total -= scores[answer] - math.log(sum(math.exp(score) for score in scores))
    assert_close(asker.loss(reason, own, words), total / 4)


def test_the_reasoner_the_questions_and_the_memory_learn_from_it_and_the_answers_do_not() -> None:
    model, batch = asking_model(), a_batch()
    silent = batch._replace(query=batch.query._replace(mask=torch.zeros_like(batch.query.mask)))
    loss, _ = MemoryObjective(model, ASKING.rehearsal, None)(silent)
    loss.backward()
    learned = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert learned == {"embed", "query_encoder", "memorizer", "reasoner", "asker"}


def test_each_question_reads_the_memory_of_its_own_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = asking_model(), a_batch(b=2, t=3)
    own = draw_questions(batch.stream, 2)._replace(position=torch.tensor([[0, 2], [1, 1]]))
    monkeypatch.setattr("remem.training.objective.draw_questions", lambda *_: own)
    trace = model.memorize(batch.stream)
    trace.memories.retain_grad()
    MemoryObjective(model, ASKING.rehearsal, None).asked(trace, batch)["asked"].backward()
    assert trace.memories.grad is not None
    read = trace.memories.grad.flatten(2).norm(dim=-1) > 0
    assert read.tolist() == [[True, False, True, False], [False, True, False, False]]


def test_it_is_logged_by_itself_and_weighed_in_the_total() -> None:
    model, batch = asking_model(), a_batch()
    torch.manual_seed(3)
    total, logs = MemoryObjective(model, ASKING.rehearsal, None)(batch)
    assert_close(total.detach(), logs["loss_reason"] + logs["loss_asked"])
    torch.manual_seed(3)
    twice = replace(ASKING.rehearsal, ask_weight=1.0)
    _, other = MemoryObjective(model, twice, None)(batch)
    assert_close(other["loss_asked"], 2 * logs["loss_asked"])


def test_nothing_is_asked_once_rehearsal_has_ended_or_where_nothing_was_asked_for() -> None:
    model, batch = asking_model(), a_batch()
    objective = MemoryObjective(model, ASKING.rehearsal, None)
    assert "loss_asked" in objective(batch)[1]
    objective.stop_rehearsing()
    assert "loss_asked" not in objective(batch)[1]
    plain = asking_model(without_rehearsal(ASKING))
    assert plain.asker is None
    assert "loss_asked" not in MemoryObjective(plain, without_rehearsal(ASKING).rehearsal, None)(batch)[1]


def test_streams_without_words_to_leave_out_are_refused() -> None:
    with pytest.raises(BadInput, match=r"ask-weight 0\.5 lets a stream ask about its own sentences"):
        make_model(ASKING, CODEC)
