"""A short-term store beside the slots: what it holds, in which order, and what padding and restarts leave alone."""

from __future__ import annotations

import pytest
import torch
from builders import RM, assert_close, make_machine, random_embedded

from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.recent import RecentMachine, RecentState, last_rows
from remem.settings.model import with_machine

RECENT = with_machine(RM, num_slots=5, recent=3)
D = RM.item_dim


def recent_machine() -> RecentMachine:
    machine = make_machine(RECENT)
    assert isinstance(machine, RecentMachine)
    return machine


def segment(*, real: bool = True) -> Segment:
    return Segment(torch.randn(1, 4, D), torch.full((1, 4), real))


def as_row(machine: RecentMachine, each: Segment) -> torch.Tensor:
    """Its items by the weights of their places, added up, by the root of their number."""
    return sum(machine.pool.weights[n] * each.items[0, n] for n in range(4)) / 2  # type: ignore[return-value]


def test_the_last_segments_are_kept_newest_first_and_older_ones_are_gone() -> None:
    machine = recent_machine()
    read = [segment() for _ in range(5)]
    state = machine.initial_state(1)
    for each in read:
        state = machine.write(state, each)
    assert_close(state.recent[0], torch.stack([as_row(machine, each) for each in read[:1:-1]]))


def test_rows_are_marked_by_their_age_where_they_are_read_and_slots_are_not() -> None:
    machine = recent_machine()
    state = machine.write(machine.initial_state(1), segment())
    memory = machine.memory(state)
    assert memory.shape == (1, 5, D)
    assert_close(memory[:, :3], state.recent + machine.ages)
    assert torch.equal(memory[:, 3:], state.slots)
    assert (state.recent[0, 1:] == 0).all()


def test_slots_are_written_as_without_a_store() -> None:
    machine, plain = recent_machine(), make_machine(with_machine(RM, num_slots=2))
    plain.load_state_dict({k: v for k, v in machine.state_dict().items() if not k.startswith(("pool", "ages"))})
    stream = random_embedded(2, 5, 4, D)
    trace = machine.write_stream(machine.initial_state(2), stream)
    assert_close(trace.memories[:, :, 3:], plain.write_stream(plain.initial_state(2), stream).memories)


def test_a_segment_of_padding_leaves_the_store_alone() -> None:
    machine = recent_machine()
    state = machine.write(machine.initial_state(1), segment())
    after = machine.write(state, segment(real=False))
    assert torch.equal(after.recent, state.recent)
    assert torch.equal(after.slots, state.slots)


def test_rows_in_the_middle_that_are_padding_do_not_count() -> None:
    rows = torch.arange(1.0, 6.0).view(1, 5, 1)
    real = torch.tensor([[True, False, True, False, True]])
    before = torch.tensor([[[-1.0], [-2.0]]])
    found = last_rows(before, rows, real)[0, :, :, 0].tolist()
    assert found == [[-1, -2], [1, -1], [1, -1], [3, 1], [3, 1], [5, 3]]


def test_streams_go_on_from_where_they_stopped_and_poisoned_padding_is_not_read() -> None:
    machine = recent_machine()
    stream = random_embedded(3, 6, 4, D)
    stream = stream._replace(items=stream.items.masked_fill(~stream.item_mask[..., None], torch.nan))
    whole = machine.write_stream(machine.initial_state(3), stream)
    state: RecentState = machine.initial_state(3)
    for t in range(6):
        rows = stream.order[:, t]
        mask = stream.item_mask[rows] & stream.segment_mask[:, t, None]
        state = machine.write(state, Segment(stream.items[rows], mask))
        assert_close(machine.memory(state), whole.memories[:, t + 1])
    assert_close(state.recent, whole.state.recent)
    assert torch.isfinite(whole.memories).all()


@pytest.mark.parametrize("recent", [-1, 5, 6])
def test_a_store_that_leaves_no_slot_is_refused(recent: int) -> None:
    with pytest.raises(BadInput, match=f"Of 5 slots {recent} can't be the last segments; give 0 to 4"):
        make_machine(with_machine(RECENT, recent=recent))


def test_turns_and_a_store_together_are_refused() -> None:
    with pytest.raises(BadInput, match="take turns or stand beside"):
        make_machine(with_machine(RECENT, turns=2))
