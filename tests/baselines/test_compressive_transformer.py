from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from remem.baselines.compressive_step import QueueState, append, lay_out
from remem.baselines.compressive_transformer import CompressiveTransformer
from remem.checks.memorizer import check_memorizer
from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import EmbeddedStream, Trace
from remem.streaming.state import StreamState, load_state, save_state

LONG_STREAM = int(os.environ.get("REMEM_LONG_STREAM", "3000"))
D, N, K, RATE = 8, 4, 3, 2
SIZES = {"item_dim": D, "num_slots": K, "segment_len": N, "num_layers": 2, "num_heads": 2, "rate": RATE}
RAGGED = [[4, 1, 0, 3, 4, 2], [2, 0, 4, 4, 0, 0], [1, 1, 1, 1, 1, 1]]


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


def make(**changes: Any) -> CompressiveTransformer:
    """A small memory in double precision that is not training."""
    return CompressiveTransformer(**(SIZES | changes)).double().eval()


def stream_of(counts: list[list[int]], n: int = N, d: int = D, dtype: torch.dtype = torch.float64) -> EmbeddedStream:
    """Random streams whose segments have the given numbers of items, with NaN at all padding."""
    mask = torch.arange(n) < torch.tensor(counts)[..., None]  # [b, t, n]
    items = torch.randn(*mask.shape, d, dtype=dtype).masked_fill(~mask[..., None], torch.nan)
    order = torch.arange(mask[..., 0].numel()).view(mask.shape[:2])
    return EmbeddedStream(items.flatten(0, 1), mask.flatten(0, 1), order, mask.any(dim=-1))


def segment_at(stream: EmbeddedStream, t: int) -> Segment:
    rows = stream.order[:, t]
    return Segment(stream.items[rows], stream.item_mask[rows] & stream.segment_mask[:, t, None])


def write_all(model: CompressiveTransformer, stream: EmbeddedStream) -> Trace:
    return model.write_stream(model.initial_state(len(stream.order)), stream)


def convolved(model: CompressiveTransformer, level: int, rows: Tensor) -> Tensor:
    """Some real rows of one level through torch's convolution, with zeros in front up to a multiple of the rate."""
    if not len(rows):
        return rows
    compression, rate = model.step.compression, model.rate
    kernel = compression.weight[level].unflatten(0, (rate, -1)).permute(2, 1, 0)  # [out, in, rate]
    padded = F.pad(rows, (0, 0, -len(rows) % rate, 0))
    return F.conv1d(padded.T[None], kernel, compression.bias[level], stride=rate)[0].T


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def test_a_full_segment_is_compressed_by_a_convolution_with_kernel_and_stride_of_the_rate() -> None:
    model, rows = make(rate=3), torch.randn(4, 3, 6, D, dtype=torch.float64)
    compression = model.step.compression
    compressed = compression(rows, slice(None))
    for b, level in product(range(4), range(3)):
        assert_close(compressed[b, level], convolved(model, level, rows[b, level]))
    kernel = compression.weight[1].unflatten(0, (3, D))
    assert_close(compressed[0, 1, 1], compression.bias[1] + sum(rows[0, 1, 3 + j] @ kernel[j] for j in range(3)))


@pytest.mark.parametrize(("n", "rate"), [(4, 2), (5, 2), (4, 5), (6, 3), (3, 1)])
def test_a_short_segment_compresses_only_its_real_items(n: int, rate: int) -> None:
    model = make(segment_len=n, rate=rate, num_slots=4)
    counts = list(range(1, n + 1))
    state = write_all(model, stream_of([[count] for count in counts], n)).state
    after = model.write(state, segment_at(stream_of([[n]] * n, n), 0))
    for b, count in enumerate(counts):
        rows = -(-count // rate)
        assert after.compressed_mask[b].tolist() == [False] * (4 - rows) + [True] * rows
        assert (after.compressed[b, :, : 4 - rows] == 0).all()
        for level in range(3):
            real = state.short[b, level, state.short_mask[b]]
            assert len(real) == count
            assert_close(after.compressed[b, level, 4 - rows :], convolved(model, level, real))


def test_items_are_laid_side_by_side_wherever_padding_stands() -> None:
    mask = torch.tensor([[0, 1, 0, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    items = torch.arange(1.0, 21.0).view(4, 5, 1).masked_fill(~mask[..., None], torch.nan)
    laid, filled = lay_out(items, mask, rows=6, rate=2)
    expected = [[0, 2, 4, 5, 0, 0], [6, 7, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 16, 17, 18, 19, 20]]
    assert laid.squeeze(-1).tolist() == expected
    assert torch.equal(filled, laid.squeeze(-1) > 0)


def test_a_queue_is_first_in_first_out_and_drops_its_oldest_rows() -> None:
    queue, mask = torch.zeros(2, 1, 4, 1), torch.zeros(2, 4, dtype=torch.bool)
    for new, added in ([1, 2], [2, 1]), ([3, 4], [2, 0]), ([5, 6], [1, 2]):
        queue, mask = append(queue, mask, torch.tensor(new).float().expand(2, 1, 2)[..., None], torch.tensor(added))
    assert queue.flatten(1).tolist() == [[2, 3, 4, 5], [0, 1, 5, 6]]
    assert mask.tolist() == [[True] * 4, [False, True, True, True]]


def test_the_compressed_queue_holds_the_last_rows_of_all_past_segments() -> None:
    model, counts = make(num_slots=5), [4, 1, 3, 0, 2, 4, 3]
    stream, state, past = stream_of([counts]), model.initial_state(1), [torch.zeros(5, D, dtype=torch.float64)] * 3
    for t, count in enumerate(counts):
        before, state = state, model.write(state, segment_at(stream, t))
        for level in range(3):
            if count:
                new = convolved(model, level, before.short[0, level, before.short_mask[0]])
                past[level] = torch.cat([past[level], new])
            assert_close(state.compressed[0, level], past[level][-5:])
        assert int(state.compressed_mask.sum()) == min(5, len(past[0]) - 5)
    flushed = torch.cat([past[2], convolved(model, 2, state.short[0, 2, state.short_mask[0]])])
    assert_close(model.memory(state)[0], flushed[-5:])


def test_empty_rows_of_the_memory_hold_the_learned_vector() -> None:
    model = make(num_slots=5)
    trace = write_all(model, stream_of([[4, 3]]))
    empty = (trace.memories[0] == model.empty).all(dim=-1)
    assert empty.tolist() == [[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4]
    assert trace.figures["filled"] == 0.8


def slow_attention(model: CompressiveTransformer, level: int, past: list[Tensor], rows: Tensor) -> Tensor:
    """What layer `level` + 1 reads for each row, one pair of rows and one head at a time."""
    layer, dim = model.step.layers[level], D // 2
    width = K + 2 * N  # of [compressed ; short ; segment] when all are full
    sequence, read = [*past, *rows], torch.zeros_like(rows)
    for i, row in enumerate(rows):
        for head in range(2):
            part = slice(head * dim, (head + 1) * dim)
            scores, values = torch.zeros(len(sequence)).double(), torch.zeros(len(sequence), dim).double()
            for j, other in enumerate(sequence):
                key, values[j] = (half[part] for half in layer.key_value(other).chunk(2))
                distance = len(past) + i - j
                position = layer.distance(model.distance_table[width - 1 - distance])[part]
                scores[j] = layer.query(row)[part] @ (key + position) / dim**0.5
            read[i, part] = scores.softmax(dim=0) @ values
    return read


def slow_write(
    model: CompressiveTransformer, short: list[Tensor], compressed: list[Tensor], items: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """One full segment into the queues of one stream, given by level and holding real rows only."""
    hidden, levels = items, []
    for level, layer in enumerate(model.step.layers):
        levels.append(layer.norm(hidden))
        hidden = hidden + layer.out(slow_attention(model, level, [*compressed[level], *short[level]], levels[-1]))
        hidden = hidden + layer.feed_forward(layer.feed_norm(hidden))
    levels.append(model.step.norm(hidden))
    return levels, [torch.cat([compressed[i], convolved(model, i, short[i])])[-K:] for i in range(len(levels))]


@torch.no_grad()
def test_writing_is_what_the_equations_say() -> None:
    model, stream = make(), stream_of([[N] * 4])
    state, nothing = model.initial_state(1), torch.zeros(0, D, dtype=torch.float64)
    short, compressed = [nothing] * 3, [nothing] * 3
    for t in range(4):
        segment = segment_at(stream, t)
        short, compressed = slow_write(model, short, compressed, segment.items[0])
        state = model.write(state, segment)
        for level in range(3):
            assert_close(state.short[0, level], short[level])
            assert_close(state.compressed[0, level, state.compressed_mask[0]], compressed[level])


@pytest.mark.parametrize(("num_slots", "rate"), [(3, 2), (1, 2), (6, 3), (4, 1), (2, 5)])
def test_writing_segment_by_segment_is_writing_the_stream(num_slots: int, rate: int) -> None:
    model, stream = make(num_slots=num_slots, rate=rate), stream_of(RAGGED)
    trace, state = write_all(model, stream), model.initial_state(3)
    assert trace.memories.shape == (3, 7, num_slots, D)
    for t in range(6):
        assert_close(trace.memories[:, t], model.memory(state))
        state = model.write(state, segment_at(stream, t))
    assert_close(trace.memories[:, 6], model.memory(state))
    for left, right in zip(trace.state, state, strict=True):
        assert_close(left, right)


@pytest.mark.parametrize(("num_slots", "segment_len", "rate"), [(3, 4, 2), (20, 4, 5), (1, 6, 2), (4, 5, 3)])
def test_the_contract_holds(num_slots: int, segment_len: int, rate: int) -> None:
    model = CompressiveTransformer(item_dim=D, num_slots=num_slots, segment_len=segment_len, num_heads=2, rate=rate)
    check_memorizer(model, D)


def test_padding_holds_nothing_that_could_reach_a_memory_or_a_gradient() -> None:
    model = make(dropout=0.0).train()
    gradients, stream = [], stream_of(RAGGED)
    for garbage in (0.0, torch.nan, torch.inf):
        items = stream.items.masked_fill(~stream.item_mask[..., None], garbage).requires_grad_()
        model.zero_grad()
        trace = write_all(model, stream._replace(items=items))
        (trace.memories.sin().sum() + trace.losses["compression"]).backward()
        assert (items.grad[~stream.item_mask] == 0).all()
        gradients.append([trace.memories, items.grad, *(p.grad for p in model.parameters() if p.grad is not None)])
    for clean, *others in zip(*gradients, strict=True):
        assert clean.isfinite().all()
        assert all(torch.equal(clean, other) for other in others)


def test_a_padded_segment_changes_no_bit_of_the_state() -> None:
    model, stream = make(), stream_of([[4, 3, 2], [4, 4, 4]])
    state, mask = write_all(model, stream).state, torch.tensor([[False] * 4, [True] * 4])
    after = model.write(state, Segment(torch.randn(2, 4, D, dtype=torch.float64), mask))
    assert all(torch.equal(old[0], new[0]) for old, new in zip(state, after, strict=True))
    assert not torch.equal(state.short[1], after.short[1])


def first_gradients(model: CompressiveTransformer, stream: EmbeddedStream) -> Tensor:
    """Size of the last memory's gradient at each segment."""
    items = stream.items.nan_to_num().requires_grad_()
    write_all(model, stream._replace(items=items)).memories[:, -1].sin().sum().backward()
    return items.grad.flatten(1).norm(dim=1)[stream.order]


def test_the_gradient_reaches_as_far_as_the_levels_carry_it_and_no_further() -> None:
    # 2 rows a segment: the last memory holds rows of 2 segments, and each of 2 layers looks back at 1 + 2 more
    reached = first_gradients(make(), stream_of([[4] * 9] * 2)) > 0
    assert reached.tolist() == [[False] + [True] * 8] * 2


def test_no_gradient_passes_the_horizon() -> None:
    model, stream = make(), stream_of([[4] * 7, [4, 4, 0, 4, 4, 4, 0]])
    whole = write_all(model, stream).memories
    model.horizon = 3
    assert torch.equal(write_all(model, stream).memories, whole)
    reached = first_gradients(model, stream) > 0
    assert reached.tolist() == [[False] * 4 + [True] * 3, [False, False, False, True, True, True, False]]


def test_every_weight_learns_from_the_last_memory() -> None:
    model = make()
    write_all(model, stream_of([[4] * 3])).memories[:, -1].sin().sum().backward()
    unreached = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert unreached == {"empty"}  # all rows are filled
    assert (model.step.compression.weight.grad.flatten(1).norm(dim=1) > 0).all()


def test_the_compressions_loss_reaches_only_the_convolution() -> None:
    model, stream = make().train(), stream_of(RAGGED)
    items = stream.items.nan_to_num().requires_grad_()
    write_all(model, stream._replace(items=items)).losses["compression"].backward()
    assert items.grad is None or (items.grad == 0).all()
    reached = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {"step.compression.weight", "step.compression.bias"}
    by_level = model.step.compression.weight.grad.flatten(1).norm(dim=1) > 0
    assert by_level.tolist() == [True, True, False]  # nothing attends to the top level's queue


def content_attention(layer: nn.Module, rows: Tensor, memory: Tensor) -> Tensor:
    projected = layer.query(rows), *layer.key_value(memory).chunk(2, dim=1)
    query, key, value = (x.unflatten(1, (2, -1)).transpose(0, 1) for x in projected)
    weights = (query @ key.transpose(1, 2) / (D // 2) ** 0.5).softmax(dim=-1)
    return (weights @ value).transpose(0, 1).flatten(1)


@torch.no_grad()
def test_the_compressions_loss_is_the_mean_error_of_reconstructed_attention() -> None:
    model, stream = make(auxiliary_weight=0.5, dropout=0.0), stream_of(RAGGED)
    state, errors = model.initial_state(3), []
    for t in range(6):
        before, state = state, model.write(state, segment_at(stream, t))
        for b, counts in enumerate(RAGGED):
            if counts[t] and before.short_mask[b].any():
                for level, layer in enumerate(model.step.layers):
                    old, rows = (s.short[b, level, s.short_mask[b]] for s in (before, state))
                    wanted = content_attention(layer, rows, old)
                    given = content_attention(layer, rows, convolved(model, level, old))
                    errors.append((given - wanted).square().mean())
    assert write_all(model, stream).losses == {}
    assert_close(write_all(model.train(), stream).losses["compression"], 0.5 * torch.stack(errors).mean())


def test_there_is_no_loss_where_nothing_was_compressed_or_none_is_wanted() -> None:
    model, one = make().train(), stream_of([[3]])
    nothing = write_all(model, one._replace(order=one.order[:, :0], segment_mask=one.segment_mask[:, :0]))
    assert nothing.memories.shape == (1, 1, K, D)
    assert write_all(model, one).losses["compression"] == nothing.losses["compression"] == 0
    assert write_all(make(auxiliary_weight=0.0).train(), stream_of([[3, 3]])).losses == {}


def test_dropout_works_in_training_only() -> None:
    model, stream = make(), stream_of([[4, 4]])
    assert torch.equal(write_all(model, stream).memories, write_all(model, stream).memories)
    model.train()
    assert not torch.equal(write_all(model, stream).memories, write_all(model, stream).memories)


def test_a_figure_says_how_much_is_read_of_compressed_rows() -> None:
    model = make(num_slots=4)
    for layer in model.step.layers:
        nn.init.zeros_(layer.query.weight)
        nn.init.zeros_(layer.query.bias)
    figures = write_all(model, stream_of([[4, 4, 2]])).figures
    # attention is even: 2 compressed rows among 2 + 4 + 2 for the last segment's two items, none for the other eight
    assert_close(figures["compressed_attention"], torch.tensor(2 * (2 / 8) / 10, dtype=torch.float64))


def test_a_long_stream_stays_within_bounds() -> None:
    model = CompressiveTransformer(item_dim=4, num_slots=3, segment_len=2, num_layers=1, num_heads=1, rate=2).eval()
    state, chunk = model.initial_state(2), 100
    compression, largest = model.step.compression, 4**0.5  # LayerNorm's: sqrt(d)
    bound = largest * compression.weight.abs().sum(dim=1).max() + compression.bias.abs().max()
    with torch.no_grad():
        for _ in range(LONG_STREAM // chunk):
            items = torch.randn(2 * chunk, 2, 4) * 10 ** torch.empty(2 * chunk, 1, 1).uniform_(-3, 3)
            mask = torch.rand(2 * chunk, 2) < 0.7
            order = torch.arange(2 * chunk).view(2, chunk)
            trace = model.write_stream(state, EmbeddedStream(items, mask, order, torch.rand(2, chunk) < 0.9))
            state = trace.state
            assert trace.memories.isfinite().all()
            assert state.short.abs().max() <= largest * (1 + 1e-5)
            assert state.compressed.abs().max() <= bound * (1 + 1e-5)
    assert state.compressed_mask.all()


def test_16_bits_change_the_memory_little_and_the_state_stays_in_32() -> None:
    model = CompressiveTransformer(item_dim=32, num_slots=6, segment_len=4, rate=2, dropout=0.0)
    stream = stream_of([[4, 3, 4, 0, 2, 4, 4, 4]] * 3, d=32, dtype=torch.float32)
    plain = write_all(model, stream)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = write_all(model, stream)
    assert {part.dtype for part in rounded.state} == {torch.float32, torch.bool}
    assert rounded.memories.dtype == rounded.losses["compression"].dtype == torch.float32
    assert (rounded.memories - plain.memories).norm() < 0.02 * plain.memories.norm()
    torch.testing.assert_close(rounded.losses["compression"], plain.losses["compression"], rtol=0.02, atol=0.0)


def test_a_state_goes_to_disk_and_back(tmp_path: Path) -> None:
    model, stream = make(), stream_of([[4, 3, 1, 4]])
    state = write_all(model, stream).state
    save_state(tmp_path / "state", StreamState(state, (), items=12, segments=4, fingerprint="x"))
    loaded = load_state(tmp_path / "state", model.initial_state(1), "x").memory
    assert isinstance(loaded, QueueState)
    assert all(torch.equal(old, new) for old, new in zip(state, loaded, strict=True))
    more = segment_at(stream, 0)
    assert torch.equal(model.memory(model.write(loaded, more)), model.memory(model.write(state, more)))


def test_no_shape_depends_on_the_data() -> None:
    with FakeTensorMode():
        model = CompressiveTransformer(**(SIZES | {"num_layers": 1}), horizon=1)
        trace = write_all(model, stream_of([[4, 2], [0, 3]], dtype=torch.float32))
        (trace.memories.sum() + trace.losses["compression"]).backward()
        assert trace.memories.shape == (2, 3, K, D)


COMPILED = """
import torch
from test_compressive_transformer import make, stream_of, write_all

model, stream = make(num_layers=1, dropout=0.0).train(), stream_of([[4, 2, 3], [1, 0, 4]])
results = []
for compiled in (False, True):
    if compiled:
        model.compile_parts("aot_eager")
    model.zero_grad()
    trace = write_all(model, stream)
    (trace.memories.square().sum() + trace.losses["compression"]).backward()
    results.append([trace.memories, *trace.figures.values(), *(p.grad.clone() for p in model.parameters())])
for plain, fast in zip(*results, strict=True):
    torch.testing.assert_close(fast, plain)
counters = torch._dynamo.utils.counters
assert not counters["graph_break"]
assert counters["stats"]["unique_graphs"] == 2  # the first segment's state has no gradient, the others' has
"""


def test_compiling_breaks_no_graph_and_changes_no_memory_and_no_gradient() -> None:
    # in a process of its own: torch.compile cannot look through the shape checks of the test run
    command, folder = [sys.executable, "-c", COMPILED], Path(__file__).parent
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(BadInput, match="horizon of 0"):
        make(horizon=0)
    with pytest.raises(BadInput, match="3 heads"):
        CompressiveTransformer(item_dim=8, num_slots=2, segment_len=2, num_heads=3)
    model = make()
    with pytest.raises(BadInput, match="segment of 5 items"):
        model.write(model.initial_state(1), segment_at(stream_of([[5]], n=5), 0))
