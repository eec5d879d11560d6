"""Attention in C against the plain truth: output and gradient, padding, and who takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from remem.model.transformer import MultiHeadAttention
from remem.ops.paths import reference_only
from remem.ops.segment_attention import native
from remem.ops.segment_attention.reference import reference

pytestmark = pytest.mark.skipif(native.library(native.SOURCE) is None, reason="there is no C compiler")
SIZES = [(1, 1, 1, 1), (5, 3, 3, 16), (5, 10, 4, 32), (3, 17, 2, 20), (2, 31, 1, 33), (2, 32, 1, 128)]  # s, n, h, c


def make(s: int, n: int, h: int, c: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(s + n + h + c)
    mask = torch.rand(s, n, generator=generator) < 0.7
    mask[:, -1] |= ~mask.any(dim=1)
    return torch.randn(s, n, 3, h, c, generator=generator), mask


def plain(qkv: Tensor, mask: Tensor) -> Tensor:
    return reference(qkv, mask)


def with_gradient(attend: Any, qkv: Tensor, mask: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    leaf = qkv.detach().clone().requires_grad_()
    out = attend(leaf, mask)
    return out.detach(), torch.autograd.grad(out, leaf, grad.to(out.dtype))[0]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_it_equals_the_reference_in_float64(size: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    qkv, mask = make(*size)
    grad = torch.randn(qkv.shape[0], qkv.shape[1], *qkv.shape[3:])
    truth = with_gradient(plain, qkv.double(), mask, grad)
    new_empty, empty_like = Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **options: new_empty(*args, **options).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **options: empty_like(*args, **options).fill_(torch.nan))
    for ours, true in zip(with_gradient(native.segment_attention_cpu, qkv, mask, grad), truth, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-5, atol=1e-5)


def test_what_lies_at_hidden_keys_reaches_nothing_and_a_segment_of_them_gives_zeros() -> None:
    qkv, mask = make(4, 10, 2, 16)
    mask[2] = False
    grad = torch.randn(4, 10, 2, 16)
    clean = with_gradient(native.segment_attention_cpu, qkv, mask, grad)
    spoilt = qkv.clone()
    spoilt[:, :, 1:] = spoilt[:, :, 1:].masked_fill(~mask[:, :, None, None, None], torch.nan)
    for ours, true in zip(with_gradient(native.segment_attention_cpu, spoilt, mask, grad), clean, strict=True):
        assert torch.equal(ours, true)
        assert not ours[2].any()
        assert ours[1].any()


def test_a_nan_at_a_key_that_counts_shows() -> None:
    qkv, mask = make(2, 5, 1, 8)
    mask[:] = True
    qkv[0, 3, 1] = torch.nan
    out = native.segment_attention_cpu(qkv, mask)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


def test_it_is_taken_while_training_alone() -> None:
    layer, items, mask = MultiHeadAttention(dim=16, num_heads=2), torch.randn(3, 5, 16), torch.ones(3, 5).bool()
    assert "segment_attention_cpu" in _graph(layer.within(items, mask))
    with reference_only():
        assert "segment_attention_cpu" not in _graph(layer.within(items, mask))
    assert not native.fits(layer._heads(items, layer.query, layer.key, layer.value).detach())
    with torch.no_grad():
        assert not native.fits(layer._heads(items, layer.query, layer.key, layer.value))


def _graph(tensor: Tensor) -> str:
    names, open_nodes = [], [tensor.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is not None:
            names.append(node.name())
            open_nodes += [below for below, _ in node.next_functions]
    return " ".join(names)
