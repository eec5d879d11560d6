from __future__ import annotations

import torch
from builders import random_stream, stream_of

from remem.model.packing import pack


def test_the_real_items_of_each_stream_stand_one_after_the_other() -> None:
    stream = stream_of([[[5, 6], [7]], [[8, 9, 10]]], padding=99)
    packed = pack(stream.item_mask, stream.order, stream.segment_mask)
    items = stream.items.flatten()[packed.rows]
    assert items[0][packed.real[0]].tolist() == [5, 6, 7]
    assert items[1][packed.real[1]].tolist() == [8, 9, 10]
    assert packed.real.sum(dim=1).tolist() == [3, 3]
    assert packed.read.tolist() == [[0, 2, 3], [0, 3, 3]]


def test_the_most_items_of_a_stream_bound_the_length() -> None:
    stream = random_stream(4, 5)
    loose = pack(stream.item_mask, stream.order, stream.segment_mask)
    most = int(loose.read[:, -1].max())
    tight = pack(stream.item_mask, stream.order, stream.segment_mask, most)
    assert loose.rows.shape == (4, 20)
    assert tight.rows.shape == (4, most)
    assert torch.equal(tight.rows, loose.rows[:, :most])
    assert torch.equal(tight.real, loose.real[:, :most])
    assert not loose.real[:, most:].any()
    assert torch.equal(tight.read, loose.read)


def test_a_masked_segment_gives_nothing_whatever_its_items_say() -> None:
    stream = random_stream(2, 3, ragged=False)
    mask = stream.segment_mask.clone()
    mask[:, 1] = False
    packed = pack(stream.item_mask, stream.order, mask)
    assert packed.read.tolist() == [[0, 4, 4, 8]] * 2
    chosen = stream.items[stream.order[:, [0, 2]]].flatten(1)
    assert torch.equal(stream.items.flatten()[packed.rows[:, :8]], chosen)


def test_items_padded_in_the_middle_of_a_segment_are_skipped() -> None:
    stream = stream_of([[[1, 2, 3, 4]]])
    stream.item_mask[0, 1] = False
    packed = pack(stream.item_mask, stream.order, stream.segment_mask)
    assert stream.items.flatten()[packed.rows[0]][packed.real[0]].tolist() == [1, 3, 4]
