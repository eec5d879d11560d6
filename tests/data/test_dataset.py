"""Splits, buckets and batches: a batch holds the streams asked for, and their order is a function of the seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remem.data.batch import WHOLE, Candidates, QueryBatch, StreamBatch
from remem.data.dataset import (
    NO_STREAM,
    Bucket,
    Split,
    epoch_batches,
    evaluation_batches,
    some_questions,
    training_batches,
)
from remem.data.synthetic import synthetic_split
from remem.errors import BadInput
from remem.settings.tasks import SyntheticTask

QUICK = settings(deadline=None, max_examples=40)
SIZES = st.lists(st.integers(1, 17), min_size=1, max_size=3)

# four distinct segments, and two buckets whose streams share them
ITEMS = [[5, 6, 7], [5, 8], [9], [7, 7, 7]]
SHORT = [[0, 1], [1], [3, 3]]
LONG = [[0, 1, 2, 3], [2, 1, 0, 0, 1]]


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    values = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    return values, mask


def bucket_of(orders: list[list[int]], first_id: int) -> Bucket:
    count = len(orders)
    order, segment_mask = padded(orders)
    numbers = torch.arange(first_id, first_id + count)
    query = QueryBatch(
        tokens=numbers[:, None, None],
        token_mask=torch.ones(count, 1, 1, dtype=torch.bool),
        position=segment_mask.sum(dim=1, keepdim=True),
        answer=numbers[:, None] % 3,
        mask=torch.ones(count, 1, dtype=torch.bool),
        part=numbers[:, None] % 2,
        evidence=torch.zeros(count, 1, dtype=torch.long),
    )
    return Bucket(order, segment_mask, query, numbers)


def shared_split() -> Split:
    return Split(*padded(ITEMS), (bucket_of(SHORT, 0), bucket_of(LONG, 3)), repeats=True)


def plain_split(sizes: list[int]) -> Split:
    """Buckets of given sizes; their streams don't matter."""
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    buckets = tuple(bucket_of([[0]] * size, first) for size, first in zip(sizes, firsts, strict=True))
    return Split(*padded([[1, 2]]), buckets, repeats=True)


def own_split() -> Split:
    """Streams that share no segment: 12 of them, two and a bit segments each."""
    task = SyntheticTask(
        num_groups=1, num_facts=12, stream_len=7, num_queries=1, num_answers=2, evidence_len=2,
        samples_per_chain=6, segment_len=3,
    )  # fmt: skip
    return synthetic_split(task, "train")


def streams_in(stream: StreamBatch) -> list[list[list[int]]]:
    """Each stream as its segments, each of them as its items."""
    return [
        [stream.items[s][stream.item_mask[s]].tolist() for s in order[segments]]
        for order, segments in zip(stream.order, stream.segment_mask, strict=True)
    ]


@QUICK
@given(st.sampled_from([(0, SHORT), (1, LONG)]), st.data())
def test_a_batch_with_repeats_holds_exactly_the_streams_asked_for(
    which: tuple[int, list[list[int]]], data: st.DataObject
) -> None:
    number, orders = which
    rows = data.draw(st.lists(st.integers(0, len(orders) - 1), min_size=1, max_size=6))
    batch = shared_split().batch(number, torch.tensor(rows))
    assert streams_in(batch.stream) == [[ITEMS[s] for s in orders[row]] for row in rows]
    # and each distinct segment is held, and so encoded, once
    assert len(batch.stream.items) == len({s for row in rows for s in orders[row]})


@QUICK
@given(st.lists(st.integers(0, 11), min_size=1, max_size=15))
def test_a_batch_without_repeats_holds_exactly_the_streams_asked_for(rows: list[int]) -> None:
    split = own_split()
    whole = split.items.view(12, 9).tolist()
    batch = split.batch(0, torch.tensor(rows))
    flat = [[item for segment in stream for item in segment] for stream in streams_in(batch.stream)]
    assert flat == [whole[row][:7] for row in rows]
    assert batch.stream.items.dtype == torch.long
    assert batch.ids.tolist() == rows


def test_without_repeats_the_search_for_distinct_segments_changes_nothing() -> None:
    split = own_split()
    rows = torch.tensor([7, 2, 2, 11])
    searched, plain = replace(split, repeats=True).batch(0, rows), split.batch(0, rows)
    assert streams_in(searched.stream) == streams_in(plain.stream)


def test_questions_and_numbers_of_a_batch_follow_its_rows() -> None:
    split = shared_split()
    batch = split.batch(1, torch.tensor([1, 0]))
    assert batch.ids.tolist() == [4, 3]
    for taken, whole in zip(batch.query[:7], split.buckets[1].query[:7], strict=True):
        assert torch.equal(taken, whole[[1, 0]])


def test_padding_of_a_batch_points_into_its_table() -> None:
    batch = shared_split().batch(0, torch.tensor([1]))
    assert batch.stream.items.tolist() == [[5, 8, 0]]
    assert batch.stream.order.tolist() == [[0, 0]]
    assert batch.stream.segment_mask.tolist() == [[True, False]]


def test_sizes_count_streams_and_real_questions() -> None:
    split = shared_split()
    first = split.buckets[0]
    masked = first.query._replace(mask=torch.tensor([[True], [False], [True]]))
    assert len(split) == 5
    assert split.num_questions == 5
    assert replace(split, buckets=(replace(first, query=masked), split.buckets[1])).num_questions == 4


def test_the_same_split_has_the_same_fingerprint_on_any_device() -> None:
    split = shared_split()
    assert len(split.fingerprint()) == 16
    assert split.fingerprint() == shared_split().fingerprint() == split.to(torch.device("cpu")).fingerprint()
    assert split.fingerprint() == "4539ebe0068ae064"


def changed(tensor: torch.Tensor, *index: int) -> torch.Tensor:
    copy = tensor.clone()
    copy[index] = ~copy[index] if copy.dtype == torch.bool else copy[index] + 1
    return copy


def test_the_fingerprint_changes_if_a_single_value_changes() -> None:
    split = shared_split()
    first = split.buckets[0]
    variants = [
        replace(split, items=changed(split.items, 3, 2)),
        replace(split, items=split.items.int()),
        replace(split, item_mask=changed(split.item_mask, 2, 1)),
        replace(split, buckets=split.buckets[:1]),
        replace(split, buckets=split.buckets[::-1]),
        replace(split, buckets=(replace(first, order=changed(first.order, 2, 1)), split.buckets[1])),
        replace(split, buckets=(replace(first, segment_mask=changed(first.segment_mask, 1, 1)), split.buckets[1])),
    ]
    with_candidates = first.query._replace(candidates=Candidates(first.order[:, None], first.segment_mask[:, None]))
    variants.append(replace(split, buckets=(replace(first, query=with_candidates), split.buckets[1])))
    for name, field in first.query._asdict().items():
        if name in WHOLE:
            continue
        query = first.query._replace(**{name: changed(field, *([1] + [0] * (field.dim() - 1)))})
        variants.append(replace(split, buckets=(replace(first, query=query), split.buckets[1])))
    prints = [variant.fingerprint() for variant in [split, *variants]]
    assert len(set(prints)) == len(prints) == 16


@QUICK
@given(SIZES, st.integers(2, 9), st.integers(0, 99), st.integers(0, 99))
def test_an_epoch_holds_every_stream_in_batches_of_one_shape_a_bucket(
    sizes: list[int], batch_size: int, seed: int, epoch: int
) -> None:
    batches = epoch_batches(plain_split(sizes), batch_size, seed, epoch)
    for number, size in enumerate(sizes):
        rows = [row for bucket, chunk in batches if bucket == number for row in chunk.tolist()]
        assert set(rows) == set(range(size)) or (size == 1 and not rows)
        again = -size % batch_size if size > batch_size else 0
        assert len(rows) == (size + again if size > 1 else 0)
    assert all(len(chunk) == len(set(chunk.tolist())) == min(batch_size, sizes[b]) for b, chunk in batches)


@QUICK
@given(SIZES, st.integers(2, 9), st.integers(0, 99), st.integers(0, 99))
def test_an_epoch_is_a_function_of_seed_and_epoch(sizes: list[int], batch_size: int, seed: int, epoch: int) -> None:
    one, two = (epoch_batches(plain_split(sizes), batch_size, seed, epoch) for _ in range(2))
    assert [(b, rows.tolist()) for b, rows in one] == [(b, rows.tolist()) for b, rows in two]


def test_other_seeds_and_other_epochs_give_other_orders() -> None:
    split = plain_split([16, 9])
    orders = [
        [(bucket, rows.tolist()) for bucket, rows in epoch_batches(split, 4, seed, epoch)]
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]
    ]
    assert all(one != two for i, one in enumerate(orders) for two in orders[:i])


def test_the_order_of_batches_is_the_same_on_every_machine() -> None:
    batches = epoch_batches(plain_split([5, 4]), 3, seed=0, epoch=1)
    assert [(bucket, rows.tolist()) for bucket, rows in batches] == [
        (1, [1, 3, 2]),
        (0, [3, 4, 1]),
        (0, [1, 0, 2]),
        (1, [3, 2, 0]),
    ]


def test_buckets_are_mixed_but_never_within_a_batch() -> None:
    batches = epoch_batches(plain_split([32, 32]), 4, seed=3, epoch=0)
    order = [bucket for bucket, _ in batches]
    assert sorted(order) == [0] * 8 + [1] * 8
    assert order != sorted(order)


def test_the_streams_drawn_twice_change_from_epoch_to_epoch() -> None:
    split = plain_split([9])
    twice = set()
    for epoch in range(12):
        drawn = [row for _, rows in epoch_batches(split, 4, 0, epoch) for row in rows.tolist()]
        twice |= {row for row in drawn if drawn.count(row) == 2}
    assert len(twice) > 3


@QUICK
@given(SIZES, st.integers(2, 9), st.integers(0, 99), st.integers(0, 30))
def test_training_can_start_at_any_step_as_if_it_had_run_from_the_first(
    sizes: list[int], batch_size: int, seed: int, step: int
) -> None:
    split = plain_split([2, *sizes])
    # enough batches to cross several borders between epochs
    count = step + 3 * len(epoch_batches(split, batch_size, seed, 0)) + 1
    whole = [(b, rows.tolist()) for b, rows in islice(training_batches(split, batch_size, seed, 0), count)]
    resumed = islice(training_batches(split, batch_size, seed, step), count - step)
    assert [(b, rows.tolist()) for b, rows in resumed] == whole[step:]


def test_training_runs_through_one_epoch_after_the_other() -> None:
    split = plain_split([7, 5])
    epochs = [batch for epoch in range(3) for batch in epoch_batches(split, 3, 5, epoch)]
    drawn = list(islice(training_batches(split, 3, 5, 0), len(epochs)))
    assert [(b, rows.tolist()) for b, rows in drawn] == [(b, rows.tolist()) for b, rows in epochs]


def test_a_split_of_one_stream_cannot_be_trained_on() -> None:
    with pytest.raises(BadInput, match="A split of 1 streams has no batch; training needs at least two streams"):
        next(training_batches(plain_split([1]), 4, 0, 0))


def test_a_batch_size_of_one_is_named_as_the_reason_for_no_batch() -> None:
    with pytest.raises(BadInput, match=r"batch_size|batch size"):
        next(training_batches(plain_split([8]), 1, 0, 0))


@QUICK
@given(SIZES, st.integers(1, 9))
def test_evaluation_sees_each_stream_once_and_in_order(sizes: list[int], batch_size: int) -> None:
    ids = [number for batch in evaluation_batches(plain_split(sizes), batch_size) for number in batch.ids.tolist()]
    assert ids == list(range(sum(sizes)))


@QUICK
@given(SIZES, st.integers(1, 9))
def test_filled_batches_hold_each_stream_once_and_nothing_else_that_asks(sizes: list[int], batch_size: int) -> None:
    split = plain_split(sizes)
    batches = list(evaluation_batches(split, batch_size, fill=True))
    assert {len(batch.ids) for batch in batches} <= {batch_size}
    assert [n for batch in batches for n in batch.ids.tolist() if n != NO_STREAM] == list(range(sum(sizes)))
    assert not any(batch.query.mask[batch.ids == NO_STREAM].any() for batch in batches)
    assert sum(int(batch.query.mask.sum()) for batch in batches) == split.num_questions


def test_evaluation_holds_all_streams_and_questions() -> None:
    batches = list(evaluation_batches(shared_split(), 2))
    streams = [stream for batch in batches for stream in streams_in(batch.stream)]
    assert streams == [[ITEMS[s] for s in order] for order in SHORT + LONG]
    assert sum(int(batch.query.mask.sum()) for batch in batches) == 5


def test_a_batch_says_whether_all_its_questions_come_last() -> None:
    split = shared_split()
    assert split.after_all == (True, True)
    short, long = split.buckets
    earlier = long.query.position.clone()
    earlier[1, 0] -= 1
    asked = replace(split, buckets=(short, replace(long, query=long.query._replace(position=earlier))))
    assert asked.after_all == (True, False)
    rows = torch.tensor([0])
    assert (asked.batch(0, rows).query.after_all, asked.batch(1, rows).query.after_all) == (True, False)
    # a question that is padding may stand anywhere
    padding = long.query._replace(position=earlier, mask=torch.tensor([[True], [False]]))
    assert replace(split, buckets=(replace(long, query=padding),)).after_all == (True,)
    assert asked.fingerprint() != split.fingerprint()


def test_some_questions_of_a_stream_are_drawn_and_padding_only_where_there_are_no_more() -> None:
    query = QueryBatch(
        tokens=torch.arange(24).view(2, 4, 3), token_mask=torch.ones(2, 4, 3, dtype=torch.bool),
        position=torch.arange(8).view(2, 4), answer=torch.arange(8).view(2, 4),
        mask=torch.tensor([[True] * 4, [False, False, True, False]]),
        part=torch.zeros(2, 4, dtype=torch.long), evidence=torch.zeros(2, 4, dtype=torch.long),
    )  # fmt: skip
    seen = set()
    for _ in range(40):
        drawn = some_questions(query, 2)
        assert drawn.mask.tolist() == [[True, True], [True, False]]
        assert drawn.answer[1, 0] == 6
        assert torch.equal(drawn.tokens[..., 0], 3 * drawn.answer)
        first = drawn.answer[0].tolist()
        assert len(set(first)) == 2
        seen.update(first)
    assert seen == {0, 1, 2, 3}
