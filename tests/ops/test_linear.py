from __future__ import annotations

import pytest
import torch
from layer_parts import assert_close, with_gradients
from torch import Tensor
from torch.nn import functional as F

from remem.ops import linear as op
from remem.ops.linear import linear
from remem.ops.paths import reference_only

ROWS = op._LEAST_ROWS + 1


def make(rows: int, into: int = 5, out: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return [torch.randn(shape, generator=generator) for shape in ((rows, into), (out, into), (out,))]


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of what goes the fast way."""
    seen: list[tuple[int, ...]] = []
    plain = op.product
    monkeypatch.setattr(op, "product", lambda x, *rest, **how: seen.append(tuple(x.shape)) or plain(x, *rest, **how))
    return seen


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize(("rows", "into", "out"), [(ROWS, 5, 3), (2000, 1, 1), (777, 33, 130)])
def test_the_fast_way_equals_the_plain_one(
    rows: int, into: int, out: int, onednn: bool, monkeypatch: pytest.MonkeyPatch, products: list[tuple[int, ...]]
) -> None:
    if not onednn:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    leaves, grad = make(rows, into, out), torch.randn(out, rows).t()  # a gradient may lie in any order
    assert_close(with_gradients(linear, leaves, grad), with_gradients(F.linear, leaves, grad))
    assert products == [(rows, into), (rows, out)]


def test_an_input_of_any_shape_is_taken(products: list[tuple[int, ...]]) -> None:
    (x, *weights), grad = make(2 * ROWS), torch.randn(2 * ROWS, 3)
    flat = with_gradients(linear, [x, *weights], grad)
    deep = with_gradients(linear, [x.view(2, ROWS, 5), *weights], grad.view(2, ROWS, 3))
    assert all(torch.equal(a, b.view_as(a)) for a, b in zip(flat, deep, strict=True))
    assert len(products) == 4


def test_what_is_not_trained_and_what_is_small_goes_the_plain_way(products: list[tuple[int, ...]]) -> None:
    large, small = make(ROWS), make(ROWS - 1)
    linear(*large)  # nobody wants a gradient
    large[0].requires_grad_()
    small[0].requires_grad_()
    with torch.no_grad():
        assert torch.equal(linear(*large), F.linear(*large))
    linear(*small)
    with reference_only():
        linear(*large)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(*large).dtype == torch.bfloat16
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*large), F.linear(*large))
    assert products == []
