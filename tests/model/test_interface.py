from __future__ import annotations

import torch

from remem.model.interface import detach_state, gather_rows
from remem.model.machine import SlotState


def test_gathered_rows_are_each_streams_own() -> None:
    values, index = torch.randn(3, 5, 2, 4), torch.tensor([[0, 4], [2, 2], [1, 0]])
    rows = gather_rows(values, index)
    assert rows.shape == (3, 2, 2, 4)
    for b in range(3):
        for q in range(2):
            assert torch.equal(rows[b, q], values[b, index[b, q]])


def test_a_detached_state_has_the_same_values_and_type_and_no_history() -> None:
    state = SlotState(torch.randn(2, 3, 4, requires_grad=True) * 2)
    detached = detach_state(state)
    assert isinstance(detached, SlotState)
    assert torch.equal(detached.slots, state.slots)
    assert not detached.slots.requires_grad
    assert state.slots.requires_grad
