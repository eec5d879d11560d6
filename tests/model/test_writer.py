from __future__ import annotations

import math

import pytest
import torch
from builders import additive_score, assert_close, matvec, sigmoid, softmax
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from remem.model.writer import SlotWriter
from remem.ops.write_scan.reference import align, assign, project, update


def make_writer(**options: object) -> SlotWriter:
    return SlotWriter(**{"item_dim": 4, "model_dim": 5, "num_slots": 3, **options})  # type: ignore[arg-type]


def segment(b: int = 2, n: int = 6, d: int = 4) -> tuple[Tensor, Tensor]:
    """Features, and a mask with a whole, a shortened and so on row."""
    lengths = torch.tensor([max(1, n - 2 * i) for i in range(b)])
    return torch.randn(b, n, d), torch.arange(n) < lengths[:, None]


def written(writer: SlotWriter, slots: Tensor, features: Tensor, mask: Tensor) -> Tensor:
    return writer(slots, features, mask)[0]


def assignment_by_hand(writer: SlotWriter, slots: Tensor, features: Tensor, mask: Tensor) -> list[list[list[float]]]:
    """alpha-hat of Eq. 1, one item at a time."""
    identity: list[list[float] | None] = (
        [None] * slots.shape[1] if writer.identity is None else list(writer.identity.tolist())
    )
    result = []
    for b in range(len(slots)):
        columns = []
        for n in range(features.shape[1]):
            scores = [
                additive_score(writer.attention, slot.tolist(), features[b, n].tolist(), identity[k])
                for k, slot in enumerate(slots[b])
            ]
            columns.append(softmax(scores) if mask[b, n] else [0.0] * len(scores))
        result.append([list(row) for row in zip(*columns, strict=True)])
    return result


@pytest.mark.parametrize("slot_identity", [False, True])
def test_the_assignment_is_equation_1_one_number_at_a_time(slot_identity: bool) -> None:
    writer = make_writer(slot_identity=slot_identity, score_gain=4.0)
    slots, (features, mask) = torch.randn(2, 3, 4), segment()
    expected = assignment_by_hand(writer, slots, features, mask)
    assert_close(assign(slots, project(features, writer.weights), mask, writer.weights), expected)


@pytest.mark.parametrize("aligned_gain", [1.0, 5.0])
def test_aligned_features_are_the_sum_of_equation_1_times_the_gain(aligned_gain: float) -> None:
    writer = make_writer(aligned_gain=aligned_gain)
    features, mask = segment()
    assignment = torch.rand(2, 3, 6) * mask[:, None]
    expected = torch.zeros(2, 3, 4)
    for b in range(2):
        for k in range(3):
            for n in range(6):
                for d in range(4):
                    expected[b, k, d] += aligned_gain * assignment[b, k, n] * features[b, n, d]
    assert_close(align(assignment, features, mask, writer.aligned_gain), expected)


def test_each_real_item_hands_out_one_unit_among_the_slots_and_a_padded_one_nothing() -> None:
    writer = make_writer(slot_identity=True, score_gain=4.0)
    features, mask = segment()
    assignment = assign(torch.randn(2, 3, 4), project(features, writer.weights), mask, writer.weights)
    assert_close(assignment.sum(dim=1), mask.float())
    assert (assignment >= 0).all()
    assert (assignment.transpose(1, 2)[~mask] == 0).all()


def test_the_update_is_torchs_own_cell_with_the_slots_as_hidden_state() -> None:
    writer = make_writer()
    slots, aligned = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    expected = writer.cell(aligned.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
    assert_close(update(slots, aligned, writer.weights), expected)


def test_the_update_is_the_gru_of_equation_2_one_number_at_a_time() -> None:
    writer = make_writer()
    slots, aligned = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    expected = [[gru_by_hand(writer.cell, aligned[b, k], slots[b, k]) for k in range(3)] for b in range(2)]
    assert_close(update(slots, aligned, writer.weights), expected)


def gru_by_hand(cell: nn.GRUCell, x: Tensor, h: Tensor) -> list[float]:
    """r, z = sigmoid(W x + U h), n = tanh(W x + r * U h), h' = (1 - z) n + z h."""
    from_x = [a + b for a, b in zip(matvec(cell.weight_ih.tolist(), x.tolist()), cell.bias_ih.tolist(), strict=True)]
    from_h = [a + b for a, b in zip(matvec(cell.weight_hh.tolist(), h.tolist()), cell.bias_hh.tolist(), strict=True)]
    d, result = len(h), []
    for i in range(d):
        reset = sigmoid(from_x[i] + from_h[i])
        keep = sigmoid(from_x[d + i] + from_h[d + i])
        new = math.tanh(from_x[2 * d + i] + reset * from_h[2 * d + i])
        result.append((1.0 - keep) * new + keep * h[i].item())
    return result


def test_a_write_is_assignment_then_alignment_then_update() -> None:
    writer = make_writer(aligned_gain=5.0, slot_identity=True)
    slots, (features, mask) = torch.randn(2, 3, 4), segment()
    assignment = torch.tensor(assignment_by_hand(writer, slots, features, mask))
    aligned = 5.0 * assignment @ features
    expected = [[gru_by_hand(writer.cell, aligned[b, k], slots[b, k]) for k in range(3)] for b in range(2)]
    after, shared_out = writer(slots, features, mask)
    assert_close(after, expected)
    assert_close(shared_out, assignment)


def test_writing_leaves_the_slots_it_was_given_alone() -> None:
    writer = make_writer()
    slots, (features, mask) = torch.randn(2, 3, 4), segment()
    before = slots.clone()
    after = written(writer, slots, features, mask)
    assert torch.equal(slots, before)
    assert not torch.equal(after, before)


def test_a_row_of_padding_keeps_its_slots_to_the_last_bit() -> None:
    writer = make_writer()
    slots, (features, mask) = torch.randn(2, 3, 4), segment()
    mask = mask & torch.tensor([[True], [False]])
    after = written(writer, slots, features, mask)
    assert torch.equal(after[1], slots[1])
    assert not torch.equal(after[0], slots[0])


@pytest.mark.parametrize("garbage", [1e4, -1e4, math.inf, math.nan])
def test_aligned_features_leave_out_padded_items_whatever_they_hold(garbage: float) -> None:
    features, mask = segment()
    assignment = torch.rand(2, 3, 6) * mask[:, None]
    spoilt = features.masked_fill(~mask[..., None], garbage)
    assert_close(align(assignment, spoilt, mask, 5.0), align(assignment, features, mask, 5.0))


@pytest.mark.parametrize("garbage", [1e4, -1e4, math.inf, math.nan])
def test_padded_items_change_nothing_whatever_they_hold(garbage: float) -> None:
    writer = make_writer(slot_identity=True, aligned_gain=5.0)
    slots, (features, mask) = torch.randn(2, 3, 4), segment()
    spoilt = features.masked_fill(~mask[..., None], garbage)
    clean_slots, clean_assignment = writer(slots, features, mask)
    slots_after, assignment = writer(slots, spoilt, mask)
    assert_close(slots_after, clean_slots)
    assert_close(assignment, clean_assignment)


@settings(max_examples=25, deadline=None)
@given(
    b=st.integers(1, 3),
    n=st.integers(1, 5),
    more=st.integers(1, 3),
    k=st.integers(1, 4),
    d=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_padding_a_segment_to_any_length_changes_no_slot(b: int, n: int, more: int, k: int, d: int, seed: int) -> None:
    torch.manual_seed(seed)
    writer = make_writer(item_dim=d, num_slots=k, slot_identity=True)
    slots, (features, mask) = torch.randn(b, k, d), segment(b, n, d)
    longer = torch.cat([features, 100.0 * torch.randn(b, more, d)], dim=1)
    longer_mask = torch.cat([mask, torch.zeros(b, more, dtype=torch.bool)], dim=1)
    assert_close(written(writer, slots, longer, longer_mask), written(writer, slots, features, mask))


def test_equal_slots_stay_equal_without_an_identity_and_part_with_one() -> None:
    slots, (features, mask) = torch.randn(2, 1, 4).expand(2, 3, 4), segment()
    alike = written(make_writer(), slots, features, mask)
    parted = written(make_writer(slot_identity=True), slots, features, mask)
    assert_close(alike, alike[:, :1].expand_as(alike))
    assert (parted - parted[:, :1]).abs().max() > 1e-3


def test_a_keep_bias_opens_the_gate_that_keeps_and_changes_no_other_weight() -> None:
    torch.manual_seed(3)
    plain = make_writer()
    torch.manual_seed(3)
    keeping = make_writer(keep_bias=100.0)
    slots, (features, mask) = torch.randn(2, 3, 4), segment()
    assert_close(written(keeping, slots, features, mask), slots)
    with torch.no_grad():
        keeping.cell.bias_hh[4:8] -= 100.0
    assert_close(written(keeping, slots, features, mask), written(plain, slots, features, mask))


def test_slots_stay_in_32_bits_where_products_are_16() -> None:
    writer = make_writer(slot_identity=True)
    slots, (features, mask) = torch.randn(2, 3, 4), segment()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        after, assignment = writer(slots, features, mask)
    assert after.dtype == assignment.dtype == torch.float32
    # a cell that is kept shut must not round what it keeps
    with torch.no_grad():
        writer.cell.bias_ih[4:8] = 100.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = written(writer, slots, features, mask)
    assert_close(kept, slots)


@pytest.mark.parametrize("slot_identity", [False, True])
def test_the_gradient_of_a_write_is_that_of_finite_differences(slot_identity: bool) -> None:
    writer = make_writer(item_dim=3, model_dim=2, num_slots=2, slot_identity=slot_identity, aligned_gain=2.0).double()
    mask = torch.tensor([[True, True, False], [False, False, False]])
    slots = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    features = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)

    def write(slots: Tensor, features: Tensor, *_: Tensor) -> Tensor:
        return written(writer, slots, features, mask)

    assert torch.autograd.gradcheck(write, (slots, features, *writer.parameters()))


def test_a_copying_writer_starts_as_a_fading_sum_of_what_it_aligns() -> None:
    plain, copying = (make_writer(keep_bias=2.0, copy_start=start) for start in (False, True))
    slots, aligned = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    with torch.no_grad():
        copying.cell.bias_ih.zero_()
        copying.cell.bias_hh.zero_()
        copying.cell.bias_hh[4:8] = 100.0  # keep all
        assert_close(copying.cell(aligned.flatten(0, 1), slots.flatten(0, 1)).view_as(slots), slots)
        copying.cell.bias_hh[4:8] = -100.0  # keep nothing
        new = copying.cell(aligned.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        assert_close(new, torch.tanh(aligned / 2))
        assert not torch.allclose(plain.cell(aligned.flatten(0, 1), slots.flatten(0, 1)).view_as(slots), new, atol=0.1)
