from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from builders import PAPER, RM, assert_close, between, make_machine, random_embedded, take_streams, with_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from remem.data.batch import Segment
from remem.model.interface import EmbeddedStream
from remem.model.machine import MemoryMachine, SlotState
from remem.settings.model import MachineSettings, ModelSettings, rm_improvements

KINDS = {"rm-paper": PAPER, "rm": RM, "rm with a gru encoder": with_encoder(RM, "gru")}
D = PAPER.item_dim


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def machine(request: pytest.FixtureRequest) -> MemoryMachine:
    return make_machine(request.param)


def memories(machine: MemoryMachine, stream: EmbeddedStream) -> Tensor:
    return machine.write_stream(machine.initial_state(len(stream.order)), stream).memories


def segment_at(stream: EmbeddedStream, t: int) -> Segment:
    rows = stream.order[:, t]
    return Segment(stream.items[rows], stream.item_mask[rows] & stream.segment_mask[:, t, None])


def real_items(stream: EmbeddedStream) -> Tensor:
    return stream.item_mask[stream.order] & stream.segment_mask[..., None]


def test_the_first_memory_is_the_same_for_every_stream_and_different_for_every_slot(machine: MemoryMachine) -> None:
    assert dict(machine.named_parameters())["first_slots"] is machine.first_slots  # learned
    slots = machine.memory(machine.initial_state(3))
    assert slots.shape == (3, 3, D)
    assert torch.equal(slots[0], slots[1])
    assert (torch.cdist(slots[0], slots[0]) + torch.eye(3) > 0.1).all()


def test_writing_segment_by_segment_is_writing_the_stream(machine: MemoryMachine) -> None:
    stream = random_embedded(3, 5, 4, D)
    trace = machine.write_stream(machine.initial_state(3), stream)
    state = machine.initial_state(3)
    for t in range(5):
        assert_close(trace.memories[:, t], machine.memory(state))
        state = machine.write(state, segment_at(stream, t))
    assert_close(trace.memories[:, 5], machine.memory(state))
    assert_close(machine.memory(SlotState(*trace.state)), machine.memory(state))


def test_a_segment_is_written_by_encoder_and_writer(machine: MemoryMachine) -> None:
    segment = segment_at(random_embedded(2, 1, 4, D), 0)
    state = machine.initial_state(2)
    features = machine.encoder(segment.items, segment.mask)
    slots, _ = machine.writer(state.slots, features, segment.mask)
    assert_close(machine.write(state, segment).slots, slots)


def test_writing_leaves_the_old_state_alone(machine: MemoryMachine) -> None:
    stream = random_embedded(2, 3, 4, D)
    state = machine.write(machine.initial_state(2), segment_at(stream, 0))
    before = state.slots.clone()
    machine.write(state, segment_at(stream, 1))
    machine.write_stream(state, stream)
    assert torch.equal(state.slots, before)


@pytest.mark.parametrize("cuts", [[0, 6], [0, 1, 6], [0, 2, 3, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_any_chunking_gives_the_same_memory(machine: MemoryMachine, cuts: list[int]) -> None:
    stream = random_embedded(3, 6, 4, D)
    whole, state = memories(machine, stream), machine.initial_state(3)
    for start, stop in pairwise(cuts):
        trace = machine.write_stream(state, between(stream, start, stop))
        assert_close(trace.memories, whole[:, start : stop + 1])
        state = SlotState(*trace.state)
    assert_close(state.slots, whole[:, -1])


def test_padded_items_change_nothing(machine: MemoryMachine) -> None:
    stream = random_embedded(3, 5, 4, D)
    garbage = torch.where(stream.item_mask[..., None], stream.items, 100.0 * torch.randn_like(stream.items))
    assert_close(memories(machine, stream._replace(items=garbage)), memories(machine, stream))


def test_padded_segments_leave_the_memory_as_it_was_to_the_last_bit(machine: MemoryMachine) -> None:
    stream = random_embedded(2, 4, 4, D, ragged=False)
    # stream 0 pauses in the middle, stream 1 ends early; the rows they point to hold real items
    segment_mask = torch.tensor([[True, False, True, True], [True, True, False, False]])
    after = memories(machine, stream._replace(segment_mask=segment_mask))
    for b, t in (~segment_mask).nonzero().tolist():
        assert torch.equal(after[b, t + 1], after[b, t])
    for b, t in segment_mask.nonzero().tolist():
        assert not torch.equal(after[b, t + 1], after[b, t])


def test_a_padded_segment_in_the_middle_is_as_if_it_were_not_there(machine: MemoryMachine) -> None:
    stream = random_embedded(2, 3, 4, D, ragged=False)
    paused = stream._replace(segment_mask=torch.tensor([[True, False, True]] * 2))
    left_out = stream._replace(order=stream.order[:, [0, 2]], segment_mask=stream.segment_mask[:, [0, 2]])
    assert_close(memories(machine, paused)[:, -1], memories(machine, left_out)[:, -1])


def test_appended_padded_segments_change_nothing(machine: MemoryMachine) -> None:
    stream = random_embedded(3, 4, 4, D)
    order = torch.cat([stream.order, torch.randint(len(stream.items), (3, 2))], dim=1)
    longer = stream._replace(order=order, segment_mask=torch.nn.functional.pad(stream.segment_mask, (0, 2)))
    before, after = memories(machine, stream), memories(machine, longer)
    assert_close(after[:, :5], before)
    assert torch.equal(after[:, 5], after[:, 4])
    assert torch.equal(after[:, 6], after[:, 4])


def test_a_written_segment_of_padding_keeps_the_state_to_the_last_bit(machine: MemoryMachine) -> None:
    stream = random_embedded(2, 2, 4, D)
    state = machine.write(machine.initial_state(2), segment_at(stream, 0))
    mask = torch.tensor([[False] * 4, [True] * 4])
    after = machine.write(state, Segment(torch.randn(2, 4, D), mask))
    assert torch.equal(after.slots[0], state.slots[0])
    assert not torch.equal(after.slots[1], state.slots[1])


def test_permuting_the_batch_permutes_the_result(machine: MemoryMachine) -> None:
    stream, rows = random_embedded(4, 5, 4, D), torch.tensor([2, 0, 3, 1])
    assert_close(memories(machine, take_streams(stream, rows)), memories(machine, stream)[rows])


def test_a_stream_alone_has_the_memory_it_has_among_others(machine: MemoryMachine) -> None:
    stream = random_embedded(4, 5, 4, D)
    for row in range(4):
        alone = memories(machine, take_streams(stream, torch.tensor([row])))
        assert_close(alone[0], memories(machine, stream)[row])


def test_changing_one_stream_never_changes_anothers_memory(machine: MemoryMachine) -> None:
    stream = random_embedded(3, 5, 4, D)
    items = stream.items.clone()
    items[stream.order[0]] = torch.randn(5, 4, D)
    before, after = memories(machine, stream), memories(machine, stream._replace(items=items))
    assert_close(after[1:], before[1:])
    assert not torch.allclose(after[0, 1:], before[0, 1:])


def test_no_gradient_flows_from_one_stream_to_another(machine: MemoryMachine) -> None:
    stream = random_embedded(3, 5, 4, D)
    items = stream.items.requires_grad_()
    memories(machine, stream)[1].sum().backward()
    assert items.grad is not None
    assert (items.grad[stream.order[[0, 2]]] == 0).all()
    assert items.grad[stream.order[1, 0]].norm() > 0


def test_shared_rows_give_the_memory_of_repeated_rows(machine: MemoryMachine) -> None:
    table = random_embedded(1, 4, 4, D)
    order = torch.tensor([[0, 1, 0, 3], [3, 3, 2, 0], [2, 1, 0, 0]])
    mask = torch.tensor([[True] * 4, [True] * 4, [True, True, False, False]])
    shared = EmbeddedStream(table.items, table.item_mask, order, mask)
    repeated = EmbeddedStream(
        table.items[order.flatten()], table.item_mask[order.flatten()], torch.arange(12).view(3, 4), mask
    )
    assert_close(memories(machine, shared), memories(machine, repeated))


def test_the_order_of_segments_matters(machine: MemoryMachine) -> None:
    stream = random_embedded(2, 4, 4, D, ragged=False)
    turned = stream._replace(order=stream.order.flip(1))
    assert (memories(machine, turned)[:, -1] - memories(machine, stream)[:, -1]).abs().max() > 1e-3


def test_the_gradient_reaches_the_first_of_twenty_segments(machine: MemoryMachine) -> None:
    stream = random_embedded(2, 20, 4, D, ragged=False)
    items = stream.items.requires_grad_()
    trace = machine.write_stream(machine.initial_state(2), stream)
    (trace.memories[:, -1] * torch.randn(2, 3, D)).sum().backward()
    assert items.grad is not None
    assert items.grad.isfinite().all()
    assert (items.grad[stream.order[:, 0]].norm(dim=-1) > 0).all()


def test_gradients_do_not_depend_on_how_the_stream_was_written(machine: MemoryMachine) -> None:
    stream, weights = random_embedded(2, 4, 4, D), torch.randn(2, 3, D)
    wanted = [stream.items.requires_grad_(), *machine.parameters()]
    whole = torch.autograd.grad((memories(machine, stream)[:, -1] * weights).sum(), wanted)
    state = machine.initial_state(2)
    for t in range(4):
        state = machine.write(state, segment_at(stream, t))
    for one_by_one, at_once in zip(torch.autograd.grad((state.slots * weights).sum(), wanted), whole, strict=True):
        # the scan on a CPU has an exponential of its own, and what it rounds adds up over four segments
        torch.testing.assert_close(one_by_one, at_once, rtol=1e-4, atol=1e-5)


def test_padded_items_receive_no_gradient(machine: MemoryMachine) -> None:
    stream = random_embedded(3, 4, 4, D)
    items = stream.items.requires_grad_()
    memories(machine, stream)[:, -1].sum().backward()
    assert items.grad is not None
    assert items.grad.isfinite().all()
    assert (items.grad[~stream.item_mask] == 0).all()


def test_write_entropy_is_the_mean_over_real_items_of_their_assignments_entropy(machine: MemoryMachine) -> None:
    stream = random_embedded(3, 4, 4, D)
    state, total = machine.initial_state(3), 0.0
    for t in range(4):
        segment = segment_at(stream, t)
        features = machine.encoder(segment.items, segment.mask)
        _, assignment = machine.writer(state.slots, features, segment.mask)
        for b, n in segment.mask.nonzero().tolist():
            total -= sum(p * math.log(p) for p in assignment[b, :, n].tolist())
        state = machine.write(state, segment)
    entropy = machine.write_stream(machine.initial_state(3), stream).figures["write_entropy"]
    assert_close(entropy, total / int(real_items(stream).sum()))
    assert not entropy.requires_grad


def test_write_entropy_is_log_k_where_items_are_spread_evenly() -> None:
    machine = make_machine(PAPER)
    torch.nn.init.zeros_(machine.writer.attention.score.weight)
    assert_close(
        machine.write_stream(machine.initial_state(2), random_embedded(2, 3, 4, D)).figures["write_entropy"],
        math.log(3),
    )


shapes = {
    "b": st.integers(1, 3),
    "t": st.integers(1, 5),
    "n": st.integers(1, 4),
    "k": st.integers(1, 4),
    "d": st.sampled_from([4, 6, 8]),
    "kind": st.sampled_from(["transformer", "gru"]),
    "seed": st.integers(0, 999),
}


def sized_machine(n: int, k: int, d: int, kind: str) -> MemoryMachine:
    machine = MachineSettings(num_slots=k, encoder=kind, encoder_layers=1, num_heads=2)  # type: ignore[arg-type]
    return make_machine(rm_improvements(ModelSettings(item_dim=d, model_dim=5, machine=machine)), n)


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(0, 100), **shapes)
def test_a_stream_of_any_shape_may_be_cut_anywhere(
    b: int, t: int, n: int, k: int, d: int, kind: str, seed: int, cut: int
) -> None:
    torch.manual_seed(seed)
    machine, stream = sized_machine(n, k, d, kind), random_embedded(b, t, n, d)
    cut = min(1 + cut % t, t - 1) if t > 1 else 1
    whole = memories(machine, stream)
    first = machine.write_stream(machine.initial_state(b), between(stream, 0, cut))
    assert_close(first.memories, whole[:, : cut + 1])
    state = SlotState(*first.state)
    for step in range(cut, t):
        state = machine.write(state, segment_at(stream, step))
    assert_close(machine.memory(state), whole[:, -1])


@settings(max_examples=25, deadline=None)
@given(more_items=st.integers(0, 2), more_segments=st.integers(0, 2), **shapes)
def test_padding_of_any_shape_changes_nothing(
    b: int, t: int, n: int, k: int, d: int, kind: str, seed: int, more_items: int, more_segments: int
) -> None:
    torch.manual_seed(seed)
    machine, stream = sized_machine(n + more_items, k, d, kind), random_embedded(b, t, n, d)
    pad = torch.nn.functional.pad
    items = torch.where(stream.item_mask[..., None], stream.items, 10.0 * torch.randn_like(stream.items))
    padded = EmbeddedStream(
        torch.cat([items, 10.0 * torch.randn(len(items), more_items, d)], dim=1),
        pad(stream.item_mask, (0, more_items)),
        torch.cat([stream.order, torch.randint(len(items), (b, more_segments))], dim=1),
        pad(stream.segment_mask, (0, more_segments)),
    )
    before, after = memories(machine, stream), memories(machine, padded)
    assert_close(after[:, : t + 1], before)
    assert_close(after[:, -1], before[:, -1])


def test_a_stream_without_segments_leaves_the_memory_as_it_was() -> None:
    machine = make_machine()
    state = machine.initial_state(2)
    trace = machine.write_stream(state, between(random_embedded(2, 3, 4, 8), 0, 0))
    assert torch.equal(trace.memories, state.slots[:, None])
    assert trace.figures["write_entropy"] == 0
