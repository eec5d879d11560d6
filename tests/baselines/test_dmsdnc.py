"""DMSDNC: blocks are read through gates, marked for the reasoner, and what was read can be named."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remem.baselines.dmsdnc import DMSDNC, ReproductionHead, reproduction_loss
from remem.errors import BadInput
from remem.model.interface import EmbeddedStream

DIM, ITEMS = 6, 8


def assert_close(actual: Tensor, expected: object) -> None:
    target = expected if isinstance(expected, Tensor) else torch.tensor(expected)
    torch.testing.assert_close(actual, target.to(actual.dtype), rtol=1e-4, atol=1e-5)


def make_method(**options: Any) -> DMSDNC:
    return DMSDNC(**({"item_dim": DIM, "num_slots": 4, "num_reads": 2, "num_items": ITEMS} | options))


def stream_of(table: Tensor, b: int = 2, t: int = 2, n: int = 3) -> EmbeddedStream:
    """Random streams of the table's rows."""
    ids = torch.randint(len(table), (b * t, n))
    mask, segments = torch.ones(b * t, n, dtype=torch.bool), torch.ones(b, t, dtype=torch.bool)
    return EmbeddedStream(table[ids], mask, torch.arange(b * t).view(b, t), segments, ids=ids)


def test_the_heads_hand_out_one_unit_over_all_blocks() -> None:
    method = make_method(num_blocks=2)
    state: Any = method.write_stream(method.initial_state(2), stream_of(torch.randn(ITEMS, DIM))).state
    assert state.slots.shape == (2, 2, 2, DIM)
    assert_close(state.read_weights.sum(dim=(1, 3)), torch.ones(2, 2))
    shares = state.read_weights.sum(dim=3)  # [b, c, r]: what each block's gate let through
    assert ((shares > 0) & (shares < 1)).all()
    assert_close(state.reads, (state.read_weights @ state.slots).sum(dim=1).flatten(1))


def test_blocks_are_written_on_their_own() -> None:
    method = make_method(num_blocks=2)
    state: Any = method.write_stream(method.initial_state(2), stream_of(torch.randn(ITEMS, DIM))).state
    assert not torch.allclose(state.slots[:, 0], state.slots[:, 1])
    assert (state.write_weights.sum(dim=-1) <= 1 + 1e-5).all()


def test_the_reasoner_can_tell_equal_slots_of_two_blocks_apart() -> None:
    method = make_method(num_blocks=2)
    memory = method.memory(method.initial_state(1))
    assert memory.shape == (1, 4, DIM)
    assert torch.equal(memory[:, 0], memory[:, 1])
    assert not torch.allclose(memory[:, 1], memory[:, 2])
    assert method.cell.block_code is not None
    assert method.cell.block_code.requires_grad


def test_one_block_needs_no_gate_and_no_mark_and_slots_must_divide() -> None:
    assert make_method(num_blocks=1).cell.block_code is None
    with pytest.raises(BadInput, match="5 slots cannot be split over 2 blocks"):
        make_method(num_slots=5)


def test_the_loss_is_the_mean_cross_entropy_of_the_chosen_items() -> None:
    scores = torch.tensor([[[2.0, 0.0], [0.0, 0.0]], [[9.0, -9.0], [1.0, 3.0]]])
    ids = torch.tensor([[0, 1], [1, 1]])
    chosen = torch.tensor([[True, True], [False, True]])
    expected = (math.log(1 + math.exp(-2)) + math.log(2) + math.log(1 + math.exp(-2))) / 3
    assert_close(reproduction_loss(scores, ids, chosen), expected)
    assert reproduction_loss(scores, ids, torch.zeros(2, 2, dtype=torch.bool)) == 0


def test_dropout_is_on_the_controllers_side_only() -> None:
    head = ReproductionHead(input_dim=5, read_dim=4, num_items=3, dropout=1.0).train()
    with torch.no_grad():
        head.name.bias.zero_()
        head.name.weight.fill_(1.0)
        reads = torch.randn(2, 4)
        assert_close(head(torch.randn(2, 5), reads), reads.sum(dim=1, keepdim=True).expand(2, 3))


def test_a_head_that_knows_nothing_costs_log_n_and_one_that_knows_all_costs_nothing() -> None:
    method, table = make_method(reproduced=1.0, bypass_dropout=0.0, reproduction_weight=2.0), torch.randn(ITEMS, DIM)
    assert method.head is not None
    nn.init.zeros_(method.head.name.weight)
    nn.init.zeros_(method.head.name.bias)
    loss = method.write_stream(method.initial_state(2), stream_of(table)).losses["reproduction"]
    assert_close(loss, 2 * math.log(ITEMS))
    with torch.no_grad():
        method.head.name.bias[3] = 50.0
    stream = stream_of(table)
    assert stream.ids is not None
    named = stream._replace(ids=torch.full_like(stream.ids, 3))
    assert_close(method.write_stream(method.initial_state(2), named).losses["reproduction"], 0.0)
    wrong = stream._replace(ids=torch.full_like(stream.ids, 2))
    assert_close(method.write_stream(method.initial_state(2), wrong).losses["reproduction"], 2 * 50.0)


def test_only_real_items_are_chosen_about_one_in_ten() -> None:
    method, stream = make_method(bypass_dropout=0.0), stream_of(torch.randn(ITEMS, DIM), b=2, t=5, n=10)
    assert method.head is not None
    assert stream.ids is not None
    nn.init.zeros_(method.head.name.weight)
    with torch.no_grad():
        method.head.name.bias.copy_(torch.tensor([0.0] * (ITEMS - 1) + [30.0]))
    mask = stream.item_mask.clone()
    mask[:, 5:] = False
    # padding is the only thing the head does not name
    padded = stream._replace(item_mask=mask, ids=torch.where(mask, ITEMS - 1, 0))
    losses = [method.write_stream(method.initial_state(2), padded).losses["reproduction"] for _ in range(3)]
    assert max(losses) < 1e-6
    states, real = [method.initial_state(500)] * 20, torch.ones(20, 500, dtype=torch.bool)
    ids = torch.where(torch.arange(500) < 250, ITEMS - 1, 0).expand(20, 500)
    shares = torch.stack([method.observe(states, real, ids)[1]["reproduction"].detach() / 30 for _ in range(40)])
    # a mean over about 1000 of 10000 items, half of which cost 30, spreads by sqrt(0.25 / 1000 * 0.9)
    assert abs(float(shares.mean()) - 0.5) < 0.01
    assert 0.010 < float(shares.std()) < 0.022


def test_nothing_is_reproduced_outside_training_or_without_names_to_say() -> None:
    stream = stream_of(torch.randn(ITEMS, DIM))
    trained, without_head = make_method(), make_method(num_items=None)
    cases = [
        (trained.eval(), stream),
        (without_head.train(), stream),
        (make_method().train(), stream._replace(ids=None)),
    ]
    for method, given in cases:
        assert method.write_stream(method.initial_state(2), given).losses == {}
    assert "reproduction" in trained.train().write_stream(trained.initial_state(2), stream).losses
    assert without_head.head is None


def test_the_loss_falls_to_what_cannot_be_known() -> None:
    # eight items of which two at a time look alike: which of the two it was costs log 2 on average, and nothing else
    table = torch.randn(ITEMS // 2, DIM).repeat(2, 1)
    method = make_method(reproduced=1.0)
    optimizer, losses = torch.optim.Adam(method.parameters(), lr=0.02), []
    for _ in range(80):
        loss = method.write_stream(method.initial_state(32), stream_of(table, b=32, t=1, n=4)).losses["reproduction"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 1.9
    assert sum(losses[-10:]) / 10 == pytest.approx(math.log(2), abs=0.06)


def test_sizes_of_the_state_are_those_of_one_memory() -> None:
    k, d, r = 20, 128, 4
    state: Any = DMSDNC(item_dim=d, num_slots=k).initial_state(1)
    assert sum(part.numel() for part in state) == k * d + (r + 2) * k + r * d + 2 * d
    native: Any = DMSDNC(item_dim=64, num_slots=256, slot_dim=48, controller_dim=256).initial_state(1)
    assert native.slots.shape == (1, 2, 128, 48)
