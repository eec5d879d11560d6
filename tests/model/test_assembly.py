from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import CODEC, PAPER, RM, TEXT_CODEC, assert_close, make_model, questions_at, random_stream, with_encoder
from torch import Tensor

from remem.data.batch import QueryBatch, StreamBatch
from remem.model.assembly import MemoryModel

TIED = replace(RM, reasoner=replace(RM.reasoner, tie_query_words=True))


def text_questions(positions: list[list[int]]) -> QueryBatch:
    """Questions of one to five words."""
    query = questions_at(positions, num_answers=TEXT_CODEC.num_answers)
    words = (*query.position.shape, 5)
    length = torch.randint(1, 6, query.position.shape)[..., None]
    return query._replace(tokens=torch.randint(12, words), token_mask=torch.arange(5).expand(words) < length)


@pytest.fixture(params=["rm-paper", "rm", "rm-gru-encoder", "rm on text"])
def case(request: pytest.FixtureRequest) -> tuple[MemoryModel, StreamBatch, QueryBatch]:
    """A model, streams, and questions asked at the start, in the middle and at the end; some are padding."""
    positions = [[0, 2, 5, 5], [1, 3, -1, -1], [0, 1, 1, -1]]
    stream = random_stream(3, 5, num_items=12)
    if request.param == "rm on text":
        return make_model(TIED, TEXT_CODEC), stream, text_questions(positions)
    settings = {"rm-paper": PAPER, "rm": RM, "rm-gru-encoder": with_encoder(RM, "gru")}[request.param]
    return make_model(settings), stream, questions_at(positions)


def prefix(stream: StreamBatch, row: int, count: int) -> StreamBatch:
    """The first segments of one stream, alone."""
    kept = slice(row, row + 1)
    return stream._replace(order=stream.order[kept, :count], segment_mask=stream.segment_mask[kept, :count])


def memory_after(model: MemoryModel, stream: StreamBatch, row: int, count: int) -> Tensor:
    state = model.initial_state(1) if count == 0 else model.memorize(prefix(stream, row, count)).state
    return model.memorizer.memory(state)  # type: ignore[arg-type]


def test_each_question_is_answered_from_the_memory_as_it_was(
    case: tuple[MemoryModel, StreamBatch, QueryBatch],
) -> None:
    model, stream, query = case
    answered = model.answer_all(model.memorize(stream), query)
    for b, q in query.mask.nonzero().tolist():
        memory = memory_after(model, stream, b, int(query.position[b, q]))
        alone = model.answer(memory, query.tokens[b, q : q + 1], query.token_mask[b, q : q + 1])
        assert_close(answered.scores[b, q], alone.scores[0])
        assert_close(answered.read_weights[b, q], alone.read_weights[0])


def test_what_comes_after_a_question_does_not_change_its_answer() -> None:
    model, stream, query = make_model(), random_stream(3, 6, ragged=False), questions_at([[2], [3], [0]])
    items = stream.items.clone()
    for b, count in enumerate([2, 3, 0]):
        items[stream.order[b, count:]] = torch.randint(CODEC.num_items, (6 - count, 4))
    assert_close(model(stream._replace(items=items), query), model(stream, query))


def test_scores_and_read_weights_have_the_shape_of_the_questions(
    case: tuple[MemoryModel, StreamBatch, QueryBatch],
) -> None:
    model, stream, query = case
    answered = model.answer_all(model.memorize(stream), query)
    assert answered.scores.shape == (3, 4, model.head.classify.out_features)
    assert answered.read_weights.shape == (3, 4, 2, 3)
    assert_close(answered.read_weights.sum(dim=-1), torch.ones(3, 4, 2))
    assert answered.scores.isfinite().all()


def test_calling_the_model_gives_the_scores_of_answering_all(
    case: tuple[MemoryModel, StreamBatch, QueryBatch],
) -> None:
    model, stream, query = case
    assert_close(model(stream, query), model.answer_all(model.memorize(stream), query).scores)


def test_without_gradients_real_questions_alone_are_reasoned_about(
    case: tuple[MemoryModel, StreamBatch, QueryBatch],
) -> None:
    model, stream, query = case
    seen: list[int] = []
    model.reasoner.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    whole = model(stream, query)
    with torch.no_grad():
        scores = model(stream, query)
        nothing = model(stream, query._replace(mask=torch.zeros_like(query.mask)))
    assert seen == [12, int(query.mask.sum()), 12]
    assert_close(scores[query.mask], whole[query.mask])
    assert scores[~query.mask].eq(0).all()
    assert nothing.shape == scores.shape


def test_an_answer_is_query_encoder_then_reasoner_then_head() -> None:
    model, query = make_model(), questions_at([[0], [0]])
    memory, tokens, mask = torch.randn(2, 3, 8), query.tokens[:, 0], query.token_mask[:, 0]
    reason, weights = model.reasoner(memory, model.query_encoder(tokens, mask))
    answered = model.answer(memory, tokens, mask)
    assert_close(answered.scores, model.head(reason))
    assert_close(answered.read_weights, weights)


def test_writing_ids_segment_by_segment_is_memorizing_the_stream(
    case: tuple[MemoryModel, StreamBatch, QueryBatch],
) -> None:
    model, stream, _ = case
    state = model.initial_state(3)
    for t in range(5):
        rows = stream.order[:, t]
        state = model.write(state, stream.items[rows], stream.item_mask[rows] & stream.segment_mask[:, t, None])
    assert_close(state[0], model.memorize(stream).memories[:, -1])


def test_memorizing_goes_on_from_a_given_state() -> None:
    model, stream = make_model(), random_stream(3, 5)
    first = stream._replace(order=stream.order[:, :2], segment_mask=stream.segment_mask[:, :2])
    second = stream._replace(order=stream.order[:, 2:], segment_mask=stream.segment_mask[:, 2:])
    went_on = model.memorize(second, model.memorize(first).state)
    assert_close(went_on.memories, model.memorize(stream).memories[:, 2:])


def test_garbage_ids_in_padding_change_no_memory(case: tuple[MemoryModel, StreamBatch, QueryBatch]) -> None:
    model, stream, _ = case
    garbage = torch.where(stream.item_mask, stream.items, torch.randint(12, stream.items.shape))
    order = torch.where(stream.segment_mask, stream.order, torch.randint(len(stream.items), stream.order.shape))
    spoilt = stream._replace(items=garbage, order=order)
    assert_close(model.memorize(spoilt).memories, model.memorize(stream).memories)


def test_asking_changes_neither_memory_nor_weights() -> None:
    model, stream, query = make_model(), random_stream(3, 5), questions_at([[5], [1], [0]])
    trace, weights = model.memorize(stream), {k: v.clone() for k, v in model.state_dict().items()}
    memories = trace.memories.clone()
    first, second = model.answer_all(trace, query), model.answer_all(trace, query)
    assert torch.equal(trace.memories, memories)
    assert torch.equal(first.scores, second.scores)
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


def test_the_gradient_of_an_answer_reaches_the_embeddings_of_the_first_of_twenty_segments() -> None:
    model, query = make_model(RM), questions_at([[20], [20]])
    stream = random_stream(2, 20, ragged=False, num_items=10)
    # items 20 to 27 occur in the first segments only
    stream.items[stream.order[:, 0]] = torch.arange(20, 28).view(2, 4)
    model(stream, query).square().sum().backward()
    gradient = model.embed.table.weight.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert (gradient[20:28].norm(dim=-1) > 0).all()
    assert (gradient[28:] == 0).all()


def test_the_model_answers_without_its_decoder() -> None:
    model, stream, query = make_model(), random_stream(3, 5), questions_at([[5], [1], [0]])
    before = model(stream, query)
    model.decoder = None
    assert torch.equal(model(stream, query), before)
