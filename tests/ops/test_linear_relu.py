from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from layer_parts import with_gradients
from torch import Tensor

from remem.ops.linear_relu import linear_relu
from remem.ops.linear_relu.reference import reference

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
fused = torch.ops.remem.linear_relu


def make(s: int, i: int, o: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(s + i + o)
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in ((s, i), (o, i), (o,))]


@pytest.mark.parametrize("size", [(1, 1, 1), (7, 5, 3), (0, 4, 2), (33, 16, 64)], ids=str)
def test_the_fast_way_equals_the_plain_one(size: tuple[int, int, int]) -> None:
    leaves, grad = make(*size), torch.randn(size[0], size[2], device=DEVICE)
    for mine, true in zip(with_gradients(fused, leaves, grad), with_gradients(reference, leaves, grad), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-5, atol=1e-5)


def test_the_fast_way_equals_the_plain_one_in_16_bits() -> None:
    leaves, grad = make(33, 16, 64, torch.bfloat16), torch.randn(33, 64, device=DEVICE)
    wide = [leaf.float() for leaf in leaves]
    for mine, true in zip(with_gradients(fused, leaves, grad), with_gradients(reference, wide, grad), strict=True):
        torch.testing.assert_close(mine.float(), true, rtol=2e-2, atol=2e-2 * float(true.abs().max()))


def test_autocast_rounds_what_goes_in_and_gradients_come_out_in_float32() -> None:
    leaves, grad = make(9, 8, 4), torch.randn(9, 4, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        mine, true = with_gradients(fused, leaves, grad), with_gradients(reference, leaves, grad)
    assert [x.dtype for x in mine] == [torch.bfloat16, torch.float32, torch.float32, torch.float32]
    for a, b in zip(mine, true, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_the_gradient_at_zero_is_that_of_relu() -> None:
    leaves, grad = [torch.zeros(2, 3), torch.ones(4, 3), torch.zeros(4)], torch.ones(2, 4)
    for mine, true in zip(with_gradients(fused, leaves, grad), with_gradients(reference, leaves, grad), strict=True):
        assert torch.equal(mine, true)


def test_the_operation_keeps_torchs_promises() -> None:
    torch.library.opcheck(fused, tuple(x.requires_grad_() for x in make(3, 4, 2)))


def test_any_number_of_dimensions_is_taken() -> None:
    x, weight, bias = make(24, 5, 3)
    assert torch.equal(linear_relu(x.view(2, 3, 4, 5), weight, bias), linear_relu(x, weight, bias).view(2, 3, 4, 3))


def test_it_is_one_node_of_a_compiled_graph_under_autocast() -> None:
    code = """
import torch, remem.ops.linear_relu
fused = torch.ops.remem.linear_relu
leaves = [torch.randn(s, requires_grad=True) for s in ((6, 4), (3, 4), (3,))]
results = []
for layer in (fused, torch.compile(fused, backend="aot_eager", fullgraph=True)):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(*leaves)
    assert out.dtype == torch.bfloat16
    results.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
for a, b in zip(*results, strict=True):
    assert torch.equal(a, b)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
