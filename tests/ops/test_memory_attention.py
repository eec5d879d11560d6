"""The kernels against PyTorch's own attention. Without a GPU, Triton's interpreter runs them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from remem.errors import BadInput
from remem.ops import memory_attention as package
from remem.ops.memory_attention import memory_attention
from remem.ops.memory_attention.reference import reference

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"

if not CUDA:
    # read when triton is first imported and when a kernel is defined, so before both; it stays, as triton imports parts
    # of itself later and refuses a mixture
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")
kernels = importlib.import_module("remem.ops.memory_attention.triton")

fused = torch.ops.remem.memory_attention
SIZES = [  # s, i, j, h, c
    (1, 1, 1, 1, 16),
    (3, 7, 20, 3, 16),
    (2, 132, 20, 4, 32),
    (1, 33, 16, 1, 32),
    (5, 31, 17, 2, 16),
    (2, 64, 32, 2, 64),
    (1, 40, 64, 1, 128),
    (2, 5, 33, 1, 32),
]


@pytest.fixture
def dirty_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors are full of NaN, which an element that no one writes would keep."""

    def dirty(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            return make(*args, **kwargs).fill_(float("nan"))

        return made

    monkeypatch.setattr(kernels.torch, "empty", dirty(torch.empty))


def make(s: int, i: int, j: int, h: int, c: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, and a gradient of the output."""
    generator = torch.Generator().manual_seed(s + i + j + h + c)
    shapes = (s, i, h, c), (s, j, 2, h, c), (s, i, h, c)
    q, kv, grad = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)
    return q, kv, grad


def with_gradients(attend: Callable[..., Tensor], q: Tensor, kv: Tensor, grad: Tensor) -> list[Tensor]:
    """The output, then the gradients of the queries and of keys and values."""
    leaves = [x.detach().requires_grad_() for x in (q, kv)]
    out = attend(*leaves)
    assert out.dtype == q.dtype
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def assert_alike(ours: list[Tensor], truth: list[Tensor], tolerance: float) -> None:
    for mine, true in zip(ours, truth, strict=True):
        torch.testing.assert_close(mine.float(), true.float(), rtol=tolerance, atol=tolerance)


def test_the_reference_is_the_formula() -> None:
    q, kv, _ = make(2, 5, 3, 2, 4, torch.float64)
    k, v = kv.unbind(2)
    out = torch.empty_like(q)
    for s in range(2):
        for h in range(2):
            weights = torch.softmax(q[s, :, h] @ k[s, :, h].T / 2.0, dim=-1)  # 2 is the root of c
            out[s, :, h] = weights @ v[s, :, h]
    torch.testing.assert_close(reference(q, kv), out)


@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_kernels_agree_with_the_reference(size: tuple[int, int, int, int, int]) -> None:
    q, kv, grad = make(*size)
    assert_alike(with_gradients(fused, q, kv, grad), with_gradients(reference, q, kv, grad), 1e-5)


@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_kernels_agree_in_16_bits(size: tuple[int, int, int, int, int]) -> None:
    q, kv, grad = make(*size, torch.bfloat16)
    truth = with_gradients(reference, q.float(), kv.float(), grad.float())
    assert_alike(with_gradients(fused, q, kv, grad), truth, 2e-2)


@pytest.mark.usefixtures("dirty_memory")
def test_views_are_read_where_they_lie() -> None:
    q = torch.randn(2, 5, 3, 16, device=DEVICE).permute(2, 1, 0, 3)  # heads outermost
    kv = torch.randn(3, 7, 2, 2, 32, device=DEVICE)[..., 3:19]  # not aligned
    for grad in (torch.randn(3, 5, 16, 2, device=DEVICE).mT, torch.ones((), device=DEVICE).expand(3, 5, 2, 16)):
        assert_alike(with_gradients(fused, q, kv, grad), with_gradients(reference, q, kv, grad), 1e-5)
    split = torch.randn(3, 7, 2, 16, 2, device=DEVICE).mT  # heads innermost, which is copied
    assert_alike(with_gradients(fused, q, split, q), with_gradients(reference, q, split, q), 1e-5)


@pytest.mark.usefixtures("dirty_memory")
def test_no_stream_touches_another() -> None:
    q, kv, grad = make(3, 40, 20, 2, 16)
    whole = with_gradients(fused, q, kv, grad)
    kv[1], q[1], grad[1] = 7.0, -3.0, float("nan")
    spoiled = with_gradients(fused, q, kv, grad)
    for mine, true in zip(spoiled, whole, strict=True):
        assert torch.equal(mine[[0, 2]], true[[0, 2]])


@pytest.mark.usefixtures("dirty_memory")
def test_no_streams_and_no_rows_are_no_error() -> None:
    q, kv, grad = make(2, 5, 20, 2, 16)
    assert [len(x) for x in with_gradients(fused, q[:0], kv[:0], grad[:0])] == [0, 0, 0]
    assert not with_gradients(fused, q[:, :0], kv, grad[:, :0])[2].any()  # a memory that no one asks


def test_the_operations_keep_torchs_promises() -> None:
    q, kv, grad = make(2, 3, 5, 2, 16)
    torch.library.opcheck(fused, (q.clone().requires_grad_(), kv.clone().requires_grad_()))
    torch.library.opcheck(torch.ops.remem.memory_attention_backward, (grad, q, kv))


def test_other_devices_and_sizes_take_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(j: int, c: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        return package._fits(torch.empty(1, j, 2, 1, c, dtype=dtype, device="meta"))

    assert fits(1, 16)
    assert fits(64, 128, torch.float32)
    assert not any([fits(0, 16), fits(65, 16), fits(10, 8), fits(10, 48), fits(10, 256)])
    assert not any([fits(10, 32, torch.float64), fits(10, 32, torch.float16)])

    monkeypatch.setattr(package, "_memory_attention", None)
    q, kv, _ = (x.cpu() for x in make(2, 10, 5, 2, 16))
    assert torch.equal(memory_attention(q, kv), reference(q, kv))


def test_what_does_not_match_is_refused() -> None:
    q, kv, _ = make(2, 10, 5, 2, 16)
    with pytest.raises(BadInput, match=r"torch.float32 and keys torch.bfloat16"):
        memory_attention(q, kv.bfloat16())
    for wrong in (kv[:1], kv[:, :, :1], kv[..., :8]):
        with pytest.raises(BadInput, match=r"\(2, 10, 2, 16\)"):
            memory_attention(q, wrong)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_it_compiles_and_is_captured_in_a_graph() -> None:
    q, kv, grad = make(256, 132, 20, 4, 32, torch.bfloat16)
    compiled = torch.compile(memory_attention, fullgraph=True)
    plain = with_gradients(memory_attention, q, kv, grad)
    assert_alike(with_gradients(compiled, q, kv, grad), plain, 0)

    graph = torch.cuda.CUDAGraph()
    out = torch.empty(0)
    with torch.cuda.graph(graph):
        out = fused(q, kv)
    q.copy_(q.flip(0))
    graph.replay()
    assert_alike([out], [fused(q, kv)], 0)
