from __future__ import annotations

import pytest
import torch
from builders import (
    CODEC,
    PAPER,
    TEXT_CODEC,
    additive_score,
    assert_close,
    dot,
    questions_at,
    random_stream,
    softmax,
    stream_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from remem.build import build_sampler
from remem.data.batch import QueryBatch, StreamBatch
from remem.model.embed import SentenceQueryEncoder
from remem.model.sampler import HistorySampler, RandomSampler, Sampler, available_segments, top_of_each_half

INF = float("inf")


@pytest.fixture
def sampler() -> HistorySampler:
    return build_sampler(PAPER, CODEC).eval()


def one_question(query: QueryBatch, number: int = 0) -> QueryBatch:
    return query.each(lambda value: value[:, number : number + 1])


def means_by_hand(sampler: HistorySampler, stream: StreamBatch, b: int, count: int) -> list[list[float]]:
    """h_c of the first `count` segments of a stream."""
    means = []
    for row in stream.order[b, :count].tolist():
        vectors = [sampler.embed.table.weight[i].tolist() for i in stream.items[row][stream.item_mask[row]].tolist()]
        means.append([sum(column) / len(vectors) for column in zip(*vectors, strict=True)])
    return means


def test_segment_means_leave_padding_out(sampler: HistorySampler) -> None:
    stream = stream_of([[[1, 2, 3, 4], [5]], [[6, 7, 8]]], padding=29)
    means = sampler.segment_means(stream)
    for b, count in enumerate([2, 1]):
        assert_close(means[b, :count], means_by_hand(sampler, stream, b, count))


def test_scores_and_answers_are_equation_5_one_number_at_a_time(sampler: HistorySampler) -> None:
    stream, query = random_stream(3, 5), questions_at([[5, 2], [1, -1], [1, 1]])
    scores, _, _ = sampler.attend(stream, query)
    answers = sampler(stream, query)
    for b, q in query.mask.nonzero().tolist():
        feature = sampler.query_encoder(query.tokens[b, q : q + 1], query.token_mask[b, q : q + 1])[0].tolist()
        count = int(query.position[b, q])
        means = means_by_hand(sampler, stream, b, count)
        expected = [additive_score(sampler.attention, feature, mean) for mean in means]
        assert_close(scores[b, q, :count], expected)
        assert (scores[b, q, count:] == -INF).all()
        importance = softmax(expected)
        evidence = [sum(w * mean[i] for w, mean in zip(importance, means, strict=True)) for i in range(PAPER.item_dim)]
        for c in range(CODEC.num_answers):
            weight, bias = sampler.head.classify.weight[c].tolist(), sampler.head.classify.bias[c].item()
            assert_close(answers[b, q, c], dot(weight, evidence + feature) + bias)


def test_a_question_sees_only_the_segments_read_before_it() -> None:
    stream = stream_of([[[1]] * 4, [[1]] * 2])
    query = questions_at([[0, 2, 4], [1, 2, 4]])
    assert available_segments(stream, query).long().tolist() == [
        [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]],
    ]


def test_later_segments_change_neither_answer_nor_choice(sampler: HistorySampler) -> None:
    stream, query = random_stream(3, 8, ragged=False), questions_at([[4], [3], [5]])
    items = stream.items.clone()
    for b in range(3):
        items[stream.order[b, int(query.position[b, 0]) :]] = torch.randint(CODEC.num_items, (4,))
    other = stream._replace(items=items)
    assert_close(sampler(other, query), sampler(stream, query))
    for before, after in zip(sampler.choose(stream, query, 4), sampler.choose(other, query, 4), strict=True):
        assert torch.equal(before, after)


def test_padded_questions_and_questions_at_the_start_give_finite_answers_and_gradients(sampler: HistorySampler) -> None:
    stream, query = random_stream(2, 3), questions_at([[3, 0], [1, -1]])
    answers = sampler(stream, query)
    answers.sum().backward()
    assert answers.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in sampler.parameters())


def test_a_question_before_any_segment_is_answered_from_itself_alone(sampler: HistorySampler) -> None:
    query = questions_at([[0], [0]])
    feature = sampler.query_encoder(query.tokens[:, 0], query.token_mask[:, 0])
    expected = sampler.head(nn.functional.pad(feature, (PAPER.item_dim, 0)))
    assert_close(sampler(random_stream(2, 3), query)[:, 0], expected)


def test_a_sampler_of_sentences_reads_questions_with_words_of_its_own() -> None:
    sampler = build_sampler(PAPER, TEXT_CODEC)
    stream, query = random_stream(2, 3, num_items=12), questions_at([[3, 1], [2, 2]])
    tokens = torch.randint(12, (2, 2, 5))
    query = query._replace(tokens=tokens, token_mask=torch.arange(5).expand(2, 2, 5) < 3)
    assert sampler(stream, query).shape == (2, 2, 2)
    assert isinstance(sampler.query_encoder, SentenceQueryEncoder)
    assert sampler.query_encoder.words is not sampler.embed.table


def halves(chosen: tuple[Tensor, Tensor], row: int, num_fragments: int) -> list[list[int]]:
    """The real choices of a row, sorted within each half."""
    index, mask = chosen[0][row], chosen[1][row]
    cut = num_fragments // 2
    return [sorted(index[part][mask[part]].tolist()) for part in (slice(0, cut), slice(cut, None))]


def halves_by_sorting(scores: list[float], count: int, num_fragments: int) -> list[list[int]]:
    """The best of [0, count // 2) and of [count // 2, count)."""
    wanted = (num_fragments // 2, num_fragments - num_fragments // 2)
    sides = (range(count // 2), range(count // 2, count))
    return [
        sorted(sorted(side, key=scores.__getitem__, reverse=True)[:many])
        for side, many in zip(sides, wanted, strict=True)
    ]


@pytest.mark.parametrize(
    ("scores", "count", "num_fragments", "expected"),
    [
        # eight segments, the best two of each half
        ([0.1, 0.9, 0.5, 0.2, 0.8, 0.3, 0.7, 0.6], 8, 4, [[1, 2], [4, 6]]),
        # seven: the first half is [0, 3), although 3 is the best of all
        ([0.1, 0.2, 0.5, 0.9, 0.8, 0.3, 0.7], 7, 4, [[1, 2], [3, 4]]),
        # an odd number of fragments: the second half has one more
        ([0.1, 0.9, 0.5, 0.2, 0.8, 0.3], 6, 3, [[1], [4, 5]]),
        # one fragment comes from the second half
        ([0.9, 0.8, 0.1, 0.2], 4, 1, [[], [3]]),
        # asked after four of eight: the halves are those of what was read
        ([0.1, 0.9, 0.2, 0.3, -INF, -INF, -INF, -INF], 4, 2, [[1], [3]]),
        # asked after five
        ([0.1, 0.9, 0.2, 0.3, 0.4, -INF, -INF], 5, 4, [[0, 1], [3, 4]]),
        # fewer segments than fragments: all there are
        ([0.1, 0.2, 0.3], 3, 6, [[0], [1, 2]]),
        ([0.5], 1, 4, [[], [0]]),
        ([-INF, -INF], 0, 4, [[], []]),
        # scores below zero are scores
        ([-5.0, -9.0, -2.0, -3.0], 4, 2, [[0], [2]]),
    ],
)
def test_the_best_of_each_half_are_chosen(
    scores: list[float], count: int, num_fragments: int, expected: list[list[int]]
) -> None:
    chosen = top_of_each_half(torch.tensor([scores]), torch.tensor([count]), num_fragments)
    assert chosen[0].shape == chosen[1].shape == (1, num_fragments)
    assert halves(chosen, 0, num_fragments) == expected


@settings(max_examples=25, deadline=None)
@given(t=st.integers(1, 9), counts=st.lists(st.integers(0, 9), min_size=1, max_size=4), f=st.integers(1, 8))
def test_the_choice_is_that_of_sorting_each_half(t: int, counts: list[int], f: int) -> None:
    counts = [min(count, t) for count in counts]
    scores = torch.randn(len(counts), t)
    scores = scores.masked_fill(torch.arange(t) >= torch.tensor(counts)[:, None], -INF)
    chosen = top_of_each_half(scores, torch.tensor(counts), f)
    assert ((chosen[0] >= 0) & (chosen[0] < t)).all()
    for row, count in enumerate(counts):
        assert halves(chosen, row, f) == halves_by_sorting(scores[row].tolist(), count, f)


def test_the_history_sampler_chooses_by_its_own_scores_for_the_question(sampler: HistorySampler) -> None:
    stream, query = random_stream(3, 8, ragged=False), questions_at([[8], [7], [3]])
    scores, _, _ = sampler.attend(stream, query)
    chosen = sampler.choose(stream, query, 4)
    for row, count in enumerate([8, 7, 3]):
        assert halves(chosen, row, 4) == halves_by_sorting(scores[row, 0].tolist(), count, 4)


def test_choosing_leaves_no_gradient_behind(sampler: HistorySampler) -> None:
    tracked: list[bool] = []
    sampler.attention.right.register_forward_hook(lambda _module, _inputs, output: tracked.append(output.requires_grad))
    chosen, mask = sampler.choose(random_stream(2, 5), questions_at([[5], [1]]), 4)
    assert tracked == [False]
    assert not chosen.requires_grad
    assert not mask.requires_grad
    assert all(p.grad is None for p in sampler.parameters())


def test_the_random_sampler_chooses_different_real_segments() -> None:
    stream, query = random_stream(3, 8, ragged=False), questions_at([[8], [5], [2]])
    for _ in range(20):
        chosen, mask = RandomSampler().choose(stream, query, 4)
        assert mask.sum(dim=1).tolist() == [4, 4, 2]
        for row, count in enumerate([8, 5, 2]):
            real = chosen[row][mask[row]].tolist()
            assert len(set(real)) == len(real)
            assert all(0 <= c < count for c in real)


def test_the_random_sampler_chooses_every_segment_equally_often() -> None:
    stream, query = random_stream(400, 6, ragged=False), questions_at([[6]] * 400)
    chosen, _ = RandomSampler().choose(stream, query, 3)
    often = chosen.flatten().bincount(minlength=6) / 400
    assert ((often > 0.4) & (often < 0.6)).all()


@pytest.mark.parametrize("kind", ["history", "random"])
def test_a_short_stream_has_fewer_fragments_and_a_mask_that_says_so(kind: str, sampler: HistorySampler) -> None:
    chooser: Sampler = sampler if kind == "history" else RandomSampler()
    stream, query = stream_of([[[1, 2]], [[3], [4], [5]]]), questions_at([[1], [3]])
    chosen, mask = chooser.choose(stream, query, 6)
    assert chosen.shape == mask.shape == (2, 6)
    assert [sorted(chosen[b][mask[b]].tolist()) for b in range(2)] == [[0], [0, 1, 2]]
    # what is not real must still be an index that exists
    assert ((chosen >= 0) & (chosen < 3)).all()


@pytest.mark.parametrize("kind", ["history", "random"])
def test_a_stream_of_which_nothing_was_read_has_no_fragment(kind: str, sampler: HistorySampler) -> None:
    chooser: Sampler = sampler if kind == "history" else RandomSampler()
    _, mask = chooser.choose(random_stream(2, 4), questions_at([[0], [-1]]), 4)
    assert not mask.any()
