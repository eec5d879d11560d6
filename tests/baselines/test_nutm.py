"""NUTM: programs are blended, told apart by their keys, and watched."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from remem.baselines.dnc import CommandLayout, DNCCell
from remem.baselines.nutm import NUTM, ProgramMemory, StoredPrograms
from remem.model.interface import EmbeddedStream, Trace

DIM = 6


def assert_close(actual: Tensor, expected: object) -> None:
    target = expected if isinstance(expected, Tensor) else torch.tensor(expected)
    torch.testing.assert_close(actual, target.to(actual.dtype), rtol=1e-4, atol=1e-5)


def make_memory(num_programs: int = 4) -> ProgramMemory:
    return ProgramMemory(input_dim=DIM, output_dim=5, num_programs=num_programs, key_dim=3, gain=1.0)


def trace_of(method: NUTM, mask: Tensor | None = None) -> Trace:
    mask = torch.ones(4, 3, dtype=torch.bool) if mask is None else mask
    stream = EmbeddedStream(torch.randn(4, 3, DIM), mask, torch.arange(4).view(2, 2), torch.ones(2, 2).bool())
    return method.write_stream(method.initial_state(2), stream)


def test_blending_results_is_executing_the_blended_program() -> None:
    memory, features = make_memory(), torch.randn(7, DIM)
    biases = memory.run.bias[:20].view(4, 5)
    weights = memory.weights(features)
    blended = torch.einsum("bp,pxh->bxh", weights, memory.programs)  # W_t, one for each row
    assert_close(memory(features), torch.einsum("bxh,bh->bx", blended, features) + weights @ biases)


def test_program_weights_are_a_softmax_of_cosines_with_a_strength() -> None:
    memory, features = make_memory(), torch.randn(7, DIM)
    query = features @ memory.run.weight[20:23].T + memory.run.bias[20:23]
    strength = F.softplus(features @ memory.run.weight[23] + memory.run.bias[23])
    cosine = F.cosine_similarity(query.tanh()[:, None], memory.keys.tanh()[None], dim=-1)
    weights = memory.weights(features)
    torch.testing.assert_close(weights, (strength[:, None] * cosine).softmax(dim=-1), rtol=1e-3, atol=1e-3)
    assert_close(weights.sum(dim=-1), torch.ones(7))


def test_a_single_program_is_a_plain_interface() -> None:
    layout = CommandLayout(DIM, 2, links=False)
    programs = StoredPrograms(input_dim=DIM, layout=layout, num_programs=1, key_dim=1)
    plain = torch.nn.Linear(DIM, layout.reading + layout.writing)
    with torch.no_grad():
        plain.weight.copy_(torch.cat([programs.reading.programs[0], programs.writing.programs[0]]))
        plain.bias.copy_(
            torch.cat([programs.reading.run.bias[: layout.reading], programs.writing.run.bias[: layout.writing]])
        )
    features = torch.randn(3, DIM)
    assert_close(programs(features), plain(features))
    sizes = {"item_dim": DIM, "num_slots": 4, "controller_dim": DIM, "layout": layout}
    stored, linear = DNCCell(**sizes, interface=programs), DNCCell(**sizes, interface=plain)
    linear.load_state_dict(
        {name: value for name, value in stored.state_dict().items() if not name.startswith("interface.")}, strict=False
    )
    inputs, real = torch.randn(3, 4 * DIM), torch.ones(3, dtype=torch.bool)
    for left, right in zip(
        stored(stored.initial_state(3), inputs, real), linear(linear.initial_state(3), inputs, real), strict=True
    ):
        assert_close(left, right)


def test_reading_and_writing_fields_come_from_their_own_programs() -> None:
    layout = CommandLayout(DIM, 2, links=False)
    programs = StoredPrograms(input_dim=DIM, layout=layout, num_programs=3, key_dim=3)
    features = torch.randn(5, DIM)
    before = layout.split(programs(features)[:, None])
    with torch.no_grad():
        programs.reading.run.weight.normal_()
    after = layout.split(programs(features)[:, None])
    for name, left, right in zip(before._fields, before, after, strict=True):
        if left is None or right is None:
            assert left is right
        elif name in ("read_keys", "read_strengths", "free_gates"):
            assert not torch.allclose(left, right), name
        else:
            assert torch.equal(left, right), name


def test_key_similarity_is_the_mean_cosine_over_the_pairs() -> None:
    memory = make_memory(3)
    with torch.no_grad():
        memory.keys.copy_(torch.ones(3, 3))
        assert_close(memory.key_similarity(), 1.0)
        memory.keys.copy_(5 * torch.eye(3))
        assert_close(memory.key_similarity(), 0.0)
        memory.keys.copy_(torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]))
        assert_close(memory.key_similarity(), (1 - 1 - 1) / 3)
    assert make_memory(1).key_similarity() == 0


def test_the_loss_on_the_keys_is_weighted_and_pushes_them_apart() -> None:
    method = NUTM(item_dim=DIM, num_slots=4, num_reads=2, key_loss_weight=0.1)
    memories = (method.programs.reading, method.programs.writing)
    optimizer = torch.optim.SGD([memory.keys for memory in memories], lr=5.0)
    losses = []
    for _ in range(30):
        loss = method.observe([method.initial_state(1)], torch.ones(1, 1, dtype=torch.bool), None)[1]["program_keys"]
        assert_close(loss, 0.1 * sum(memory.key_similarity() for memory in memories) / 2)
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # four directions cannot all be further apart than the corners of a tetrahedron
    assert -0.1 / 3 - 1e-4 <= losses[-1] < losses[0]
    assert losses[-1] < 0
    after = 0.1 * sum(memory.key_similarity() for memory in memories) / 2
    assert_close(trace_of(method).losses["program_keys"], after)


def test_program_entropy_tells_whether_one_program_does_everything() -> None:
    method = NUTM(item_dim=DIM, num_slots=4, num_reads=2)
    memories = (method.programs.reading, method.programs.writing)
    with torch.no_grad():
        for memory in memories:
            memory.keys.fill_(1.0)
        assert_close(trace_of(method).figures["program_entropy"], math.log(4))
        for memory in memories:
            # always the same question, asked as strongly as can be, and one key that answers it
            memory.run.weight[-5:] = 0.0
            memory.run.bias[-5:] = 20.0
            memory.keys.fill_(-1.0)
            memory.keys[2] = 1.0
        assert_close(trace_of(method).figures["program_entropy"], 0.0)


def test_program_entropy_leaves_padding_out() -> None:
    method = NUTM(item_dim=DIM, num_slots=4, num_reads=2)
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[2:] = False
    stream = EmbeddedStream(torch.randn(4, 3, DIM), mask, torch.arange(4).view(2, 2), torch.ones(2, 2).bool())
    both = method.write_stream(method.initial_state(2), stream).figures
    alone = stream._replace(order=stream.order[:1], segment_mask=stream.segment_mask[:1])
    only = method.write_stream(method.initial_state(1), alone).figures
    assert_close(both["program_entropy"], only["program_entropy"])
    assert_close(both["write_entropy"], only["write_entropy"])


def test_native_sizes_go_through_the_same_arguments() -> None:
    method = NUTM(item_dim=16, num_slots=12, slot_dim=8, controller_dim=10, num_reads=4, num_programs=4)
    state: Any = trace_of(NUTM(item_dim=DIM, num_slots=12, slot_dim=8, controller_dim=10)).state
    assert state.slots.shape == (2, 1, 12, 8)
    assert state.links.numel() == 0
    assert method.programs.reading.programs.shape == (4, 4 * 8 + 2 * 4, 10)
    assert method.programs.writing.programs.shape == (4, 3 * 8 + 3, 10)
    assert method.programs.reading.keys.shape == (4, 4)
    k, d, r = 20, 128, 4
    assert sum(p.numel() for p in NUTM(item_dim=d, num_slots=k).initial_state(1)) == k * d + (r + 2) * k + r * d + 2 * d
