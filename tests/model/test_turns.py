"""Slots that take turns: what goes where, when a turn ends, and what a slot starts as."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import RM, assert_close, make_machine, random_embedded

from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.turns import TurnMachine, TurnState
from remem.settings.model import with_machine

TURNS = with_machine(RM, turns=2, copy_start=True, keep_bias=4.0, aligned_gain=0.3, encoder_layers=0)
D, K = RM.item_dim, 3


def turn_machine(gain: float = 50.0) -> TurnMachine:
    """One whose bonus leaves nothing to the other slots."""
    machine = make_machine(TURNS)
    assert isinstance(machine, TurnMachine)
    machine.turn_gain.data.fill_(gain)
    return machine


def segment(*, real: bool = True) -> Segment:
    return Segment(torch.randn(1, 4, D), torch.full((1, 4), real))


def test_slots_are_written_in_turn_each_for_as_many_segments() -> None:
    machine = turn_machine()
    state, written = machine.initial_state(1), []
    for _ in range(8):
        after = machine.write(state, segment())
        faded = torch.sigmoid(torch.tensor(4.0)) * state.slots
        # what every other slot held has faded, by what the biases of the keep gate say in each place
        grown = (after.slots - faded).abs().amax(dim=-1)[0]
        written.append(int(grown.argmax()))
        state = after
    assert written == [0, 0, 1, 1, 2, 2, 0, 0]


def test_a_segment_of_padding_ends_no_turn() -> None:
    machine = turn_machine()
    state = machine.write(machine.initial_state(1), segment())
    after = machine.write(state, segment(real=False))
    assert torch.equal(after.slots, state.slots)
    assert after.read.tolist() == state.read.tolist() == [1]


def test_turns_begin_again_after_a_whole_round() -> None:
    machine = turn_machine()
    state = machine.write(TurnState(torch.zeros(1, K, D), torch.tensor([2 * K - 1])), segment())
    assert state.read.tolist() == [0]
    assert state.slots[0, K - 1].abs().max() > 10 * state.slots[0, :-1].abs().max()


def test_a_slot_starts_as_a_fading_sum_of_its_items() -> None:
    machine = turn_machine()
    first, second = segment(), segment()
    state = machine.write(machine.write(machine.initial_state(1), first), second)
    keep = torch.sigmoid(machine.writer.cell.bias_ih[D : 2 * D] + machine.writer.cell.bias_hh[D : 2 * D])
    one, two = (
        torch.tanh(0.5 * 0.3 * machine.encoder(each.items, each.mask).sum(dim=1))[0] for each in (first, second)
    )
    assert_close(state.slots[0, 0], keep * (1 - keep) * one + (1 - keep) * two)


def test_the_bonus_is_learned_and_where_it_is_nothing_scores_decide() -> None:
    machine = turn_machine(gain=0.0)
    stream = random_embedded(2, 5, 4, D)
    trace = machine.write_stream(machine.initial_state(2), stream)
    trace.memories[:, -1].square().sum().backward()
    assert machine.turn_gain.grad is not None
    assert machine.turn_gain.grad.abs() > 0
    plain = make_machine(replace(TURNS, machine=replace(TURNS.machine, turns=0)))
    plain.load_state_dict({k: v for k, v in machine.state_dict().items() if k != "turn_gain"})
    expected = plain.write_stream(plain.initial_state(2), stream)
    assert_close(trace.memories, expected.memories)
    assert_close(trace.figures["write_entropy"], expected.figures["write_entropy"])


def test_turns_of_less_than_no_segment_are_refused() -> None:
    with pytest.raises(BadInput, match="turns of -1 segments; give 1 or more, or 0 for no turns"):
        make_machine(with_machine(TURNS, turns=-1))


@pytest.mark.parametrize("turns", [0, 2])
def test_items_are_weighed_alike_at_first_and_by_what_is_learned_then(turns: int) -> None:
    machine = make_machine(with_machine(TURNS, weigh_items=True, turns=turns))
    assert machine.weigh is not None
    items, mask = torch.randn(2, 4, D), torch.ones(2, 4, dtype=torch.bool)
    assert_close(machine.features(items, mask), machine.encoder(items, mask))
    state = machine.initial_state(2)
    before = machine.memory(machine.write(state, Segment(items, mask)))
    machine.weigh.bias.data.fill_(-50.0)  # nothing is worth anything
    assert machine.features(items, mask).abs().max() < 1e-6
    after = machine.memory(machine.write(state, Segment(items, mask)))
    assert not torch.allclose(before, after)
    assert_close(after, machine.memory(machine.write(state, Segment(torch.randn(2, 4, D), mask))))
