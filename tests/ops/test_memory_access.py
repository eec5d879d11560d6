"""The fused step of a memory against the plain one: the state after it and every gradient.

Without a GPU the Triton kernels run in Triton's interpreter: the same code, slowly, on the CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from remem.baselines.dmsdnc import DMSDNC
from remem.baselines.dnc import DNC
from remem.baselines.nutm import NUTM
from remem.baselines.word_by_word import WordByWord
from remem.model.interface import EmbeddedStream
from remem.ops import memory_access as package
from remem.ops.memory_access import AccessState, CommandLayout, access, reference, reference_only

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
CPU = torch.device("cpu")
pytest.importorskip("triton")

Access = Callable[..., AccessState]
fused = torch.ops.remem.memory_access


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with tensors this small, threads only wait for one another
    yield
    torch.set_num_threads(threads)


class Case(NamedTuple):
    """Inputs of a step, and what each number of the state after it counts in a loss."""

    state: AccessState
    xi: Tensor
    real: Tensor
    layout: CommandLayout
    weights: AccessState

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Case:
        def moved(state: AccessState) -> AccessState:
            return AccessState(*(part.to(device, dtype) for part in state))

        return Case(
            moved(self.state), self.xi.to(device, dtype), self.real.to(device), self.layout, moved(self.weights)
        )


def make_case(
    *, b: int = 3, c: int = 1, k: int = 5, d: int = 12, r: int = 3, links: bool = True, seed: int = 0
) -> Case:
    """A state as it may be in the middle of a stream; the second stream's item is padding."""
    g = torch.Generator().manual_seed(seed)
    linked = k if links else 0
    layout = CommandLayout(slot_dim=d, num_reads=r, num_blocks=c, links=links)

    def share(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g) / max(1, k)

    state = AccessState(
        slots=torch.randn(b, c, k, d, generator=g),
        usage=torch.rand(b, c, k, generator=g),
        write_weights=share(b, c, k),
        read_weights=share(b, c, r, k),
        precedence=share(b, c, linked),
        links=share(b, c, linked, linked),
        reads=torch.randn(b, r * d, generator=g),
    )
    xi = 2 * torch.randn(b, c, sum(layout.sizes()), generator=g)
    real = torch.arange(b) != 1
    return Case(state, xi, real, layout, AccessState(*(torch.randn(part.shape, generator=g) for part in state)))


def kernels(state: AccessState, xi: Tensor, real: Tensor, layout: CommandLayout, *, deallocate: bool = False) -> Any:
    """The kernels, on whichever device there is."""
    assert not deallocate
    return AccessState(*fused(*state, xi, real))


def run(step: Access, case: Case) -> tuple[AccessState, dict[str, Tensor]]:
    """The state after, and the gradients of a weighted sum of all of it."""
    leaves = AccessState(*(part.clone().requires_grad_() for part in case.state))
    xi = case.xi.clone().requires_grad_()
    after = step(leaves, xi, case.real, case.layout)
    sum((part * weight).sum() for part, weight in zip(after, case.weights, strict=True)).backward()
    grads = {f"gradient of {name}": part.grad for name, part in leaves._asdict().items() if part.grad is not None}
    assert leaves.write_weights.grad is None
    assert not after.write_weights.requires_grad
    return AccessState(*(part.detach() for part in after)), grads | {"gradient of xi": xi.grad}  # type: ignore[dict-item]


def assert_same(step: Access, case: Case, *, tolerance: float = 1e-5) -> None:
    """Equal to the plain step in float64; errors relative to the largest value of each tensor."""
    expected, expected_grads = run(reference.access, case.to(CPU, torch.float64))
    after, grads = run(step, case.to(DEVICE))
    wanted = expected._asdict() | expected_grads
    for name, actual in (after._asdict() | grads).items():
        assert torch.isfinite(actual).all(), name
        if actual.numel():
            scale = max(1.0, float(wanted[name].abs().max()))
            difference = float((actual.cpu().double() - wanted[name]).abs().max())
            assert difference <= tolerance * scale, (name, difference, scale)
    present = {name for name, part in wanted.items() if part.numel()}
    assert present <= (after._asdict() | grads).keys()


SIZES: list[dict[str, Any]] = [
    {},
    {"links": False},
    {"b": 3, "c": 2},
    {"b": 2, "c": 3, "links": False, "k": 4, "d": 8, "r": 2},
    {"b": 2, "k": 1, "d": 1, "r": 1},
    {"b": 2, "c": 4, "k": 1, "d": 1, "r": 1, "links": False},
    {"b": 2, "k": 16, "d": 16, "r": 4},
    {"b": 2, "k": 17, "d": 33, "r": 8, "links": False},
    {"b": 2, "k": 20, "d": 128, "r": 4},
    {"b": 2, "k": 20, "d": 200, "r": 4},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_kernels_equal_the_plain_step(sizes: dict[str, Any]) -> None:
    assert_same(kernels, make_case(**sizes))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize(
    "sizes",
    [
        {"b": 300, "k": 20, "d": 128, "r": 4},
        {"b": 300, "c": 2, "k": 32, "d": 128, "r": 8, "links": False},
        {"b": 300, "k": 20, "d": 256, "r": 4},
        {"b": 16, "c": 2, "k": 10, "d": 256, "r": 4, "links": False},
    ],
)
def test_the_kernels_equal_the_plain_step_at_full_size(sizes: dict[str, Any]) -> None:
    assert_same(kernels, make_case(**sizes), tolerance=1e-4)


def at_the_ends() -> Case:
    """Where the equations bend: a memory as it starts, equal usages, full gates, strengths where they are clipped."""
    case = make_case(b=5)
    state, xi, heads = case.state, case.xi, case.layout.num_reads
    for part in state:
        part[0] = 0.0
    state.slots[0] = 1e-6
    state.usage[2] = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5])
    state.write_weights[2:4] = 0.0
    state.usage[3] = 0.5
    # two heads have read the third slot alone, and one of them frees all of it
    state.read_weights[2:4] = 0.0
    state.read_weights[2:4, :, :2, 2] = 1.0
    starts = [0, *torch.tensor(case.layout.sizes()).cumsum(0).tolist()]
    xi[2:4, :, starts[4]] = 200.0
    xi[4, :, starts[3] : starts[3] + heads] = torch.tensor([-25.0, 25.0, 20.0])
    xi[4, :, starts[7]] = 30.0
    return case


def test_the_kernels_equal_the_plain_step_at_the_ends() -> None:
    assert_same(kernels, at_the_ends())


@pytest.mark.parametrize("sizes", [{"b": 2}, {"b": 2, "c": 2, "links": False}], ids=str)
def test_padding_changes_no_bit_and_passes_gradients_straight_through(sizes: dict[str, Any]) -> None:
    case = make_case(**sizes).to(DEVICE)
    after, grads = run(kernels, case)
    for name, new, old, weight in zip(AccessState._fields, after, case.state, case.weights, strict=True):
        assert torch.equal(new[1], old[1]), name
        if name != "write_weights":
            assert torch.equal(grads[f"gradient of {name}"][1], weight[1]), name
    assert not grads["gradient of xi"][1].any()


@pytest.mark.parametrize("sizes", [{"b": 2}, {"b": 2, "c": 2, "links": False}], ids=str)
def test_what_padding_is_told_reaches_nothing(sizes: dict[str, Any]) -> None:
    case = make_case(**sizes).to(DEVICE)
    spoilt = case.xi.clone()
    spoilt[1] = torch.nan
    clean, grads = run(kernels, case)
    dirty, dirty_grads = run(kernels, case._replace(xi=spoilt))
    for a, b in zip([*clean, *grads.values()], [*dirty, *dirty_grads.values()], strict=True):
        assert torch.equal(a, b)


def test_no_stream_touches_another() -> None:
    case = make_case(b=3, c=2).to(DEVICE)
    together, grads = run(kernels, case)

    def only(state: AccessState) -> AccessState:
        return AccessState(*(part[2:3] for part in state))

    alone, grads_alone = run(
        kernels, Case(only(case.state), case.xi[2:3], case.real[2:3], case.layout, only(case.weights))
    )
    for a, b in zip([*together, *grads.values()], [*alone, *grads_alone.values()], strict=True):
        assert torch.equal(a[2:3], b)


@pytest.mark.parametrize("sizes", [{"b": 2}, {"b": 2, "c": 2, "links": False}], ids=str)
def test_every_element_of_fresh_memory_is_written(sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`empty` may return anything; here it returns NaN, which would show in a result."""
    case = make_case(**sizes).to(DEVICE)
    clean, grads = run(kernels, case)
    empty = torch.empty

    def poisoned(*args: Any, **options: Any) -> Tensor:
        made = empty(*args, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)
    dirty, dirty_grads = run(kernels, case)
    for a, b in zip([*clean, *grads.values()], [*dirty, *dirty_grads.values()], strict=True):
        assert torch.equal(a, b)


def test_views_are_taken_for_what_they_hold() -> None:
    case = make_case(b=2, c=2)
    state = AccessState(*(part.transpose(0, -1).contiguous().transpose(0, -1) for part in case.state))
    assert_same(kernels, case._replace(state=state, xi=case.xi.mT.contiguous().mT))


def test_outputs_that_nothing_comes_of_count_nothing() -> None:
    case = make_case(b=2, k=3, d=4, r=2)
    for name in AccessState._fields:
        none = AccessState(*(torch.zeros_like(weight) for weight in case.weights))
        assert_same(kernels, case._replace(weights=none._replace(**{name: getattr(case.weights, name)})))
    leaves = AccessState(*(part.clone().to(DEVICE).requires_grad_() for part in case.state))
    kernels(leaves, case.xi.to(DEVICE), case.real.to(DEVICE), case.layout).slots.sum().backward()
    assert all(part.grad is not None for part in leaves if part is not leaves.write_weights)


@pytest.mark.parametrize("options", [{"links": True}, {"c": 2, "links": False}], ids=str)
def test_the_plain_step_has_the_gradient_of_finite_differences(options: dict[str, Any]) -> None:
    case = make_case(b=2, k=3, d=2, r=2, **options).to(CPU, torch.float64)

    def step(slots: Tensor, usage: Tensor, *rest: Tensor) -> list[Tensor]:
        read_weights, precedence, links, reads, xi = rest
        before = AccessState(slots, usage, case.state.write_weights, read_weights, precedence, links, reads)
        after = reference.access(before, xi, case.real, case.layout)
        return [part for part in after if part.requires_grad and part.numel()]

    leaves = [part for name, part in case.state._asdict().items() if name != "write_weights"]
    assert torch.autograd.gradcheck(step, [leaf.requires_grad_() for leaf in (*leaves, case.xi)])


# a whole memory: the kernels in place of the plain step, word by word

ITEM = 8
METHODS: dict[str, Callable[[], WordByWord]] = {
    "dnc": lambda: DNC(item_dim=ITEM, num_slots=5, num_reads=3, slot_dim=6),
    "nutm": lambda: NUTM(item_dim=ITEM, num_slots=5, num_reads=2),
    "dmsdnc": lambda: DMSDNC(item_dim=ITEM, num_slots=6, num_reads=2),
}


@pytest.fixture
def kernels_everywhere(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kernels also where there is no GPU; counts how often they were asked for."""
    asked: list[int] = []
    monkeypatch.setattr(package, "_has_fast_path", lambda *_: asked.append(1) or True)
    return asked


def memories_and_gradients(method: WordByWord, stream: EmbeddedStream) -> list[Tensor]:
    """All memories along the streams, then the gradients of the items and of every parameter."""
    method.zero_grad()
    items = stream.items.clone().requires_grad_()
    trace = method.write_stream(method.initial_state(2), stream._replace(items=items))
    g = torch.Generator().manual_seed(1)
    (trace.memories * torch.randn(trace.memories.shape, generator=g).to(DEVICE)).sum().backward()
    grads = [parameter.grad for parameter in method.parameters() if parameter.grad is not None]
    assert items.grad is not None
    return [trace.memories.detach(), items.grad, *grads]


@pytest.mark.parametrize("name", METHODS)
def test_a_whole_memory_is_the_same_with_the_kernels(name: str, kernels_everywhere: list[int]) -> None:
    torch.manual_seed(0)
    method = METHODS[name]().to(DEVICE)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    segments = torch.tensor([[1, 1], [1, 0]], dtype=torch.bool)
    stream = EmbeddedStream(torch.randn(4, 3, ITEM), mask, torch.arange(4).view(2, 2), segments)
    stream = EmbeddedStream(*(part.to(DEVICE) if isinstance(part, Tensor) else part for part in stream))
    with reference_only():
        expected = memories_and_gradients(method, stream)
    assert not kernels_everywhere
    actual = memories_and_gradients(method, stream)
    assert kernels_everywhere
    assert len(actual) == len(expected)
    assert expected[1][0, 0].abs().max() > 0, "no gradient reaches the first item"
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# a script for a process of its own: torch.compile cannot look through the shape checks of the test run
COMPILED = """
import torch
from remem.baselines.dnc import DNC
from remem.model.interface import EmbeddedStream
from remem.ops import memory_access

torch.set_num_threads(1)
torch.manual_seed(0)
memory_access._has_fast_path = lambda *_: True
there = torch.rand(4, 3) < 0.8
stream = EmbeddedStream(torch.randn(4, 3, 8), there, torch.arange(4).view(2, 2), torch.ones(2, 2, dtype=torch.bool))
method, results = DNC(item_dim=8, num_slots=4, num_reads=2), []
for compiled in (False, True):
    if compiled:
        method.compile_parts("aot_eager")
    method.zero_grad()
    trace = method.write_stream(method.initial_state(2), stream)
    trace.memories.square().sum().backward()
    results.append([trace.memories.detach(), *(p.grad.clone() for p in method.parameters())])
for plain, fast in zip(*results, strict=True):
    torch.testing.assert_close(fast, plain)
# once for the first item, which has no gradient behind it, and once for all others
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2, torch._dynamo.utils.counters["stats"]
assert not torch._dynamo.utils.counters["graph_break"], torch._dynamo.utils.counters["graph_break"]
print("one graph")
"""


@pytest.mark.skipif(HAS_GPU, reason="the interpreter is for machines without a GPU")
def test_a_compiled_step_takes_the_kernels_as_one_node() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=250, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "one graph"


def test_the_operations_keep_torchs_promises() -> None:
    case = make_case(b=1, c=2, k=2, d=2, r=1).to(DEVICE)
    leaves = [part.clone().requires_grad_() for part in (*case.state, case.xi)]
    torch.library.opcheck(fused, (*leaves, case.real))
    state, after, grads = case.state, kernels(case.state, case.xi, case.real, case.layout), case.weights
    given = [getattr(grads, name) for name in AccessState._fields if name != "write_weights"]
    kept = [after.usage, after.write_weights, after.read_weights, after.reads]
    torch.library.opcheck(torch.ops.remem.memory_access_backward, (*given, *state[:6], case.xi, case.real, *kept))


def test_only_plain_memories_of_moderate_size_in_float32_on_a_gpu_take_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))

    def takes(case: Case, **layout: bool) -> bool:
        return package._has_fast_path(case.state, case.xi, case.layout._replace(**layout))

    assert takes(make_case(b=1, k=32, d=128, r=8))
    assert takes(make_case(b=1, c=4, links=False))
    assert not takes(make_case(b=1, k=33))
    assert not takes(make_case(b=1, d=257))
    assert not takes(make_case(b=1, r=9))
    assert not takes(make_case(b=1, c=5))
    assert not takes(make_case(b=0))
    assert not takes(make_case().to(CPU, torch.float64))
    assert not takes(make_case(), masked=True)
    assert not takes(make_case(), sharpen=True)
    monkeypatch.setattr(package, "HAS_TRITON", False)
    assert not takes(make_case())


def test_the_cpu_deallocation_and_comparisons_take_the_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case()
    monkeypatch.setattr(package, "_memory_access", lambda *_: pytest.fail("the kernels were taken"))
    arguments = (case.state, case.xi, case.real, case.layout)
    for a, b in zip(access(*arguments), reference.access(*arguments), strict=True):
        assert torch.equal(a, b)
    monkeypatch.setattr(package, "_has_fast_path", lambda *_: True)
    freed = access(*arguments, deallocate=True)
    assert not torch.equal(freed.slots, reference.access(*arguments).slots)
    with reference_only():
        assert torch.equal(access(*arguments).slots, reference.access(*arguments).slots)
