"""Named tuples of tensors move between devices as they are."""

from __future__ import annotations

import torch

from remem.data.batch import Batch, Candidates, QueryBatch, StreamBatch, to_device


def example() -> Batch:
    stream = StreamBatch(
        torch.tensor([[1, 2]]),
        torch.tensor([[True, False]]),
        torch.tensor([[0, 0]]),
        torch.tensor([[True, True]]),
        True,
    )
    numbers, flags = torch.tensor([[3]]), torch.tensor([[True]])
    candidates = Candidates(numbers[None], flags[None])
    query = QueryBatch(numbers[None], flags[None], numbers, numbers, flags, numbers, numbers, candidates)
    return Batch(stream, query, torch.tensor([4]))


def flat(query: QueryBatch) -> list[torch.Tensor]:
    *questions, candidates, _ = query
    return [*questions, *candidates]


def test_moving_a_batch_keeps_names_values_and_types() -> None:
    batch = example()
    moved = to_device(batch, torch.device("cpu"))
    assert isinstance(moved, Batch)
    assert isinstance(moved.stream, StreamBatch)
    assert isinstance(moved.query, QueryBatch)
    pairs = [
        *zip(batch.stream[:4], moved.stream[:4], strict=True),
        *zip(flat(batch.query), flat(moved.query), strict=True),
    ]
    assert moved.stream.in_turn
    assert all(torch.equal(one, two) and one.dtype == two.dtype for one, two in pairs)
    assert torch.equal(moved.ids, batch.ids)


def test_nested_tuples_move_with_the_batch() -> None:
    moved = to_device(example(), torch.device("meta"))
    assert {tensor.device.type for tensor in (*moved.stream[:4], *flat(moved.query), moved.ids)} == {"meta"}


def test_a_change_of_questions_leaves_their_streams_candidates_alone() -> None:
    query = example().query
    twice = query.each(lambda value: value.repeat_interleave(2, dim=1))
    assert twice.answer.tolist() == [[3, 3]]
    assert twice.tokens.shape == (1, 2, 1)
    assert twice.candidates is query.candidates
    assert query._replace(after_all=True).each(lambda value: value).after_all
    rows = query.rows(torch.tensor([0, 0, 0]))
    assert rows.answer.shape == (3, 1)
    assert rows.candidates is not None
    assert rows.candidates.tokens.shape == (3, 1, 1)
