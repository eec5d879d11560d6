from __future__ import annotations

import pytest
import torch
from layer_parts import assert_close, with_gradients
from torch import Tensor
from torch.nn import functional as F

import remem.ops.feed_forward as op
from remem.ops.feed_forward import feed_forward
from remem.ops.feed_forward.reference import reference
from remem.ops.paths import reference_only

BLOCK, LEAST = op._BLOCK, op._LEAST_ROWS


def make(rows: int, dim: int = 5, inner: int = 7, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, dim), (inner, dim), (inner,), (dim, inner), (dim,))
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every pass that is taken in blocks."""
    seen: list[int] = []
    plain = op._InBlocks.forward

    def forward(ctx: object, x: Tensor, *rest: Tensor) -> Tensor:
        seen.append(len(x))
        return plain(ctx, x, *rest)

    monkeypatch.setattr(op._InBlocks, "forward", staticmethod(forward))
    return seen


@pytest.mark.parametrize("rows", [LEAST + 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1], ids=str)
def test_blocks_of_rows_give_what_all_rows_at_once_do(rows: int, blocks: list[int]) -> None:
    leaves, grad = make(rows), torch.randn(rows, 5)
    for mine, true in zip(
        with_gradients(feed_forward, leaves, grad), with_gradients(reference, leaves, grad), strict=True
    ):
        torch.testing.assert_close(mine, true, rtol=1e-5, atol=1e-5 * max(1.0, float(true.abs().max())))
    assert blocks == [rows]


def test_buffers_that_hold_rubbish_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves, grad = make(BLOCK + 3), torch.randn(BLOCK + 3, 5)
    true = with_gradients(reference, leaves, grad)
    like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor: like(tensor).fill_(torch.nan))
    assert_close(with_gradients(feed_forward, leaves, grad), true)


def test_what_is_not_finite_stays_so(blocks: list[int]) -> None:
    x, *weights = make(BLOCK + 3)
    x[[1, -1], 2] = torch.nan
    out = feed_forward(x.requires_grad_(), *weights)
    assert out[[1, -1]].isnan().all()
    assert out[2:-1].isfinite().all()
    assert blocks == [BLOCK + 3]


def test_a_gradient_of_any_layout_and_an_input_of_any_shape_are_taken() -> None:
    x, *weights = make(2 * BLOCK)
    grad = torch.randn(5, 2 * BLOCK).t()
    flat = with_gradients(feed_forward, [x, *weights], grad)
    deep = with_gradients(feed_forward, [x.view(4, -1, 5), *weights], grad.reshape(4, -1, 5))
    assert all(torch.equal(a, b.view_as(a)) for a, b in zip(flat, deep, strict=True))


@pytest.mark.parametrize("rows", [BLOCK + 1, LEAST], ids=["blocks", "plain"])
def test_a_share_of_the_middle_is_dropped_and_has_no_gradient(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves, grad = make(rows, inner=8), torch.randn(rows, 5)
    kept = torch.rand(rows, 8) >= 0.3
    turn = iter(kept.split(BLOCK))
    monkeypatch.setattr(op, "draw_kept", lambda h, p: next(turn))
    monkeypatch.setattr("remem.ops.dropout.draw_kept", lambda h, p: kept)

    def true(x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor) -> Tensor:
        return F.linear(F.linear(x, inner, inner_bias).relu() * kept / 0.7, outer, outer_bias)

    mine = with_gradients(lambda *leaves: feed_forward(*leaves, 0.3), leaves, grad)
    assert_close(mine, with_gradients(true, leaves, grad))


def test_what_is_not_trained_and_what_is_small_goes_the_plain_way(blocks: list[int]) -> None:
    large, small = make(2 * BLOCK), make(LEAST)
    feed_forward(*large)  # nobody wants a gradient
    large[0].requires_grad_()
    small[0].requires_grad_()
    with torch.no_grad():
        assert torch.equal(feed_forward(*large), reference(*large))
    feed_forward(*small)
    with reference_only():
        feed_forward(*large)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert feed_forward(*large).dtype == torch.bfloat16
    assert blocks == []


def test_a_compiled_layer_takes_the_plain_way(blocks: list[int]) -> None:
    leaves, grad = make(BLOCK + 1), torch.randn(BLOCK + 1, 5)
    compiled = torch.compile(feed_forward, backend="aot_eager", fullgraph=True)
    assert_close(with_gradients(compiled, leaves, grad), with_gradients(reference, leaves, grad))
    assert blocks == []
