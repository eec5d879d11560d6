"""The DNC's cell: one step number by number, its weights, its memory over several steps, and its sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remem.baselines.dnc import DNC, CommandLayout, DNCCell, DNCState
from remem.errors import BadInput

Vector = Sequence[float]
ITEM, WIDTH, SLOTS, READS, CONTROL = 5, 4, 6, 2, 3
EPS = 1e-6
OPTIONS: dict[str, dict[str, Any]] = {
    "dnc": {},
    "without links": {"links": False},
    "masks, de-allocation and sharpening": {"masked": True, "deallocate": True, "sharpen": True},
    "three blocks": {"num_blocks": 3, "links": False, "norm_controller": True, "norm_interface": False},
    "two blocks with everything": {"num_blocks": 2, "masked": True, "deallocate": True, "sharpen": True},
}
LAYOUT = ("num_blocks", "links", "masked", "sharpen")


def assert_close(actual: Tensor, expected: object) -> None:
    target = expected if isinstance(expected, Tensor) else torch.tensor(expected)
    torch.testing.assert_close(actual, target.to(actual.dtype), rtol=1e-4, atol=1e-5)


def make_cell(options: dict[str, Any]) -> DNCCell:
    layout = CommandLayout(WIDTH, READS, **{name: value for name, value in options.items() if name in LAYOUT})
    rest = {name: value for name, value in options.items() if name not in LAYOUT}
    cell = DNCCell(item_dim=ITEM, num_slots=SLOTS, controller_dim=CONTROL, layout=layout, **rest)
    for parameter in cell.parameters():  # LayerNorms that do something
        parameter.data += 0.3 * torch.randn(parameter.shape)
    return cell


def random_state(cell: DNCCell, b: int) -> DNCState:
    """A state as it may be in the middle of a stream."""
    state = cell.initial_state(b)
    slots, heads = cell.block_slots, cell.layout.num_blocks
    return state._replace(
        slots=torch.randn_like(state.slots),
        usage=torch.rand_like(state.usage),
        write_weights=torch.rand_like(state.write_weights) / slots,
        read_weights=torch.rand_like(state.read_weights) / (slots * heads),
        precedence=torch.rand_like(state.precedence) / slots,
        links=torch.rand_like(state.links) / slots,
        hidden=torch.randn_like(state.hidden).tanh(),
        carry=torch.randn_like(state.carry),
        reads=torch.randn_like(state.reads),
    )


# one step of one stream, one number at a time


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def softplus_one(x: float) -> float:
    return 1 + math.log(1 + math.exp(x))


def softmax(scores: Vector) -> list[float]:
    powers = [math.exp(s) for s in scores]
    return [p / sum(powers) for p in powers]


def affine(linear: nn.Linear, vector: Vector) -> list[float]:
    bias = [0.0] * linear.out_features if linear.bias is None else linear.bias.tolist()
    return [
        b + sum(w * v for w, v in zip(row, vector, strict=True))
        for row, b in zip(linear.weight.tolist(), bias, strict=True)
    ]


def layer_norm(norm: nn.Module, vector: Vector) -> list[float]:
    if isinstance(norm, nn.Identity):
        return list(vector)
    mean = sum(vector) / len(vector)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in vector) / len(vector) + 1e-5)
    weight, bias = norm.weight.tolist(), norm.bias.tolist()  # type: ignore[operator,union-attr]
    return [(v - mean) / deviation * w + b for v, w, b in zip(vector, weight, bias, strict=True)]


def cosine(left: Vector, right: Vector, mask: Vector) -> float:
    left, right = ([v * m for v, m in zip(vector, mask, strict=True)] for vector in (left, right))
    norms = [math.sqrt(sum(v * v for v in vector) + EPS) for vector in (left, right)]
    return sum(a * c for a, c in zip(left, right, strict=True)) / (norms[0] * norms[1])


def slow_block(
    cell: DNCCell, state: dict[str, Any], xi: list[float], gates: list[float] | None
) -> tuple[dict[str, Any], list[list[float]]]:
    """One block's new state and what its heads read; `gates` say how much of it each head takes from this block."""
    layout, count, taken = cell.layout, cell.block_slots, iter(xi)

    def take(number: int) -> list[float]:
        return [next(taken) for _ in range(number)]

    # reading: keys, modes, gates of the blocks, strengths and sharpness, free gates and masks
    read_keys = [take(WIDTH) for _ in range(READS)]
    modes = [softmax(take(3)) for _ in range(READS)] if layout.links else None
    take(READS if layout.num_blocks > 1 else 0)
    strengths = [softplus_one(x) for x in take(READS)]
    sharpness = [[softplus_one(x) for x in take(2)] for _ in range(READS)] if layout.sharpen else None
    free = [sigmoid(x) for x in take(READS)]
    ones = [1.0] * WIDTH
    read_masks = [[sigmoid(x) for x in take(WIDTH)] if layout.masked else ones for _ in range(READS)]
    # writing: key, vector, strength, gates, erase, mask
    write_key, vector, (write_strength,) = take(WIDTH), take(WIDTH), [softplus_one(x) for x in take(1)]
    allocation_gate, write_gate = (sigmoid(x) for x in take(2))
    erase = [sigmoid(x) for x in take(WIDTH)]
    write_mask = [sigmoid(x) for x in take(WIDTH)] if layout.masked else ones
    assert not list(taken)

    slots, places = state["slots"], range(count)
    kept = [math.prod(1 - free[i] * state["read_weights"][i][k] for i in range(READS)) for k in places]
    written = state["write_weights"]
    usage = [(u + w - u * w) * psi for u, w, psi in zip(state["usage"], written, kept, strict=True)]
    used = [EPS + (1 - EPS) * u for u in usage]
    allocated, product = [0.0] * count, 1.0
    for k in sorted(places, key=lambda k: used[k]):
        allocated[k], product = (1 - used[k]) * product, product * used[k]
    found = softmax([write_strength * cosine(write_key, slots[k], write_mask) for k in places])
    weights = [
        write_gate * (allocation_gate * a + (1 - allocation_gate) * c) for a, c in zip(allocated, found, strict=True)
    ]
    after = [
        [
            slots[k][d] * (kept[k] if cell.deallocate else 1.0) * (1 - weights[k] * erase[d]) + weights[k] * vector[d]
            for d in range(WIDTH)
        ]
        for k in places
    ]
    links, precedence = state["links"], state["precedence"]
    if layout.links:
        links = [
            [
                0.0 if i == j else (1 - weights[i] - weights[j]) * links[i][j] + weights[i] * precedence[j]
                for j in places
            ]
            for i in places
        ]
        precedence = [(1 - sum(weights)) * p + w for p, w in zip(precedence, weights, strict=True)]

    read_weights, reads = [], []
    for i in range(READS):
        look = softmax([strengths[i] * cosine(read_keys[i], after[k], read_masks[i]) for k in places])
        if modes is not None:
            before = state["read_weights"][i]
            along = [
                [sum(links[j][k] * before[j] for j in places) for k in places],
                [sum(links[k][j] * before[j] for j in places) for k in places],
            ]
            if sharpness is not None:
                for side, power in enumerate(sharpness[i]):
                    powers = [(value + EPS) ** power for value in along[side]]
                    along[side] = [sum(along[side]) * value / sum(powers) for value in powers]
            parts = (along[0], look, along[1])
            look = [sum(mode * part[k] for mode, part in zip(modes[i], parts, strict=True)) for k in places]
        if gates is not None:
            look = [gates[i] * value for value in look]
        read_weights.append(look)
        reads.append([sum(look[k] * after[k][d] for k in places) for d in range(WIDTH)])
    new = {"slots": after, "usage": usage, "write_weights": weights, "read_weights": read_weights}
    return new | {"links": links, "precedence": precedence}, reads


def slow_step(cell: DNCCell, state: dict[str, Any], item: Vector) -> dict[str, Any]:
    """All blocks and the controller, for one stream."""
    layout = cell.layout
    from_item, from_state = affine(cell.from_item, item), affine(cell.from_state, [*state["hidden"], *state["reads"]])
    gates = [a + c for a, c in zip(from_item, from_state, strict=True)]
    opened, kept, new, shown = (gates[i * CONTROL : (i + 1) * CONTROL] for i in range(4))
    carry = [
        sigmoid(f) * c + sigmoid(i) * math.tanh(g) for f, c, i, g in zip(kept, state["carry"], opened, new, strict=True)
    ]
    hidden = [sigmoid(o) * math.tanh(c) for o, c in zip(shown, carry, strict=True)]
    assert isinstance(cell.interface, nn.Linear)
    xi = affine(cell.interface, layer_norm(cell.controller_norm, hidden))
    size = layout.reading + layout.writing
    blocks = [layer_norm(cell.interface_norm, xi[c * size : (c + 1) * size]) for c in range(layout.num_blocks)]
    start = READS * WIDTH + (3 * READS if layout.links else 0)
    shares = [softmax([block[start + i] for block in blocks]) for i in range(READS)]
    results = [
        slow_block(
            cell,
            {name: value[c] for name, value in state.items() if name not in ("hidden", "carry", "reads")},
            block,
            [shares[i][c] for i in range(READS)] if layout.num_blocks > 1 else None,
        )
        for c, block in enumerate(blocks)
    ]
    reads = [sum(read[i][d] for _, read in results) for i in range(READS) for d in range(WIDTH)]
    stacked = {name: [new[name] for new, _ in results] for name in results[0][0]}
    return stacked | {"hidden": hidden, "carry": carry, "reads": reads}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_is_its_equations_one_number_at_a_time(name: str) -> None:
    cell, b = make_cell(OPTIONS[name]), 2
    state, real = random_state(cell, b), torch.ones(b, dtype=torch.bool)
    expected = [{field: value[i].tolist() for field, value in state._asdict().items()} for i in range(b)]
    for _ in range(3):
        items = torch.randn(b, ITEM)
        state = cell(state, cell.project(items), real)
        expected = [slow_step(cell, row, item) for row, item in zip(expected, items.tolist(), strict=True)]
    for field, value in state._asdict().items():
        if value.numel():
            assert_close(value, [row[field] for row in expected])


@pytest.mark.parametrize("name", OPTIONS)
def test_padded_rows_keep_their_state_to_the_bit_and_the_others_move(name: str) -> None:
    cell = make_cell(OPTIONS[name])
    state = random_state(cell, 3)
    after = cell(state, 1e4 * torch.randn(3, 4 * CONTROL), torch.tensor([True, False, True]))
    for new, old in zip(after, state, strict=True):
        assert torch.equal(new[1], old[1])
        assert not new.numel() or not torch.equal(new[0], old[0])


@pytest.mark.parametrize("name", OPTIONS)
def test_weights_sum_to_no_more_than_their_gates(name: str) -> None:
    cell = make_cell(OPTIONS[name])
    state, real = cell.initial_state(8), torch.ones(8, dtype=torch.bool)
    for _ in range(10):
        state = cell(state, torch.randn(8, 4 * CONTROL), real)
        assert (state.write_weights.sum(dim=-1) <= 1 + 1e-5).all()
        assert (state.read_weights.sum(dim=(1, 3)) <= 1 + 1e-5).all()
        if not cell.layout.links:
            assert_close(state.read_weights.sum(dim=(1, 3)), torch.ones(8, READS))
        assert ((state.usage >= 0) & (state.usage <= 1)).all()
        read = (state.read_weights @ state.slots).sum(dim=1).flatten(1)
        assert_close(state.reads, read)


class Ordered(nn.Module):
    """An interface that gives the orders it was told, whatever the controller says."""

    def __init__(self, layout: CommandLayout, **orders: Tensor) -> None:
        super().__init__()
        sizes = (READS * WIDTH, 3 * READS, READS, READS, WIDTH, WIDTH, 1, 2, WIDTH)
        names = (
            "read_keys",
            "modes",
            "strengths",
            "free",
            "write_key",
            "write_vector",
            "write_strength",
            "gates",
            "erase",
        )
        parts = [orders.get(name, torch.zeros(size)).float() for name, size in zip(names, sizes, strict=True)]
        self.xi = torch.cat(parts)
        assert len(self.xi) == layout.reading + layout.writing

    def forward(self, features: Tensor) -> Tensor:
        return self.xi.expand(len(features), -1)


FULL, NONE = 30.0, -30.0
BACK, CONTENT, ON = ([FULL if i == mode else 0.0 for i in range(3)] for mode in range(3))


def ordered_step(cell: DNCCell, state: DNCState, **orders: Tensor) -> DNCState:
    cell.interface = Ordered(cell.layout, **orders)
    return cell(state, torch.zeros(1, 4 * CONTROL), torch.ones(1, dtype=torch.bool))


def obedient_cell() -> DNCCell:
    layout = CommandLayout(WIDTH, READS)
    return DNCCell(item_dim=ITEM, num_slots=SLOTS, controller_dim=CONTROL, layout=layout, norm_interface=False)


WRITE = {"gates": torch.tensor([FULL, FULL]), "erase": torch.full((WIDTH,), FULL)}
KEEP = {"free": torch.full((READS,), NONE), "strengths": torch.full((READS,), FULL)}


def write_all(cell: DNCCell, state: DNCState, vectors: Tensor, **orders: Tensor) -> tuple[DNCState, list[int]]:
    """Write each vector to a free slot; say where they went."""
    places = []
    for vector in vectors:
        state = ordered_step(cell, state, write_vector=vector, **WRITE, **KEEP, **orders)
        assert state.write_weights.max() > 0.999
        places.append(int(state.write_weights.argmax()))
    return state, places


def test_new_vectors_go_to_free_slots_and_are_found_again_by_key_and_along_the_links() -> None:
    cell, vectors = obedient_cell(), torch.eye(3, WIDTH)
    state, places = write_all(cell, cell.initial_state(1), vectors)
    assert len(set(places)) == 3
    assert_close(state.slots[0, 0, places], vectors)
    idle = {"gates": torch.tensor([0.0, NONE]), **KEEP}
    # the first head looks for the first vector, the second for the last one
    keys = torch.cat([vectors[0], vectors[2]])
    state = ordered_step(cell, state, read_keys=keys, modes=torch.tensor(CONTENT * 2), **idle)
    assert_close(state.reads[0].view(READS, WIDTH), vectors[[0, 2]])
    # then one goes on and the other goes back
    for expected in ([1, 1], [2, 0]):
        state = ordered_step(cell, state, modes=torch.tensor(ON + BACK), **idle)
        assert_close(state.reads[0].view(READS, WIDTH), vectors[expected])


def test_a_slot_that_was_read_and_freed_is_the_next_to_be_written() -> None:
    cell, vectors = obedient_cell(), torch.randn(SLOTS, WIDTH)
    looking = {"read_keys": vectors[1].repeat(READS), "modes": torch.tensor(CONTENT * READS)}
    state, places = write_all(cell, cell.initial_state(1), vectors, **looking)
    assert sorted(places) == list(range(SLOTS))
    assert int(state.read_weights[0, 0, 0].argmax()) == places[1]
    freed = ordered_step(cell, state, write_vector=torch.ones(WIDTH), free=torch.full((READS,), FULL), **WRITE)
    assert int(freed.write_weights.argmax()) == places[1]
    torch.testing.assert_close(freed.slots[0, 0, places[1]], torch.ones(WIDTH), rtol=0.01, atol=0.01)
    # where nothing is freed, nothing is free
    full = ordered_step(cell, state, write_vector=torch.ones(WIDTH), **WRITE, **KEEP)
    assert full.write_weights.max() < 0.01


def test_the_first_memory_is_small_and_the_same_and_allocation_tells_slots_apart() -> None:
    method = DNC(item_dim=ITEM, num_slots=SLOTS)
    state: Any = method.initial_state(2)
    assert_close(method.memory(state), torch.full((2, SLOTS, ITEM), 1e-6))
    for _ in range(3):
        state = method.cell(state, torch.randn(2, 4 * ITEM), torch.ones(2, dtype=torch.bool))
    memory = method.memory(state)
    assert all(not torch.allclose(memory[:, i], memory[:, j]) for i in range(3) for j in range(i))


def test_the_commands_have_the_size_of_the_paper() -> None:
    w, r = 64, 4
    layout = CommandLayout(w, r)
    assert layout.reading + layout.writing == r * w + 3 * w + 5 * r + 3
    layout = CommandLayout(w, r, links=False)
    assert (layout.reading, layout.writing) == (r * w + 2 * r, 3 * w + 3)


def test_a_state_has_the_size_of_the_paper() -> None:
    k, d, r = 20, 128, 4
    state: Any = DNC(item_dim=d, num_slots=k).initial_state(1)
    assert sum(part.numel() for part in state) == k * d + k * k + (r + 3) * k + r * d + 2 * d


def test_slots_of_another_width_are_mapped_to_the_items() -> None:
    method = DNC(item_dim=ITEM, num_slots=8, slot_dim=3, controller_dim=7, num_reads=1, norm_slots=True)
    state: Any = method.initial_state(2)
    assert state.slots.shape == (2, 1, 8, 3)
    assert state.hidden.shape == (2, 7)
    state = state._replace(slots=torch.randn(2, 1, 8, 3))
    memory = method.memory(state)
    assert memory.shape == (2, 8, ITEM)
    # the LayerNorm takes the slots' scale away
    scaled = method.memory(state._replace(slots=1000 * state.slots))
    torch.testing.assert_close(memory, scaled, rtol=1e-2, atol=1e-2)


def test_slots_that_do_not_divide_are_refused() -> None:
    with pytest.raises(BadInput, match="7 slots cannot be split over 2 blocks"):
        DNCCell(item_dim=4, num_slots=7, controller_dim=4, layout=CommandLayout(4, 1, num_blocks=2))


def test_large_inputs_leave_the_controller_in_bounds() -> None:
    cell = make_cell({})
    state, real = cell.initial_state(1), torch.ones(1, dtype=torch.bool)
    always_add = torch.full((1, 4 * CONTROL), 1e6)
    for _ in range(30):
        state = cell(state, always_add, real)
    assert_close(state.carry, torch.full((1, CONTROL), 20.0))
    assert (state.hidden.abs() <= 1).all()


def test_a_step_has_the_right_gradient() -> None:
    cell = make_cell({"masked": True, "deallocate": True, "sharpen": True}).double()
    state, real = DNCState(*(part.double() for part in random_state(cell, 1))), torch.ones(1, dtype=torch.bool)

    def step(items: Tensor, slots: Tensor, reads: Tensor) -> DNCState:
        return cell(state._replace(slots=slots, reads=reads), cell.project(items), real)

    inputs = (torch.randn(1, ITEM, dtype=torch.float64), state.slots, state.reads)
    assert torch.autograd.gradcheck(step, [value.requires_grad_() for value in inputs])
