"""Named tuples of tensors move between devices as they are."""

from __future__ import annotations

import torch

from remem.data.batch import Batch, QueryBatch, StreamBatch, to_device


def example() -> Batch:
    stream = StreamBatch(
        torch.tensor([[1, 2]]),
        torch.tensor([[True, False]]),
        torch.tensor([[0, 0]]),
        torch.tensor([[True, True]]),
        True,
    )
    numbers, flags = torch.tensor([[3]]), torch.tensor([[True]])
    return Batch(
        stream, QueryBatch(numbers[None], flags[None], numbers, numbers, flags, numbers, numbers), torch.tensor([4])
    )


def test_moving_a_batch_keeps_names_values_and_types() -> None:
    batch = example()
    moved = to_device(batch, torch.device("cpu"))
    assert isinstance(moved, Batch)
    assert isinstance(moved.stream, StreamBatch)
    assert isinstance(moved.query, QueryBatch)
    pairs = [*zip(batch.stream[:4], moved.stream[:4], strict=True), *zip(batch.query, moved.query, strict=True)]
    assert moved.stream.in_turn
    assert all(torch.equal(one, two) and one.dtype == two.dtype for one, two in pairs)
    assert torch.equal(moved.ids, batch.ids)


def test_nested_tuples_move_with_the_batch() -> None:
    moved = to_device(example(), torch.device("meta"))
    assert {tensor.device.type for tensor in (*moved.stream[:4], *moved.query, moved.ids)} == {"meta"}
