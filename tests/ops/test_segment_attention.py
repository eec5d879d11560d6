"""The kernels against the plain truth, and the truth against torch. Without a GPU, Triton's interpreter runs them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from remem.errors import BadInput
from remem.ops import segment_attention as package
from remem.ops.segment_attention import segment_attention
from remem.ops.segment_attention.reference import reference

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"

if not CUDA:
    # read when triton is first imported and when a kernel is defined, so before both; it stays, as triton imports parts
    # of itself later and refuses a mixture
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")
kernels = importlib.import_module("remem.ops.segment_attention.triton")

fused = torch.ops.remem.segment_attention
SIZES = [  # s, n, h, c
    (1, 1, 1, 16),
    (5, 3, 3, 16),
    (5, 10, 4, 32),
    (1, 15, 1, 32),
    (5, 16, 3, 16),
    (1, 17, 4, 32),
    (5, 31, 1, 16),
    (2, 11, 2, 64),
    (1, 32, 1, 128),
]


@pytest.fixture
def dirty_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors are full of NaN, which an element that no one writes would keep."""

    def dirty(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            tensor = make(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return made

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(kernels.torch, name, dirty(getattr(torch, name)))


def make(s: int, n: int, h: int, c: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """q, k and v as one projection, and a mask with some padding and at least one key in each row."""
    generator = torch.Generator().manual_seed(s + n + h + c)
    qkv = torch.randn(s, n, 3, h, c, generator=generator).to(DEVICE, dtype)
    mask = torch.rand(s, n, generator=generator) < 0.7
    mask[:, -1] |= ~mask.any(dim=1)
    return qkv, mask.to(DEVICE)


def with_gradients(attend: Callable[..., Tensor], qkv: Tensor, mask: Tensor, grad: Tensor) -> list[Tensor]:
    """The output, then the gradients of q, k and v."""
    leaf = qkv.detach().requires_grad_()
    out = attend(leaf, mask)
    assert out.dtype == qkv.dtype
    assert out.is_contiguous()
    (gradient,) = torch.autograd.grad(out, leaf, grad.to(out.dtype))
    return [out.detach(), *gradient.unbind(2)]


def assert_alike(ours: list[Tensor], truth: list[Tensor], tolerance: float) -> None:
    for mine, true in zip(ours, truth, strict=True):
        torch.testing.assert_close(mine.float(), true.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_reference_is_torchs_attention(dtype: torch.dtype) -> None:
    qkv, mask = make(5, 10, 4, 32, dtype)
    heads = (x.transpose(1, 2) for x in qkv.unbind(2))
    torchs = F.scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None]).transpose(1, 2)
    torch.testing.assert_close(reference(qkv, mask), torchs)


def test_the_references_gradients_are_those_of_its_output() -> None:
    qkv, mask = make(2, 3, 2, 4, torch.float64)
    mask[0] = False
    assert torch.autograd.gradcheck(lambda x: reference(x, mask), qkv.clone().requires_grad_())


@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_kernels_agree_with_the_reference(size: tuple[int, int, int, int]) -> None:
    qkv, mask = make(*size)
    grad = torch.randn_like(qkv[:, :, 0])
    truth = with_gradients(reference, qkv, mask, grad)
    assert_alike(with_gradients(fused, qkv, mask, grad), truth, 1e-5)


@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_kernels_agree_in_16_bits(size: tuple[int, int, int, int]) -> None:
    qkv, mask = make(*size, torch.bfloat16)
    grad = torch.randn_like(qkv[:, :, 0])
    truth = with_gradients(reference, qkv.float(), mask, grad.float())
    assert_alike(with_gradients(fused, qkv, mask, grad), truth, 2e-2)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # NumPy's, as the interpreter multiplies NaN
@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize("attend", [reference, fused], ids=["reference", "kernels"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_lies_at_hidden_keys_reaches_nothing(attend: Callable[..., Tensor], dtype: torch.dtype) -> None:
    qkv, mask = make(3, 10, 2, 16, dtype)
    assert not mask.all()
    hidden = ~mask[:, :, None, None]
    grad = torch.randn_like(qkv[:, :, 0])

    def filled(value: float) -> Tensor:
        q, k, v = qkv.unbind(2)
        return torch.stack([q, k.masked_fill(hidden, value), v.masked_fill(hidden, value)], dim=2)

    clean = with_gradients(attend, filled(0.0), mask, grad)
    for garbage in (float("nan"), float("inf")):
        spoiled = with_gradients(attend, filled(garbage), mask, grad)
        for mine, true in zip(spoiled, clean, strict=True):
            assert torch.equal(mine, true)
        for gradient in spoiled[2:]:
            assert not gradient.masked_select(hidden).any()


@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize("attend", [reference, fused], ids=["reference", "kernels"])
def test_a_segment_without_a_key_gives_zeros(attend: Callable[..., Tensor]) -> None:
    qkv, mask = make(3, 10, 2, 16)
    mask[2] = False
    whole = with_gradients(attend, qkv, mask, torch.ones_like(qkv[:, :, 0]))
    for values in whole:
        assert values.isfinite().all()
        assert not values[2].any()
        assert values[1].any()


@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize("view", ["heads outermost", "one head for all", "not aligned", "split"])
def test_views_are_read_where_they_lie(view: str) -> None:
    qkv = {
        "heads outermost": torch.randn(2, 5, 3, 3, 16, device=DEVICE).permute(2, 1, 3, 0, 4),
        "one head for all": torch.randn(3, 5, 3, 1, 16, device=DEVICE).expand(3, 5, 3, 2, 16),
        "not aligned": torch.randn(3, 5, 3, 2, 32, device=DEVICE)[..., 3:19],
        "split": torch.randn(3, 5, 3, 16, 2, device=DEVICE).mT,  # heads innermost, which is copied
    }[view]
    mask = (torch.arange(10, device=DEVICE) % 3 > 0).expand(3, 10)[:, ::2]
    grad = torch.randn(3, 5, 16, 2, device=DEVICE).transpose(2, 3)
    truth = with_gradients(reference, qkv, mask, grad)
    assert_alike(with_gradients(fused, qkv, mask, grad), truth, 1e-5)


@pytest.mark.usefixtures("dirty_memory")
def test_the_gradient_of_a_sum_is_taken() -> None:
    qkv, mask = make(2, 10, 2, 16)
    grad = torch.ones((), device=DEVICE).expand_as(qkv[:, :, 0])
    assert_alike(with_gradients(fused, qkv, mask, grad), with_gradients(reference, qkv, mask, grad), 1e-5)


def test_no_segments_are_no_error() -> None:
    qkv, mask = (x[:0] for x in make(1, 10, 2, 16))
    assert [tuple(x.shape) for x in with_gradients(fused, qkv, mask, qkv[:, :, 0])] == [(0, 10, 2, 16)] * 4


def test_the_gradient_comes_as_one_projection() -> None:
    qkv, mask = make(2, 3, 2, 16)
    leaf = qkv.requires_grad_()
    fused(leaf, mask).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.is_contiguous()
    assert leaf.grad.shape == (2, 3, 3, 2, 16)


def test_the_operations_keep_torchs_promises() -> None:
    qkv, mask = make(2, 3, 2, 16)
    torch.library.opcheck(fused, (qkv.clone().requires_grad_(), mask))
    torch.library.opcheck(torch.ops.remem.segment_attention_backward, (torch.ones_like(qkv[:, :, 0]), qkv, mask))


def test_other_devices_and_sizes_take_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(n: int, c: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        return package._fits(torch.empty(1, n, 3, 1, c, dtype=dtype, device="meta"))

    assert fits(1, 16)
    assert fits(32, 128, torch.float32)
    assert not any([fits(33, 16), fits(10, 8), fits(10, 48), fits(10, 256)])
    assert not any([fits(10, 32, torch.float64), fits(10, 32, torch.float16)])

    monkeypatch.setattr(package, "_segment_attention", None)
    qkv, mask = (x.cpu() for x in make(2, 10, 2, 16))
    assert torch.equal(segment_attention(qkv, mask), reference(qkv, mask))


def test_what_does_not_match_is_refused() -> None:
    qkv, mask = make(2, 10, 2, 16)
    with pytest.raises(BadInput, match=r"\(2, 10, 2, 2, 16\)"):
        segment_attention(qkv[:, :, :2], mask)
    with pytest.raises(BadInput, match=r"\(1, 10\)"):
        segment_attention(qkv, mask[:1])


def test_the_package_does_without_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import remem.ops.segment_attention as a; print(a.HAS_TRITON)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_it_compiles_and_is_captured_in_a_graph() -> None:
    qkv, mask = make(300, 10, 4, 32, torch.bfloat16)
    grad = torch.randn_like(qkv[:, :, 0])
    compiled = torch.compile(segment_attention, fullgraph=True)
    plain = with_gradients(segment_attention, qkv, mask, grad)
    assert_alike(with_gradients(compiled, qkv, mask, grad), plain, 0)

    graph = torch.cuda.CUDAGraph()
    out = torch.empty(0)
    with torch.cuda.graph(graph):
        out = fused(qkv, mask)
    qkv.copy_(qkv.flip(0))
    graph.replay()
    assert_alike([out], [fused(qkv, mask)], 0)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device with 7 GB")
def test_offsets_beyond_32_bits_are_reached() -> None:
    stride = 2**30
    store = torch.zeros(3 * stride + 10 * 96, dtype=torch.bfloat16, device="cuda")
    qkv = store.as_strided((4, 10, 3, 2, 16), (stride, 96, 32, 16, 1))
    qkv.copy_(torch.randn_like(qkv))
    mask = torch.ones(4, 10, dtype=torch.bool, device="cuda")
    grad = torch.randn_like(qkv[:, :, 0])
    truth = with_gradients(reference, qkv.float(), mask, grad.float())
    assert_alike(with_gradients(fused, qkv, mask, grad), truth, 2e-2)
