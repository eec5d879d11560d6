"""Batches that dwell on what is not learned yet."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from remem.data.batch import QueryBatch
from remem.data.dataset import Bucket, Split
from remem.data.focus import FULL_FOCUS, focused_batches, part_weights

SIZES = ({0: 30, 1: 6}, {1: 4, 2: 200}, {2: 1})  # streams of each part, bucket by bucket


def split_of_parts(lengths: dict[int, int] | None = None) -> Split:
    """Streams of three parts in three buckets; the last bucket is a single stream."""
    buckets, first = [], 0
    for sizes in SIZES:
        parts = [part for part, count in sizes.items() for _ in range(count)]
        zeros, real = torch.zeros(len(parts), 1, dtype=torch.long), torch.ones(len(parts), 1, dtype=torch.bool)
        part = torch.tensor(parts)[:, None]
        query = QueryBatch(zeros[..., None], real[..., None], zeros + 1, zeros, real, part, zeros)
        segments = torch.tensor([(lengths or {}).get(p, 1) for p in parts])
        order = torch.zeros(len(parts), int(segments.max()), dtype=torch.long)
        read = torch.arange(order.shape[1]) < segments[:, None]
        buckets.append(Bucket(order, read, query, torch.arange(first, first + len(parts))))
        first += len(parts)
    return Split(torch.tensor([[1, 2]]), torch.ones(1, 2, dtype=torch.bool), tuple(buckets), repeats=True)


def drawn(errors: dict[int, float], focus: float, *, turn: int = 0, count: int = 100) -> Counter[int]:
    """How many streams of each part come in the batches."""
    split, parts = split_of_parts(), Counter[int]()
    for bucket, rows in focused_batches(split, errors, focus, 8, count, 0, turn):
        parts.update(split.buckets[bucket].query.part[rows, 0].tolist())
    return parts


def test_a_part_is_drawn_by_its_errors_up_to_a_bound() -> None:
    assert part_weights({0: 0.0, 1: FULL_FOCUS / 2, 2: FULL_FOCUS, 3: 90.0}, 10.0, 5) == [1, 6, 11, 11, 1]


def test_a_part_that_stays_is_drawn_as_if_all_of_it_were_wrong() -> None:
    assert part_weights({0: 0.0, 1: 10.0}, 10.0, 2, always=[0]) == [11, 6]


def test_parts_have_equal_shares_however_many_streams_they_have() -> None:
    parts = drawn({}, 10.0)
    assert sum(parts.values()) == 800
    assert all(abs(count - 800 / 3) < 20 for count in parts.values()), parts


@pytest.mark.parametrize(("brevity", "times"), [(0.0, 1), (0.5, 2), (1.0, 4)])
def test_a_part_of_longer_streams_is_drawn_less_often(brevity: float, times: float) -> None:
    split = split_of_parts(lengths={0: 1, 1: 1, 2: 4})
    parts = Counter[int]()
    for bucket, rows in focused_batches(split, {}, 1.0, 8, 100, 0, 0, brevity=brevity):
        parts.update(split.buckets[bucket].query.part[rows, 0].tolist())
    assert parts[0] / parts[2] == pytest.approx(times, rel=0.15)
    assert parts[1] / parts[2] == pytest.approx(times, rel=0.15)


def test_a_part_with_errors_is_drawn_as_often_as_the_focus_says() -> None:
    parts = drawn({0: 0.0, 1: 100.0, 2: 0.0}, 4.0)
    assert parts[1] / parts[0] == pytest.approx(5, rel=0.15)
    assert parts[1] / parts[2] == pytest.approx(5, rel=0.15)


def test_streams_of_a_part_are_drawn_alike() -> None:
    split, seen = split_of_parts(), Counter[int]()
    for bucket, rows in focused_batches(split, {}, 1.0, 8, 100, 0, 0):
        if bucket == 0:
            seen.update(rows[rows < 30].tolist())
    assert len(seen) == 30
    assert max(seen.values()) - min(seen.values()) <= 1


def test_streams_that_were_missed_come_more_often_and_their_part_does_not() -> None:
    split, seen, parts = split_of_parts(), Counter[int](), Counter[int]()
    missed = np.zeros(len(split))
    rows_of_part = (split.buckets[1].query.part[:, 0] == 2).nonzero().squeeze(1)
    missed[split.places(1, rows_of_part[:20])] = 1.0
    hard = split.buckets[1].ids[rows_of_part[:20]].tolist()
    for bucket, rows in focused_batches(split, {}, 1.0, 8, 400, 0, 0, missed=missed, focus_streams=4.0):
        seen.update(split.buckets[bucket].ids[rows].tolist())
        parts.update(split.buckets[bucket].query.part[rows, 0].tolist())
    others = split.buckets[1].ids[rows_of_part[20:]].tolist()
    often, seldom = (sum(seen[i] for i in ids) / len(ids) for ids in (hard, others))
    assert often / seldom == pytest.approx(5, rel=0.15)
    assert all(abs(count - 3200 / 3) < 60 for count in parts.values()), parts


@pytest.mark.parametrize(
    ("error", "times"), [(FULL_FOCUS / 2, 3), (FULL_FOCUS, 1), (50.0, 1)]
)  # half learned, and guessed at
def test_missed_streams_of_a_part_that_is_guessed_at_come_like_others(error: float, times: float) -> None:
    split, seen = split_of_parts(), Counter[int]()
    missed = np.zeros(len(split))
    missed[:15] = 1.0  # half of the first part: whatever is guessed, the other half has another answer
    for bucket, rows in focused_batches(
        split, {0: error}, 1.0, 8, 400, 0, 0, always=[0], missed=missed, focus_streams=4.0
    ):
        seen.update(split.buckets[bucket].ids[rows].tolist())
    assert sum(seen[i] for i in range(15)) / sum(seen[i] for i in range(15, 30)) == pytest.approx(times, rel=0.15)


def test_leading_parts_come_alone_or_have_their_share() -> None:
    split = split_of_parts()

    def drawn_with(share: float) -> Counter[int]:
        parts = Counter[int]()
        for bucket, rows in focused_batches(split, {0: 100.0}, 1.0, 8, 100, 0, 0, first=[1], share=share):
            parts.update(split.buckets[bucket].query.part[rows, 0].tolist())
        return parts

    assert set(drawn_with(1.0)) == {1}
    parts = drawn_with(0.6)
    assert parts[1] == pytest.approx(480, rel=0.1)
    assert parts[0] / parts[2] == pytest.approx(2, rel=0.2)  # the others by their errors, as ever


def test_batches_have_one_shape_and_leave_a_single_stream_out() -> None:
    batches = focused_batches(split_of_parts(), {2: 50.0}, 10.0, 8, 50, 0, 0)
    assert len(batches) == 50
    assert {len(rows) for _, rows in batches} == {8}
    assert {bucket for bucket, _ in batches} == {0, 1}


def test_batches_are_a_function_of_seed_and_turn() -> None:
    def told(seed: int, turn: int) -> list[tuple[int, list[int]]]:
        batches = focused_batches(split_of_parts(), {1: 30.0}, 10.0, 8, 20, seed, turn)
        return [(bucket, rows.tolist()) for bucket, rows in batches]

    assert told(0, 0) == told(0, 0)
    assert told(0, 0) != told(0, 1)
    assert told(0, 0) != told(1, 0)
