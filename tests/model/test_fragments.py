from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import pytest
import torch
from builders import disjoint_stream, random_stream, stream_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from remem.data.batch import StreamBatch
from remem.errors import BadInput
from remem.model.fragments import Fragments, choose_share, items_of_others, make_fragments

PER_STREAM = 100


def all_segments(stream: StreamBatch) -> tuple[Tensor, Tensor]:
    b, t = stream.order.shape
    return torch.arange(t).expand(b, t), stream.segment_mask


def fragments_of(stream: StreamBatch, *, mask_ratio: float = 0.5, replace_ratio: float = 0.5) -> Fragments:
    return make_fragments(stream, *all_segments(stream), mask_ratio=mask_ratio, replace_ratio=replace_ratio)


def share(count: int, ratio: str) -> int:
    """Ratio times count with halves rounded up, in decimal arithmetic."""
    return int((Decimal(count) * Decimal(ratio)).quantize(Decimal(1), rounding=ROUND_HALF_UP))


@pytest.mark.parametrize("n", [2, 4, 10])
def test_exactly_half_of_an_even_fragment_is_masked(n: int) -> None:
    fragments = fragments_of(disjoint_stream(3, 4, n))
    assert (fragments.masked.sum(dim=-1) == n // 2).all()


@pytest.mark.parametrize(
    ("n", "ratio", "count"),
    [(10, 0.15, 2), (15, 0.15, 2), (20, 0.15, 3), (3, 0.15, 0), (4, 0.15, 1), (5, 0.5, 3), (7, 0.5, 4), (1, 0.5, 1)],
)
def test_other_ratios_and_odd_lengths_round_halves_up(n: int, ratio: float, count: int) -> None:
    fragments = fragments_of(disjoint_stream(2, 3, n), mask_ratio=ratio)
    assert (fragments.masked.sum(dim=-1) == count).all()


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8), ratio=st.sampled_from(["0.15", "0.35", "0.5", "1"])
)
def test_a_share_has_exactly_its_size_and_holds_candidates_only(lengths: list[int], ratio: str) -> None:
    # candidates need not come first: the unmasked items of a fragment are scattered
    candidates = (torch.arange(40) < torch.tensor(lengths)[:, None])[:, torch.randperm(40)]
    chosen = choose_share(candidates, float(ratio))
    assert chosen.sum(dim=-1).tolist() == [share(length, ratio) for length in lengths]
    assert not (chosen & ~candidates).any()


@pytest.mark.parametrize(("n", "ratio"), [(45, "0.7"), (50, "0.53"), (50, "0.57"), (20, "0.15")])
def test_every_masked_item_has_its_place_whatever_the_ratio_is_in_binary(n: int, ratio: str) -> None:
    fragments = fragments_of(disjoint_stream(2, 1, n), mask_ratio=float(ratio))
    assert fragments.masked.sum() == fragments.place_mask.sum() == 2 * share(n, ratio)


def test_every_item_is_masked_sooner_or_later() -> None:
    candidates = torch.ones(400, 6, dtype=torch.bool)
    often = choose_share(candidates, 0.5).float().mean(dim=0)
    assert ((often > 0.4) & (often < 0.6)).all()


def test_padded_items_are_neither_masked_nor_replaced() -> None:
    stream = random_stream(4, 5, 6)
    fragments = fragments_of(stream)
    real = stream.item_mask[stream.order] & stream.segment_mask[..., None]
    assert torch.equal(fragments.item_mask, real)
    assert not (fragments.masked & ~real).any()
    assert torch.equal(fragments.negative_items[~real], fragments.items[~real])
    expected = [share(int(count), "0.5") for count in real.sum(dim=-1).flatten()]
    assert fragments.masked.sum(dim=-1).flatten().tolist() == expected


def test_fragments_hold_the_items_of_the_chosen_segments() -> None:
    stream = disjoint_stream(2, 5, 4, PER_STREAM)
    chosen = torch.tensor([[3, 0], [4, 1]])
    fragments = make_fragments(stream, chosen, chosen >= 0, mask_ratio=0.5, replace_ratio=0.5)
    for b in range(2):
        for f in range(2):
            first = b * PER_STREAM + 4 * int(chosen[b, f])
            assert fragments.items[b, f].tolist() == list(range(first, first + 4))


def test_a_fragment_that_is_not_real_has_no_real_item() -> None:
    stream, mask = disjoint_stream(2, 3, 4), torch.tensor([[True, False], [True, True]])
    fragments = make_fragments(stream, torch.zeros(2, 2, dtype=torch.long), mask, mask_ratio=0.5, replace_ratio=0.5)
    assert torch.equal(fragments.mask, mask)
    assert torch.equal(fragments.item_mask.any(dim=-1), mask)
    assert not fragments.masked[0, 1].any()


@pytest.mark.parametrize(("n", "unmasked", "replaced"), [(10, 5, 3), (4, 2, 1), (8, 4, 2), (15, 7, 4)])
def test_half_of_the_unmasked_items_are_replaced_and_nothing_else(n: int, unmasked: int, replaced: int) -> None:
    # no item occurs in two streams, so that every replacement shows
    fragments = fragments_of(disjoint_stream(3, 4, n, PER_STREAM))
    changed = fragments.negative_items != fragments.items
    assert ((~fragments.masked).sum(dim=-1) == unmasked).all()
    assert (changed.sum(dim=-1) == replaced).all()
    assert not (changed & fragments.masked).any()


def test_a_negative_differs_from_its_positive_also_where_few_items_are_replaced() -> None:
    fragments = fragments_of(disjoint_stream(4, 3, 6), replace_ratio=0.15)  # of three unmasked items not one half
    assert ((fragments.items != fragments.negative_items).sum(dim=-1) == 1).all()


def test_replacements_come_from_every_other_stream_and_never_from_the_own() -> None:
    stream = disjoint_stream(4, 12, 8, PER_STREAM)
    made = [fragments_of(stream) for _ in range(5)]
    for b in range(4):
        new_items = torch.cat([f.negative_items[b][f.negative_items[b] != f.items[b]] for f in made])
        assert set((new_items // PER_STREAM).tolist()) == {0, 1, 2, 3} - {b}


def test_replacements_are_real_items_also_where_streams_are_ragged() -> None:
    # padding is an id of its own, which no stream holds
    stream = stream_of([[[1, 2, 3]], [[11], [12, 13], [14]], [[21, 22, 23, 24], [25]]], padding=99)
    others = torch.stack([items_of_others(stream, torch.Size((3, 5, 4))) for _ in range(40)])
    expected = [{1, 2, 3}, {11, 12, 13, 14}, {21, 22, 23, 24, 25}]
    for b in range(3):
        assert set(others[:, b].flatten().tolist()) == set().union(*(expected[o] for o in range(3) if o != b))


def test_replacements_follow_the_order_of_a_shared_table() -> None:
    stream = stream_of([[[1, 2], [3, 4], [5, 6]]], segment_len=2)
    shared = StreamBatch(stream.items, stream.item_mask, torch.tensor([[0, 0], [2, 2]]), torch.ones(2, 2) > 0)
    others = torch.stack([items_of_others(shared, torch.Size((2, 3, 2))) for _ in range(20)])
    assert set(others[:, 0].flatten().tolist()) == {5, 6}
    assert set(others[:, 1].flatten().tolist()) == {1, 2}


def test_a_batch_of_one_stream_is_refused_with_a_sentence() -> None:
    with pytest.raises(BadInput, match="a batch of one stream has none"):
        fragments_of(disjoint_stream(1, 4, 4))


def test_a_seed_fixes_the_fragments_and_another_changes_them() -> None:
    stream, made = disjoint_stream(3, 4, 8), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(fragments_of(stream))
    assert all(torch.equal(a, c) for a, c in zip(made[0], made[1], strict=True))
    assert not torch.equal(made[0].masked, made[2].masked)
    assert not torch.equal(made[0].negative_items, made[2].negative_items)
