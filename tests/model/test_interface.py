from __future__ import annotations

import pytest
import torch

from remem.model.interface import EmbeddedStream, detach_state, gather_each, gather_rows
from remem.model.machine import SlotState


def test_gathered_rows_are_each_streams_own() -> None:
    values, index = torch.randn(3, 5, 2, 4), torch.tensor([[0, 4], [2, 2], [1, 0]])
    rows = gather_rows(values, index)
    assert rows.shape == (3, 2, 2, 4)
    for b in range(3):
        for q in range(2):
            assert torch.equal(rows[b, q], values[b, index[b, q]])


def test_rows_gathered_for_several_indices_are_those_gathered_for_each() -> None:
    values, few, many = torch.randn(3, 5, 4), torch.tensor([[0], [2], [1]]), torch.randint(5, (3, 4))
    for found, index in zip(gather_each(values, few, many), (few, many), strict=True):
        assert torch.equal(found, gather_rows(values, index))
        assert found.is_contiguous()


def test_a_detached_state_has_the_same_values_and_type_and_no_history() -> None:
    state = SlotState(torch.randn(2, 3, 4, requires_grad=True) * 2)
    detached = detach_state(state)
    assert isinstance(detached, SlotState)
    assert torch.equal(detached.slots, state.slots)
    assert not detached.slots.requires_grad
    assert state.slots.requires_grad


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_table_is_handed_out_turn_by_turn(in_turn: bool) -> None:
    order = torch.arange(6).reshape(2, 3) if in_turn else torch.tensor([[3, 0, 3], [1, 2, 0]])
    table = torch.randn(6, 4, 5, requires_grad=True)
    mask = torch.ones(6, 4, dtype=torch.bool)
    stream = EmbeddedStream(table, mask, order, torch.ones(2, 3, dtype=torch.bool), in_turn=in_turn)
    turns = stream.turns(table)
    assert len(turns) == 3
    for t, rows in enumerate(turns):
        assert torch.equal(rows, table[order[:, t]])
    (grad,) = torch.autograd.grad(sum(rows.sum() for rows in turns), table)
    assert torch.equal(grad[:, 0, 0], torch.bincount(order.flatten(), minlength=6).float())
