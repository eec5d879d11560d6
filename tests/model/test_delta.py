"""Slots that take what they lack: the delta rule, item by item and all at once, and what it lets the slots tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import RM, TEXT_CODEC, assert_close, between, random_embedded
from torch import Tensor

from remem.build import build_memory_model
from remem.checks.memorizer import check_memorizer
from remem.data.batch import Segment
from remem.data.codec import ClickCodec
from remem.errors import BadInput
from remem.model.delta import DeltaMachine, held
from remem.settings.model import DeltaSettings, with_machine

D, K = 16, 4
CODEC = ClickCodec(segment_len=4, num_items=30)
DELTA = replace(RM, machine=DeltaSettings(num_slots=K), reasoner=replace(RM.reasoner, match_items=True))


def machine(keep_bias: float = 50.0) -> DeltaMachine:
    """One that forgets nothing."""
    torch.manual_seed(0)
    return DeltaMachine(item_dim=D, num_slots=K, keep_bias=keep_bias).eval()


def segment(items: Tensor) -> Segment:
    return Segment(items[None], torch.ones(1, len(items), dtype=torch.bool))


def test_items_of_a_segment_are_written_one_after_another_by_the_delta_rule() -> None:
    memory, items = machine(keep_bias=1.0), torch.randn(5, D)
    slots = torch.randn(1, K, D)
    after = memory.write(memory.initial_state(1)._replace(slots=slots), segment(items)).slots
    expected = torch.sigmoid(torch.tensor(1.0)) * slots[0]
    for item in items:
        x = item / item.norm()
        share = (memory.addresses.directions @ x).square().softmax(dim=0)
        share = share / share.norm()
        held_of_it = (share * (expected @ x)).sum()
        expected = expected + share[:, None] * (1 - held_of_it) * x
    assert_close(after[0], expected)


def test_what_is_held_is_not_written_again() -> None:
    memory, items = machine(), torch.randn(3, D)
    once = memory.write(memory.initial_state(1), segment(items[:1]))
    assert_close(held(once.slots, memory.addresses(items[None, :1])), [[1.0]])
    often = memory.write(once, segment(items[[0, 0, 0]]))
    assert_close(often.slots, once.slots)
    # and other items, which were never written, are not held
    assert held(once.slots, memory.addresses(items[None, 1:])).abs().max() < 0.6


def test_streams_of_no_segment_leave_the_slots_as_they_start() -> None:
    memory = machine()
    start = memory.initial_state(2)
    trace = memory.write_stream(start, between(random_embedded(2, 5, 4, D), 0, 0))
    assert_close(trace.memories, start.slots[:, None])
    assert trace.figures["new_share"] == 0.0


def test_an_item_of_long_ago_is_known_among_many_that_came_often() -> None:
    torch.manual_seed(0)
    memory = DeltaMachine(item_dim=64, num_slots=20, keep_bias=50.0)
    table = torch.randn(160, 64)
    state = memory.initial_state(1)
    for number in range(80):  # eighty items, and the first five after each of them
        state = memory.write(state, segment(table[[number, 0, 1, 2, 3, 4]]))
    told = held(state.slots, memory.addresses(table[None]))[0]
    assert (told[:80, None] > told[80:]).float().mean() > 0.98  # of a sum of all that came, 0.68 to 0.84


def test_slots_tell_what_was_met_and_not_in_which_order() -> None:
    memory, items = machine(), torch.eye(D)[:6]
    states = [
        memory.write(memory.write(memory.initial_state(1), segment(items[first])), segment(items[then]))
        for first, then in (([0, 1, 2], [3, 4, 5]), ([5, 3, 1], [4, 0, 2]))
    ]
    assert_close(states[0].slots, states[1].slots)


def test_the_contract_holds_and_every_weight_is_trained() -> None:
    memory = machine(keep_bias=3.0)
    check_memorizer(memory, D)  # type: ignore[arg-type]
    trace = memory.write_stream(memory.initial_state(2), random_embedded(2, 5, 4, D))
    trace.memories[:, -1].square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in memory.parameters())
    assert 0 < trace.figures["new_share"] <= 1.5


def test_sixteen_bits_elsewhere_leave_the_slots_in_thirty_two() -> None:
    memory, stream = machine(), random_embedded(2, 5, 4, D)
    expected = memory.write_stream(memory.initial_state(2), stream).memories
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = memory.write_stream(memory.initial_state(2), stream).memories
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, expected)


def test_a_target_that_was_met_is_likelier_before_anything_is_learned() -> None:
    torch.manual_seed(0)
    model = build_memory_model(replace(DELTA, item_dim=32, model_dim=32), CODEC).eval()
    state = model.initial_state(1)
    for items in ([3, 5, 7, 5], [9, 11, 5, 5]):
        state = model.write(state, torch.tensor([items]), torch.ones(1, 4, dtype=torch.bool))
    asked = torch.arange(30)[:, None]
    slots = model.memory_method.memory(state).expand(30, -1, -1)
    logits = model.answer(slots, asked, torch.ones_like(asked, dtype=torch.bool)).scores[:, 0]
    assert set(logits.topk(5).indices.tolist()) == {3, 5, 7, 9, 11}


def test_slots_that_can_not_tell_and_questions_that_are_no_items_are_refused() -> None:
    match = replace(RM.reasoner, match_items=True)
    with pytest.raises(BadInput, match=r"those of a MemoryMachine can't tell. Take a method such as rm-delta"):
        build_memory_model(replace(RM, reasoner=match), CODEC)
    with pytest.raises(BadInput, match="for tasks whose questions are items"):
        build_memory_model(DELTA, TEXT_CODEC)


def test_its_settings_are_its_own() -> None:
    assert with_machine(DELTA, num_slots=7).machine == DeltaSettings(num_slots=7)
