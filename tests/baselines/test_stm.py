"""STM against its equations one number at a time, and the contract of every memory."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from stm_parts import D, E, K, N, R, assert_close, make_stm, memories, random_stream, segment_at
from torch import Tensor

from remem.baselines.stm import STM, matched_width
from remem.baselines.stm_cell import STMState, outer_product_attention
from remem.checks.memorizer import check_memorizer
from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import detach_state
from remem.streaming.state import StreamState, load_state, save_state

Matrix = list[list[float]]
either = pytest.mark.parametrize("learned", [False, True], ids=["as on bAbI", "all alphas learned"])


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


def linear(layer: torch.nn.Linear, vector: list[float]) -> list[float]:
    bias = [0.0] * layer.out_features if layer.bias is None else layer.bias.tolist()
    return [
        sum(w * x for w, x in zip(row, vector, strict=True)) + c
        for row, c in zip(layer.weight.tolist(), bias, strict=True)
    ]


def two_layers(layers: torch.nn.Sequential, vector: list[float]) -> list[float]:
    return linear(layers[2], [math.tanh(x) for x in linear(layers[0], vector)])  # type: ignore[arg-type]


def normalised(matrix: Matrix, norm: torch.nn.LayerNorm) -> Matrix:
    """One mean and one variance for the whole matrix."""
    flat = [x for row in matrix for x in row]
    mean = sum(flat) / len(flat)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in flat) / len(flat) + norm.eps)
    gain, bias = norm.weight.view(len(matrix), -1).tolist(), norm.bias.view(len(matrix), -1).tolist()
    return [
        [(x - mean) / deviation * gain[i][j] + bias[i][j] for j, x in enumerate(row)] for i, row in enumerate(matrix)
    ]


def slow_write(stm: STM, state: STMState, segment: Segment, row: int) -> tuple[Matrix, list[Matrix]]:
    """The equations of one stream's step, one number at a time."""
    cell, span, rels = stm.cell, range(E), range(R)
    position, vectors, mask = stm.position.tolist(), segment.items[row].tolist(), segment.mask[row].tolist()
    x = [sum(vectors[n][i] * position[n][i] for n in range(N) if mask[n]) for i in range(D)]
    f1, f2, f3 = (two_layers(net, x) for net in (stm.to_written, stm.to_cue, stm.to_attention))
    powers = [math.exp(score) for score in f3]
    share = [power / sum(powers) for power in powers]
    mi, mr = state.items[row].tolist(), state.relations[row].tolist()

    from_input = linear(cell.input_gates, f1)
    new = [[0.0] * E for _ in span]
    for p in span:
        from_memory = linear(cell.memory_gates, [math.tanh(value) for value in mi[p]])
        for q in span:
            let_in = 1 / (1 + math.exp(-from_input[q] - from_memory[q] - cell.input_bias.item()))
            keep = 1 / (1 + math.exp(-from_input[E + q] - from_memory[E + q] - cell.forget_bias.item()))
            new[p][q] = keep * mi[p][q] + let_in * math.tanh(f1[p] * f1[q])

    v = [sum(share[n] * f2[p] * mr[n][p][q] for n in rels for p in span) for q in span]
    alpha1, alpha2, alpha3 = (a.item() if isinstance(a, Tensor) else a for a in (cell.alpha1, cell.alpha2, cell.alpha3))
    z = [[new[p][q] + alpha2 * v[p] * f2[q] for q in span] for p in span]
    qkv = normalised([linear(cell.qkv, z[p]) for p in span], cell.qkv_norm)  # [e][3 r]

    def attended(a: int, p: int, q: int) -> float:
        return sum(math.tanh(qkv[p][a] * qkv[p][R + j]) * qkv[q][2 * R + j] for j in rels)

    found = [[[attended(a, p, q) for q in span] for p in span] for a in rels]
    if cell.feedback is not None:
        weight = cell.feedback.tolist()
        back = [[sum(w[a * E + i] * found[a][i][q] for a in rels for i in span) for q in span] for w in weight]
        new = [[new[p][q] + alpha3 * back[p][q] for q in span] for p in span]
    return new, [[[alpha1 * mr[a][p][q] + found[a][p][q] for q in span] for p in span] for a in rels]


@either
def test_a_step_is_the_equations_number_by_number(learned: bool) -> None:
    stm, stream = make_stm(learned=learned).double(), random_stream(3, 2)
    stream = stream._replace(items=stream.items.double(), segment_mask=torch.ones_like(stream.segment_mask))
    state = stm.initial_state(3)
    for t in range(2):
        segment = segment_at(stream, t)
        written = stm.write(state, segment)
        for row in range(3):
            items, relations = slow_write(stm, state, segment, row)
            assert_close(written.items[row], items)
            assert_close(written.relations[row], relations)
        state = written


def test_the_memory_is_w_s_times_all_rows_normalised_and_projected() -> None:
    stm = make_stm().double()
    state = stm.write(stm.initial_state(2), Segment(torch.randn(2, N, D).double(), torch.ones(2, N, dtype=torch.bool)))
    memory = stm.memory(state)
    assert memory.shape == (2, K, D)
    for row in range(2):
        rows = [values for matrix in state.relations[row].tolist() for values in matrix]
        for k, weights in enumerate(stm.to_slots.tolist()):
            mixed = [sum(w * values[e] for w, values in zip(weights, rows, strict=True)) for e in range(E)]
            assert_close(memory[row, k], linear(stm.out, normalised([mixed], stm.slot_norm)[0]))


def test_outer_product_attention_is_the_sum_of_all_outer_products() -> None:
    query, key, value = torch.randn(3, 4, 5), torch.randn(3, 2, 5), torch.randn(3, 2, 6)
    expanded = (torch.tanh(query[:, :, None] * key[:, None])[..., None] * value[:, None, :, None]).sum(dim=2)
    assert_close(outer_product_attention(query, key, value), expanded)


@pytest.mark.parametrize("table", ["of rows in turn", "of shared rows"])
def test_writing_segment_by_segment_is_writing_the_stream(table: str) -> None:
    stm, stream = make_stm(learned=True), random_stream(3, 5)
    in_turn = table == "of rows in turn"
    stream = stream._replace(in_turn=True) if in_turn else stream._replace(order=torch.randint(4, (3, 5)))
    trace, state = stm.write_stream(stm.initial_state(3), stream), stm.initial_state(3)
    for t in range(5):
        assert_close(trace.memories[:, t], stm.memory(state))
        state = stm.write(state, segment_at(stream, t))
    assert_close(trace.memories[:, 5], stm.memory(state))
    for whole, one_by_one in zip(trace.state, state, strict=True):
        assert_close(whole, one_by_one)


def test_a_stream_without_segments_leaves_the_memory_as_it_was() -> None:
    stm, stream = make_stm(), random_stream(2, 3)
    nothing = stream._replace(order=stream.order[:, :0], segment_mask=stream.segment_mask[:, :0])
    trace = stm.write_stream(stm.initial_state(2), nothing)
    assert_close(trace.memories, stm.memory(stm.initial_state(2))[:, None])
    assert trace.figures["forget_gate"] == 0


@either
@pytest.mark.parametrize("bounded_after", [1, 1000, None])
def test_stm_holds_to_the_contract_of_every_memory(learned: bool, bounded_after: int | None) -> None:
    check_memorizer(make_stm(learned=learned, bounded_after=bounded_after), D)


def test_padded_items_may_hold_anything_and_get_no_gradient() -> None:
    stm, stream = make_stm(learned=True), random_stream(3, 4)
    padded = ~stream.item_mask[..., None]
    items = stream.items.masked_fill(padded, torch.nan).requires_grad_()
    spoilt = memories(stm, stream._replace(items=items))
    assert torch.equal(spoilt, memories(stm, stream._replace(items=stream.items.masked_fill(padded, 7.0))))
    spoilt.square().sum().backward()
    assert items.grad is not None
    assert items.grad.isfinite().all()
    assert (items.grad[~stream.item_mask] == 0).all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in stm.parameters())


def test_a_segment_of_padding_keeps_the_state_to_the_last_bit() -> None:
    stm, stream = make_stm(), random_stream(2, 2)
    state = stm.write(stm.initial_state(2), segment_at(stream, 0))
    mask = torch.tensor([[False] * N, [True] * N])
    after = stm.write(state, Segment(torch.where(mask[..., None], torch.randn(2, N, D), torch.nan), mask))
    for new, old in zip(after, state, strict=True):
        assert torch.equal(new[0], old[0])
        assert not torch.equal(new[1], old[1])


def test_padded_segments_keep_the_memory_to_the_last_bit() -> None:
    stm, stream = make_stm(), random_stream(2, 4, ragged=False)
    # stream 0 pauses in the middle, stream 1 ends early; the rows they point to hold real items
    segment_mask = torch.tensor([[True, False, True, True], [True, True, False, False]])
    # as it was kept: what is read out of all of them by one product may differ in its last bits from row to row
    after = stm.along(stm.initial_state(2), stream._replace(segment_mask=segment_mask), lambda state: state.relations)[
        1
    ]
    for b in range(2):
        for t in range(4):
            assert torch.equal(after[b, t + 1], after[b, t]) != bool(segment_mask[b, t])


def test_the_gradient_reaches_the_first_of_twenty_segments_and_every_weight() -> None:
    stm, stream = make_stm(learned=True), random_stream(2, 20, ragged=False)
    items = stream.items.requires_grad_()
    (memories(stm, stream)[:, -1] * torch.randn(2, K, D)).sum().backward()
    assert items.grad is not None
    assert items.grad.isfinite().all()
    assert (items.grad[stream.order[:, 0]].norm(dim=-1) > 0).all()
    assert all(p.grad is not None and (p.grad != 0).any() for p in stm.parameters())


@either
def test_under_bf16_autocast_the_state_stays_float32_and_close(learned: bool) -> None:
    stm, stream = make_stm(learned=learned, width=16, num_queries=4), random_stream(4, 20, ragged=False)
    # feedback makes any difference grow from segment to segment, so the measure is noise of bf16's size in float32
    noisy = stream._replace(items=stream.items * (1 + 2.0**-8 * torch.randn_like(stream.items)))
    with torch.no_grad():
        exact, shaken = (stm.write_stream(stm.initial_state(4), s) for s in (stream, noisy))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded, one = (
                stm.write_stream(stm.initial_state(4), stream),
                stm.write(stm.initial_state(4), segment_at(stream, 0)),
            )
    assert {part.dtype for part in (*rounded.state, *one, rounded.memories)} == {torch.float32}
    for part in range(3):
        truth, half, noise = ((*trace.state, trace.memories)[part] for trace in (exact, rounded, shaken))
        assert (half - truth).norm() < 4 * (noise - truth).norm()
        assert learned or (half - truth).norm() < 0.02 * truth.norm()


def test_the_state_survives_a_file_and_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    stm, stream = make_stm(), random_stream(1, 3, ragged=False)
    state = stm.write_stream(stm.initial_state(1), stream).state
    save_state(tmp_path / "state.safetensors", StreamState(detach_state(state), (), 3 * N, 3, "weights"))
    loaded = load_state(tmp_path / "state.safetensors", stm.initial_state(1), "weights").memory
    assert isinstance(loaded, STMState)
    segment = segment_at(stream, 1)
    for after, expected in zip(stm.write(loaded, segment), stm.write(STMState(*state), segment), strict=True):
        assert torch.equal(after, expected)


def test_the_figures_are_the_mean_gates_of_real_segments_the_size_of_the_relations_and_alpha2() -> None:
    stm, stream = make_stm(), random_stream(3, 4)
    trace, state, opened = stm.write_stream(stm.initial_state(3), stream), stm.initial_state(3), []
    for t in range(4):
        segment = segment_at(stream, t)
        both = stm.cell.gates(state.items, stm.encode(*segment).written)
        opened.append(torch.stack([gate.mean(dim=(1, 2)) for gate in both])[:, segment.mask.any(dim=1)])
        state = stm.write(state, segment)
    let_in, keep = torch.cat(opened, dim=1).mean(dim=1)
    assert_close(trace.figures["input_gate"], let_in)
    assert_close(trace.figures["forget_gate"], keep)
    assert_close(trace.figures["relation_size"], state.relations.square().mean().sqrt())
    assert_close(trace.figures["alpha2"], 0.6)
    assert not any(figure.requires_grad for figure in trace.figures.values())
    assert trace.losses == {}


@pytest.mark.parametrize(("slots", "dim", "width"), [(20, 128, 17), (20, 64, 12), (4, 9, 2), (1, 1, 1)])
def test_the_matched_width_keeps_about_as_much_as_the_slots(slots: int, dim: int, width: int) -> None:
    assert matched_width(slots, dim, 8) == width
    assert width == min(range(1, 100), key=lambda s: abs(9 * s * s - slots * dim))


def test_alphas_are_fixed_or_learned_from_zero() -> None:
    on_babi = STM(item_dim=D, num_slots=K, segment_len=N, width=E).cell
    assert (on_babi.alpha1, on_babi.alpha3) == (1.0, 0.0)
    assert isinstance(on_babi.alpha2, torch.nn.Parameter)
    assert on_babi.alpha2 == 0
    assert on_babi.feedback is None
    elsewhere = STM(item_dim=D, num_slots=K, segment_len=N, width=E, alpha1=None, alpha3=None).cell
    assert {"alpha1", "alpha2", "alpha3", "feedback"} <= {name for name, _ in elsewhere.named_parameters()}


def test_a_position_mask_starts_as_the_mean_and_shorter_segments_use_its_beginning() -> None:
    stm = STM(item_dim=D, num_slots=K, segment_len=N, width=E)
    items, mask = torch.randn(2, N, D), torch.ones(2, N, dtype=torch.bool)
    assert_close(stm.encode(items, mask).cue, stm.to_cue(items.mean(dim=1)))
    short = torch.arange(N).expand(2, N) < 2
    for whole, cut in zip(stm.encode(items, short), stm.encode(items[:, :2], short[:, :2]), strict=True):
        assert_close(whole, cut)
    with pytest.raises(BadInput, match=f"{N + 1} items .* built for {N}"):
        stm.encode(torch.randn(1, N + 1, D), torch.ones(1, N + 1, dtype=torch.bool))


COMPILED = """
import torch
from remem.baselines.stm import STM
from remem.model.interface import EmbeddedStream

torch.manual_seed(0)
stm = STM(item_dim=6, num_slots=3, segment_len=4, width=5, num_queries=2, alpha2=0.5, alpha3=0.3)
real, order = torch.rand(15, 4) > 0.2, torch.arange(15).view(3, 5)
stream = EmbeddedStream(torch.randn(15, 4, 6), real, order, torch.rand(3, 5) > 0.2)
results = []
for compiled in (False, True):
    if compiled:
        stm.compile_parts("aot_eager")
    for half in (False, True):
        stm.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            trace = stm.write_stream(stm.initial_state(3), stream)
        trace.memories.square().sum().backward()
        results.append([*trace.state, *trace.figures.values(), *(p.grad.clone() for p in stm.parameters())])
torch.testing.assert_close(results[2], results[0], rtol=1e-4, atol=1e-5)
torch.testing.assert_close(results[3], results[1], rtol=2e-2, atol=2e-2)
counters = torch._dynamo.utils.counters
assert counters["stats"]["unique_graphs"] == 1, counters["stats"]
assert not counters["graph_break"], counters["graph_break"]
"""


def test_the_compiled_step_is_one_graph_and_changes_nothing() -> None:
    # in a process of its own: torch.compile cannot look through the shape checks of the test run
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
