from __future__ import annotations

import pytest
import torch
from torch import nn

from remem.ops.dropout import Dropout, draw_kept, dropout
from remem.ops.paths import reference_only


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.99])
def test_the_share_that_is_dropped_is_the_one_asked_for(p: float) -> None:
    torch.manual_seed(0)
    kept = draw_kept(torch.empty(1000, 1001), p)
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=3e-3)
    # numbers that are decided by the same draw, and by the next, are decided apart
    for apart in (1, 2, 3, 4, 1001):
        both = kept.flatten()[:-apart] & kept.flatten()[apart:]
        assert both.float().mean().item() == pytest.approx((1 - p) ** 2, abs=4e-3)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (2, 0)])
def test_what_stays_is_divided_by_its_share_and_so_is_its_gradient(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, requires_grad=True)
    torch.manual_seed(1)
    out = dropout(x, 0.5)
    torch.manual_seed(1)
    kept = draw_kept(x, 0.5)
    assert torch.equal(out, x.detach() * kept * 2)
    grad = torch.randn(shape)
    (mine,) = torch.autograd.grad(out, x, grad)
    assert torch.equal(mine, grad * kept * 2)


def test_a_tensor_of_any_layout_is_taken() -> None:
    x = torch.randn(6, 4).t().requires_grad_()
    out = dropout(x, 0.25)
    assert ((out == 0) | torch.isclose(out, x / 0.75)).all()


def test_nothing_is_dropped_outside_training_or_at_a_share_of_zero() -> None:
    x, layer = torch.randn(100), Dropout(0.5)
    assert layer.eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert not torch.equal(layer.train()(x), x)


def test_a_seed_fixes_what_is_dropped_and_the_plain_way_is_torchs() -> None:
    x = torch.randn(1000)
    torch.manual_seed(3)
    first = dropout(x, 0.2)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.2), first)
    torch.manual_seed(3)
    plain = nn.Dropout(0.2)(x)
    torch.manual_seed(3)
    with reference_only():
        assert torch.equal(dropout(x, 0.2), plain)
