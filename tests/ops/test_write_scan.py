"""Every fast scan against the plain loop: memories, entropy and each gradient.

Without a GPU the Triton kernels run in Triton's interpreter: the same code, slowly, on the CPU.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from remem.ops import write_scan as package
from remem.ops.write_scan import Scanned, ScanWeights, cpu, fused, native, reference, reference_only, write_scan

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
GAIN = 5.0
needs_compiler = pytest.mark.skipif(not native.available(), reason="there is no C compiler")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


class Case(NamedTuple):
    """Inputs of a scan; `leaves` are what gradients are taken of: slots, features, then the weights."""

    leaves: list[Tensor]
    item_mask: Tensor
    order: Tensor
    segment_mask: Tensor
    weight_of_memories: Tensor

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Case:
        moved = [leaf.detach().to(device, dtype) for leaf in self.leaves]
        rest = (self.item_mask.to(device), self.order.to(device), self.segment_mask.to(device))
        return Case(moved, *rest, self.weight_of_memories.to(device, dtype))


def make_case(
    *, b: int = 3, t: int = 4, k: int = 3, n: int = 5, d: int = 20, m: int = 17, s: int = 6, seed: int = 0
) -> Case:
    """Segments of several lengths, streams of several lengths (one may be empty), segments used more than once."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=g)

    weights = ScanWeights(
        slot_side=normal(m, d, scale=d**-0.5),
        item_side=normal(m, d, scale=d**-0.5),
        item_side_bias=normal(m, scale=0.1),
        identity=normal(k, m),
        score=normal(m, scale=2 * m**-0.5),
        items_to_gates=normal(3 * d, d, scale=0.3 * d**-0.5),
        slots_to_gates=normal(3 * d, d, scale=d**-0.5),
        items_bias=normal(3 * d, scale=0.1),
        slots_bias=normal(3 * d, scale=0.1),
    )
    item_mask = torch.arange(n) < torch.randint(1, n + 1, (s, 1), generator=g)
    segment_mask = torch.arange(t) < torch.randint(0, t + 1, (b, 1), generator=g)
    segment_mask[0] = True
    leaves = [normal(b, k, d).tanh(), normal(s, n, d), *weights]
    return Case(
        leaves,
        item_mask,
        torch.randint(s, (b, t), generator=g),
        segment_mask,
        normal(b, t + 1, k, d),  # type: ignore[arg-type]
    )


Scan = Callable[..., Scanned]


def run(scan: Scan, case: Case) -> tuple[Scanned, list[Tensor]]:
    """Outputs, and the gradient of a weighted sum of all memories with respect to every leaf."""
    leaves = [leaf.clone().requires_grad_() for leaf in case.leaves]
    weights = ScanWeights(*leaves[2:])
    scanned = scan(leaves[0], leaves[1], case.item_mask, case.order, case.segment_mask, weights, GAIN)
    (scanned.memories * case.weight_of_memories).sum().backward()
    return scanned, [leaf.grad for leaf in leaves]  # type: ignore[misc]


def kernels(dtype: torch.dtype) -> Scan:
    """The Triton scan with products of a given type, on whichever device there is."""

    def scan(slots: Tensor, features: Tensor, item_mask: Tensor, order: Tensor, segment_mask: Tensor, weights: Any,
             gain: float) -> Scanned:  # fmt: skip
        prepared = fused(slots, features, item_mask, weights, gain)
        real = item_mask[order] & segment_mask[..., None]
        scanned = torch.ops.remem.write_scan(prepared[0], prepared[1].to(dtype), real, order, *prepared[2:], False)
        return Scanned(*scanned[:2])

    return scan


def cpu_scan(slots: Tensor, features: Tensor, item_mask: Tensor, order: Tensor, segment_mask: Tensor, weights: Any,
             gain: float) -> Scanned:  # fmt: skip
    prepared = fused(slots, features, item_mask, weights, gain)
    real = item_mask[order] & segment_mask[..., None]
    return Scanned(*cpu.CpuScan.apply(*prepared[:2], real, order, *prepared[2:]))


def native_scan(slots: Tensor, features: Tensor, item_mask: Tensor, order: Tensor, segment_mask: Tensor, weights: Any,
                gain: float) -> Scanned:  # fmt: skip
    prepared = fused(slots, features, item_mask, weights, gain)
    real = item_mask[order] & segment_mask[..., None]
    return Scanned(*native.NativeScan.apply(*prepared[:2], real, order, *prepared[2:], False))


SIZES: list[dict[str, int]] = [
    {},
    {"b": 1, "t": 1, "k": 1, "n": 1, "d": 1, "m": 1, "s": 1},
    {"b": 2, "t": 7, "k": 5, "n": 3, "d": 16, "m": 16},
    {"b": 2, "t": 3, "k": 20, "n": 10, "d": 32, "m": 33},
    {"b": 2, "t": 2, "k": 17, "n": 17, "d": 33, "m": 16},
    {"b": 3, "t": 2, "k": 16, "n": 16, "d": 17, "m": 32, "s": 2},
    {"b": 1, "t": 2, "k": 3, "n": 2, "d": 130, "m": 256, "s": 2},  # weights in two pieces
]


def assert_same(scan: Scan, case: Case, *, tolerance: float) -> None:
    """Equal to the loop in float64; errors relative to the largest value of each tensor."""
    expected, expected_grads = run(reference.write_scan, case.to(torch.device("cpu"), torch.float64))
    scanned, grads = run(scan, case)
    names = ["memories", "entropy", "slots", "features", *ScanWeights._fields]
    pairs = zip(names, [*scanned, *grads], [*expected, *expected_grads], strict=True)
    for name, actual, wanted in pairs:
        wanted = wanted.detach()
        scale = max(1.0, float(wanted.abs().max()))
        difference = float((actual.detach().cpu().double() - wanted).abs().max())
        assert torch.isfinite(actual).all(), name
        assert difference <= tolerance * scale, (name, difference, scale)


@needs_triton
@pytest.mark.parametrize("sizes", SIZES)
def test_the_kernels_equal_the_loop_in_float32(sizes: dict[str, int]) -> None:
    assert_same(kernels(torch.float32), make_case(**sizes).to(DEVICE), tolerance=1e-5)


@needs_triton
@pytest.mark.parametrize("sizes", SIZES)
def test_the_kernels_equal_the_loop_in_bf16(sizes: dict[str, int]) -> None:
    # sums over more numbers, each rounded
    tolerance = 0.1 if sizes.get("d", 0) > 128 else 0.05
    assert_same(kernels(torch.bfloat16), make_case(**sizes).to(DEVICE), tolerance=tolerance)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_cpu_scan_equals_the_loop(sizes: dict[str, int]) -> None:
    assert_same(cpu_scan, make_case(**sizes), tolerance=1e-5)


@needs_compiler
@pytest.mark.parametrize("sizes", [*SIZES, {"b": 9, "t": 6, "k": 20, "n": 10, "d": 128, "m": 128, "s": 20}])
def test_the_scan_in_c_equals_the_loop(sizes: dict[str, int]) -> None:
    assert_same(native_scan, make_case(**sizes), tolerance=1e-5)


def test_the_cpu_scan_equals_the_loop_with_one_stream_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "CACHED_FLOATS", 1)
    assert_same(cpu_scan, make_case(b=4), tolerance=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes", [{"b": 9, "t": 6, "k": 20, "n": 10, "d": 128, "m": 128, "s": 20}, {"k": 20, "n": 15, "d": 64, "m": 64}]
)
def test_the_kernels_equal_the_loop_at_the_papers_sizes(sizes: dict[str, int], dtype: torch.dtype) -> None:
    assert_same(kernels(dtype), make_case(**sizes).to(DEVICE), tolerance=1e-4 if dtype == torch.float32 else 0.06)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("b", [9, 140])  # eight warps a stream, and four
def test_the_kernels_equal_the_loop_where_slots_are_wide(b: int) -> None:
    sizes = {"b": b, "t": 6, "k": 20, "n": 20, "d": 256, "m": 256, "s": 20}
    if not package._has_room(20, 20, 256, torch.bfloat16, DEVICE):
        pytest.skip("this GPU has too little shared memory; training takes the loop there")
    assert_same(kernels(torch.bfloat16), make_case(**sizes).to(DEVICE), tolerance=0.06)


@needs_triton
def test_a_gpu_without_room_for_wide_slots_takes_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    from remem.ops.write_scan import triton

    def full(*_: Tensor) -> None:
        raise OutOfResources(300_000, 232_448, "shared memory")

    room = package._has_room.__wrapped__
    assert room(3, 4, 32, torch.bfloat16, DEVICE)
    monkeypatch.setattr(triton, "backward", full)
    assert not room(3, 4, 32, torch.bfloat16, DEVICE)


def test_a_loop_in_place_of_a_kernel_is_told_of_once() -> None:
    with pytest.warns(RuntimeWarning, match=r"plain loop on this GPU.*20 slots of 128 numbers.*float16 features"):
        package._tell_of_the_loop(20, 15, 128, torch.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        package._tell_of_the_loop(20, 15, 128, torch.float16)


def ways() -> list[Any]:
    return [
        pytest.param(cpu_scan, torch.device("cpu"), id="cpu"),
        pytest.param(native_scan, torch.device("cpu"), id="c", marks=needs_compiler),
        pytest.param(kernels(torch.float32), DEVICE, id="triton", marks=needs_triton),
    ]


@pytest.mark.parametrize(("scan", "device"), ways())
def test_what_padding_holds_changes_nothing(scan: Scan, device: torch.device) -> None:
    case = make_case()
    spoilt = case.leaves[1].masked_fill(~case.item_mask[..., None], torch.nan)
    clean, grads = run(scan, case.to(device))
    dirty, dirty_grads = run(scan, case._replace(leaves=[case.leaves[0], spoilt, *case.leaves[2:]]).to(device))
    for a, b in zip([*clean, *grads], [*dirty, *dirty_grads], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("scan", "device"), ways())
def test_holes_in_a_segment_are_left_out(scan: Scan, device: torch.device) -> None:
    case = make_case(n=6)
    case.item_mask[:, 1] = False
    case.item_mask[:, 4] = True
    assert_same(scan, case.to(device), tolerance=1e-5)


@pytest.mark.parametrize(("scan", "device"), ways())
def test_a_stream_without_a_segment_keeps_its_slots_to_the_last_bit(scan: Scan, device: torch.device) -> None:
    case = make_case()
    case.segment_mask[1] = False
    scanned, grads = run(scan, case.to(device))
    for t in range(5):
        assert torch.equal(scanned.memories[1, t].cpu(), case.leaves[0][1])
    torch.testing.assert_close(grads[0][1].cpu(), case.weight_of_memories[1].sum(dim=0))
    assert (scanned.entropy[1] == 0).all()


@pytest.mark.parametrize(("scan", "device"), ways())
def test_no_stream_touches_another(scan: Scan, device: torch.device) -> None:
    case = make_case(b=3)
    both, _ = run(scan, case.to(device))
    rows = [case.leaves[0][1:2], *case.leaves[1:]]
    alone = Case(rows, case.item_mask, case.order[1:2], case.segment_mask[1:2], case.weight_of_memories[1:2])
    one, _ = run(scan, alone.to(device))
    torch.testing.assert_close(one.memories[0], both.memories[1])


@pytest.mark.parametrize(
    ("scan", "device"), [*ways(), pytest.param(kernels(torch.bfloat16), DEVICE, id="triton-bf16", marks=needs_triton)]
)
def test_every_element_of_fresh_memory_is_written(
    scan: Scan, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`empty` may return anything; here it returns NaN, which would show in a result."""
    case = make_case().to(device)
    clean, grads = run(scan, case)
    empty, new_empty = torch.empty, Tensor.new_empty

    def poisoned(*args: Any, **options: Any) -> Tensor:
        made = empty(*args, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    def new_poisoned(self: Tensor, *args: Any, **options: Any) -> Tensor:
        made = new_empty(self, *args, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)
    monkeypatch.setattr(Tensor, "new_empty", new_poisoned)
    dirty, dirty_grads = run(scan, case)
    for a, b in zip([*clean, *grads], [*dirty, *dirty_grads], strict=True):
        torch.testing.assert_close(a, b)


def test_the_loop_has_the_gradient_of_finite_differences() -> None:
    case = make_case(b=2, t=2, k=2, n=3, d=2, m=3, s=3).to(torch.device("cpu"), torch.float64)

    def memories(*leaves: Tensor) -> Tensor:
        weights = ScanWeights(*leaves[2:])
        return reference.write_scan(*leaves[:2], case.item_mask, case.order, case.segment_mask, weights, GAIN).memories

    assert torch.autograd.gradcheck(memories, [leaf.requires_grad_() for leaf in case.leaves])


def test_a_writer_without_identity_takes_the_same_way() -> None:
    case = make_case()
    weights = ScanWeights(*case.leaves[2:])._replace(identity=None)
    arguments = (*case.leaves[:2], case.item_mask, case.order, case.segment_mask, weights, GAIN)
    torch.testing.assert_close(write_scan(*arguments).memories, reference.write_scan(*arguments).memories)


@pytest.mark.parametrize("compiler", [False, pytest.param(True, marks=needs_compiler)])
def test_the_fast_way_is_taken_unless_told_otherwise(compiler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case, calls = make_case(), []
    monkeypatch.setattr(native, "available", lambda: compiler)
    taken = native.NativeScan if compiler else cpu.CpuScan
    monkeypatch.setattr(taken, "apply", lambda *_: calls.append(1) or (torch.zeros(()), torch.zeros(())))
    leaves = [leaf.requires_grad_() for leaf in case.leaves]
    arguments = (*leaves[:2], case.item_mask, case.order, case.segment_mask, ScanWeights(*leaves[2:]), GAIN)
    write_scan(*arguments)
    assert calls == [1]
    with reference_only():
        assert write_scan(*arguments).memories.shape == (3, 5, 3, 20)
    double = [leaf.double() for leaf in case.leaves]
    weights = ScanWeights(*double[2:])
    write_scan(*double[:2], case.item_mask, case.order, case.segment_mask, weights, GAIN)
    assert calls == [1], "float64 has no fast way"


@needs_compiler
def test_a_memory_that_is_not_trained_does_not_depend_on_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.NativeScan, "apply", lambda *_: pytest.fail("the scan in C is for training"))
    case = make_case()
    write_scan(*case.leaves[:2], case.item_mask, case.order, case.segment_mask, ScanWeights(*case.leaves[2:]), GAIN)


@needs_compiler
def test_in_c_segments_in_turn_need_no_adding_up() -> None:
    case = make_case(b=2, t=3, s=6)
    case.order.copy_(torch.arange(6).view(2, 3))

    def in_turn(*arguments: Any) -> Scanned:
        return write_scan(*arguments, in_turn=True)

    assert_same(in_turn, case, tolerance=1e-5)


@needs_compiler
def test_a_number_that_is_not_finite_shows_in_the_scan_in_c() -> None:
    case = make_case()
    case.leaves[0][0, 0, 0] = torch.nan
    scanned, grads = run(native_scan, case)
    assert scanned.memories[0, -1].isnan().any()
    assert grads[1].isnan().any()


@needs_triton
def test_segments_in_turn_need_no_adding_up() -> None:
    case = make_case(b=2, t=3, s=6)
    case.order.copy_(torch.arange(6).view(2, 3))

    def in_turn(slots: Tensor, features: Tensor, item_mask: Tensor, order: Tensor, segment_mask: Tensor, weights: Any,
                gain: float) -> Scanned:  # fmt: skip
        prepared = fused(slots, features, item_mask, weights, gain)
        real = item_mask[order] & segment_mask[..., None]
        return Scanned(*torch.ops.remem.write_scan(*prepared[:2], real, order, *prepared[2:], True)[:2])

    assert_same(in_turn, case.to(DEVICE), tolerance=1e-5)


@needs_triton
def test_what_is_kept_for_the_way_back_has_no_gradient_of_zeros() -> None:
    made: list[tuple[int, ...]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if "zero" in str(func) and isinstance(out, Tensor):
                made.append(tuple(out.shape))
            return out

    case = make_case().to(DEVICE)
    with Watch():
        run(kernels(torch.float32), case)
    assert (3, 4, 3, 80) not in made, "the gates"


@needs_compiler
def test_a_long_segment_needs_no_large_stack() -> None:
    """In a process of its own, as a stack that runs over takes its process along."""
    program = f"""
import resource, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_write_scan import make_case, run, write_scan
resource.setrlimit(resource.RLIMIT_STACK, (2**21, 2**21))
run(write_scan, make_case(b=1, t=1, k=64, n=16_000, d=4, m=4, s=1))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
