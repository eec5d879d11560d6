"""STM's bound: what a segment can add, that short streams never meet it, and endless ones stay within it."""

from __future__ import annotations

import math
import os

import jaxtyping
import pytest
import torch
from stm_parts import D, E, K, N, R, assert_close, make_stm, random_stream

from remem.baselines.stm import STM
from remem.baselines.stm_cell import STMState

LONG_STREAM = int(os.environ.get("REMEM_LONG_STREAM", "3000"))  # 100000 takes a few minutes


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shape checks, which take several times as long as a step of this size."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def test_no_segment_adds_more_than_the_bound_counts_on() -> None:
    cell = STM(item_dim=D, num_slots=K, segment_len=N, width=E, num_queries=R, alpha2=1.0).cell
    for scale in (1e-3, 1.0, 1e3, 1e6):
        items, read, cue = scale * torch.randn(200, E, E), scale * torch.randn(200, E), torch.randn(200, E)
        assert cell.associate(items, read, cue).norm(dim=(2, 3)).max() <= math.sqrt(3.0) * R * E


@pytest.mark.usefixtures("_unchecked")
def test_on_streams_of_two_hundred_segments_the_bound_changes_nothing_by_a_bit() -> None:
    results = []
    for bounded_after in (1000, None):
        torch.manual_seed(1)
        stm, stream = make_stm(bounded_after=bounded_after), random_stream(2, 200, ragged=False)
        items = (3.0 * stream.items).requires_grad_()
        trace = stm.write_stream(stm.initial_state(2), stream._replace(items=items))
        trace.memories.square().mean().backward()
        results.append([*trace.state, trace.memories, items.grad, *(p.grad for p in stm.parameters())])
    for bounded, free in zip(*results, strict=True):
        assert torch.equal(bounded, free)


def test_a_relation_past_the_limit_is_scaled_back_to_it_and_the_others_are_left_alone() -> None:
    cell = make_stm(bounded_after=2).cell
    limit = 2 * math.sqrt(3.0) * R * E
    small, large = torch.randn(E, E), 100.0 * torch.randn(E, E)
    bounded = cell.bounded(torch.stack([small, large])[None])[0]
    assert torch.equal(bounded[0], small)
    assert_close(bounded[1], large * limit / large.norm())


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("bounded_after", [20, 1000])
def test_an_endless_stream_leaves_both_memories_finite_and_bounded(bounded_after: int) -> None:
    stm, chunk, highest = make_stm(bounded_after=bounded_after, width=6, num_queries=3), 100, 0.0
    limit = bounded_after * math.sqrt(3.0) * 3 * 6
    with torch.no_grad():
        state = stm.initial_state(2)
        for _ in range(LONG_STREAM // chunk):
            stream = random_stream(2, chunk, ragged=False)._replace(in_turn=True)
            trace = stm.write_stream(state, stream)
            state = STMState(*trace.state)
            highest = max(highest, state.relations.norm(dim=(2, 3)).max().item())
            assert state.relations.isfinite().all()
            assert trace.memories.isfinite().all()
            # |M^i| < max i / (1 - max f), and at these weights no gate is anywhere near one
            assert state.items.abs().max() < 10.0
    assert highest <= limit * (1 + 1e-5)
    if bounded_after == 20:
        assert highest > 0.99 * limit, "The bound was never met, so this test shows nothing."
