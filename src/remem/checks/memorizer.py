"""The contract of a `Memorizer`, as named checks; each raises AssertionError with a sentence when it is broken.

from remem.checks.memorizer import check_memorizer
check_memorizer(my_memorizer, item_dim=32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import EmbeddedStream, Memorizer, State

RTOL, ATOL = 1e-4, 1e-5
_STREAMS, _SEGMENTS, _ITEMS = 3, 6, 4
_CHUNK = 50  # segments of an endless stream that are written at once
_PATIENCE, _LEAST = 10, 5_000  # times the segments asked for, and how many at least, before growth is called endless


def _stream(item_dim: int, seed: int = 0, segments: int = _SEGMENTS) -> EmbeddedStream:
    generator = torch.Generator().manual_seed(seed)
    items = torch.randn(_STREAMS * segments, _ITEMS, item_dim, generator=generator)
    mask = torch.ones(_STREAMS * segments, _ITEMS, dtype=torch.bool)
    order = torch.arange(_STREAMS * segments).view(_STREAMS, segments)
    return EmbeddedStream(items, mask, order, torch.ones(_STREAMS, segments, dtype=torch.bool))


def _memory(memorizer: Memorizer, stream: EmbeddedStream, state: State | None = None) -> Tensor:
    start = memorizer.initial_state(len(stream.order)) if state is None else state
    return memorizer.memory(memorizer.write_stream(start, stream).state)


def _evaluating(memorizer: Memorizer) -> None:
    if isinstance(memorizer, nn.Module):
        memorizer.eval()


def _same(left: Tensor, right: Tensor, broken: str) -> None:
    torch.testing.assert_close(left, right, rtol=RTOL, atol=ATOL, msg=lambda why: f"{broken}\n{why}")


def check_chunking(memorizer: Memorizer, item_dim: int) -> None:
    """Any chunking gives the memory of one pass; `write` segment by segment gives it, too, and those on the way."""
    stream = _stream(item_dim)
    trace = memorizer.write_stream(memorizer.initial_state(_STREAMS), stream)
    whole = memorizer.memory(trace.state)
    state = memorizer.initial_state(_STREAMS)
    for start, stop in ((0, 1), (1, 4), (4, _SEGMENTS)):
        part = stream._replace(order=stream.order[:, start:stop], segment_mask=stream.segment_mask[:, start:stop])
        state = memorizer.write_stream(state, part).state
    _same(memorizer.memory(state), whole, "Writing in chunks gave another memory than writing at once.")
    state = memorizer.initial_state(_STREAMS)
    along = [memorizer.memory(state).clone()]
    for t in range(_SEGMENTS):
        rows = stream.order[:, t]
        state = memorizer.write(state, Segment(stream.items[rows], stream.item_mask[rows]))
        along.append(memorizer.memory(state).clone())
    _same(memorizer.memory(state), whole, "Writing segment by segment gave another memory than `write_stream`.")
    # questions are answered from these, and trained on them
    _same(
        trace.memories,
        torch.stack(along, dim=1),
        "The memories that `write_stream` tells are not those before the first and after every segment.",
    )


def check_padding(memorizer: Memorizer, item_dim: int) -> None:
    """Padded items and padded segments change nothing, whatever they hold."""
    stream = _stream(item_dim)
    mask = stream.item_mask.clone()
    mask[:, -1] = False
    garbage = stream.items.clone()
    garbage[:, -1] = torch.nan
    clean = stream._replace(items=stream.items.masked_fill(~mask[..., None], 0.0), item_mask=mask)
    dirty = stream._replace(items=garbage.clone().requires_grad_(), item_mask=mask)
    for wanted in (True, False):  # with gradients and without, as what trains may be computed another way
        with torch.set_grad_enabled(wanted):
            found = _memory(memorizer, dirty)
            _same(found, _memory(memorizer, clean), "What stands at a padded item changed the memory.")
            if wanted:
                found.square().sum().backward()
    assert dirty.items.grad is None or bool(torch.isfinite(dirty.items.grad).all()), (
        "What stands at a padded item spoiled the gradient."
    )
    longer = stream._replace(
        order=nn.functional.pad(stream.order, (0, 2)), segment_mask=nn.functional.pad(stream.segment_mask, (0, 2))
    )
    _same(_memory(memorizer, longer), _memory(memorizer, stream), "Padded segments at the end changed the memory.")
    state = memorizer.write_stream(memorizer.initial_state(_STREAMS), stream).state
    nothing = torch.zeros(_STREAMS, _ITEMS, dtype=torch.bool)
    after = memorizer.write(state, Segment(garbage[:_STREAMS], nothing))
    assert all(torch.equal(a, b) for a, b in zip(state, after, strict=True)), "A segment of padding changed the state."
    written, tidy = (
        memorizer.write(memorizer.initial_state(_STREAMS), Segment(items[:_STREAMS], mask[:_STREAMS]))
        for items in (garbage, clean.items)
    )
    _same(
        memorizer.memory(written),
        memorizer.memory(tidy),
        "What stands at a padded item changed what `write` makes of a segment.",
    )


def check_neighbours(memorizer: Memorizer, item_dim: int) -> None:
    """No stream touches another: permuting the batch permutes the memories, and changing one leaves the others."""
    stream = _stream(item_dim)
    turned = torch.tensor([2, 0, 1])
    memory = _memory(memorizer, stream)
    permuted = _memory(memorizer, stream._replace(order=stream.order[turned]))
    _same(permuted, memory[turned], "Permuting the streams did not just permute their memories.")
    items = stream.items.clone()
    items[stream.order[0]] *= -1.0
    changed = _memory(memorizer, stream._replace(items=items))
    _same(changed[1:], memory[1:], "Changing one stream changed another's memory.")
    assert not torch.allclose(changed[0], memory[0], rtol=RTOL, atol=ATOL), (
        "Changing a stream left its memory as it was."
    )


def check_bounded(memorizer: Memorizer, item_dim: int) -> None:
    """The state does not grow with the stream, and stays finite."""
    short = memorizer.write_stream(memorizer.initial_state(_STREAMS), _stream(item_dim)).state
    long = short
    for seed in range(20):
        long = memorizer.write_stream(long, _stream(item_dim, seed)).state
    assert [part.shape for part in long] == [part.shape for part in short], "The state grew with the stream."
    assert all(bool(torch.isfinite(part).all()) for part in long), "The state is not finite after a long stream."


class Endless(NamedTuple):
    """What an endless stream showed."""

    largest: float
    """The largest number that was found in the state."""
    segments: int
    """Random segments that were written."""
    along: list[tuple[int, float]]
    """The largest number in the state after so many segments."""


def check_endless(memorizer: Memorizer, item_dim: int, segments: int = 100_000) -> Endless:
    """Random segments without end, some of them huge: every part of the state stays finite and stops growing.

    A state may take its time to settle. If it still grows after so many segments, the stream goes on, up to ten times
    as long and for 5,000 at least; only what grows all the way is refused.
    """
    _evaluating(memorizer)
    if segments < 2:
        raise BadInput(f"{segments} segments are no stream that could grow; give at least 2.")
    every = max(1, segments // 10)
    along: list[tuple[int, float]] = []
    sizes: list[list[float]] = []
    with torch.no_grad():
        state, written = memorizer.initial_state(_STREAMS), 0
        growing = dict.fromkeys(range(len(state)), (0.0, 0.0))
        while written < segments or (growing and written < max(_PATIENCE * segments, _LEAST)):
            for start in range(written, written + every, _CHUNK):
                chunk = range(start, min(start + _CHUNK, written + every))
                state = memorizer.write_stream(state, _endless_stream(item_dim, chunk)).state
            written += every
            assert all(bool(torch.isfinite(part).all()) for part in state), (
                f"The state is not finite after {written:,} random segments."
            )
            sizes.append([float(part.float().abs().max()) for part in state if part.numel()])
            along.append((written, max(sizes[-1], default=0.0)))
            if written >= segments:  # what has stopped once does not count again
                growing = {part: ends for part, ends in _growing(sizes).items() if part in growing}
    for first, second in growing.values():
        raise AssertionError(
            f"A part of the state grew from {first:g} to {second:g} over {written:,} random segments: "
            "it grows with the stream. Bound what a write adds up, or let it fade."
        )
    return Endless(max(size for _, size in along), written, along)


def _endless_stream(item_dim: int, numbers: range) -> EmbeddedStream:
    """The segments of these numbers, the same however they are cut; one in 97 is a hundred times as large."""
    items = torch.stack([
        (100.0 if number % 97 == 96 else 1.0)
        * torch.randn(_STREAMS, _ITEMS, item_dim, generator=torch.Generator().manual_seed(number))
        for number in numbers
    ], dim=1).flatten(0, 1)  # fmt: skip
    order = torch.arange(len(items)).view(_STREAMS, len(numbers))
    mask = torch.ones(items.shape[:2], dtype=torch.bool)
    return EmbeddedStream(items, mask, order, torch.ones_like(order, dtype=torch.bool), in_turn=True)


def _growing(sizes: list[list[float]]) -> dict[int, tuple[float, float]]:
    """The largest numbers of a stream's first fifth and second half, for each part that grows with it.

    A sum of items with a mean grows fivefold in between, one of items without a mean as their root, more than twofold.
    Each part by itself: a small one may grow for long beneath a large one that does not.
    """
    early, late = max(1, len(sizes) // 5), len(sizes) // 2
    ends = ((max(along[:early]), max(along[late:])) for along in zip(*sizes, strict=True))
    return {part: (first, second) for part, (first, second) in enumerate(ends) if second > 1.5 * first}


def check_saved(memorizer: Memorizer, item_dim: int) -> None:
    """A state written to a file and read again goes on as if nothing had happened, to the last bit."""
    stream = _stream(item_dim)
    state = memorizer.write_stream(memorizer.initial_state(_STREAMS), stream).state
    names = [str(number) for number in range(len(state))]
    read = load(save({name: part.contiguous() for name, part in zip(names, state, strict=True)}))
    again = type(state)(*(read[name] for name in names))
    rows = stream.order[:, 0]
    segment = Segment(stream.items[rows], stream.item_mask[rows])
    after, after_again = memorizer.write(state, segment), memorizer.write(again, segment)
    assert all(torch.equal(a, b) for a, b in zip(after, after_again, strict=True)), (
        "A state that was saved and loaded went on differently."
    )


def check_purity(memorizer: Memorizer, item_dim: int) -> None:
    """Writing returns a new state and leaves the old one alone; the same write twice gives the same state."""
    stream = _stream(item_dim)
    state = memorizer.write_stream(memorizer.initial_state(_STREAMS), stream).state
    kept = [part.clone() for part in state]
    rows = stream.order[:, 0]
    segment = Segment(stream.items[rows], stream.item_mask[rows])
    first, second = memorizer.write(state, segment), memorizer.write(state, segment)
    assert all(torch.equal(a, b) for a, b in zip(state, kept, strict=True)), "`write` changed the state it was given."
    memorizer.write_stream(state, stream)
    assert all(torch.equal(a, b) for a, b in zip(state, kept, strict=True)), (
        "`write_stream` changed the state it was given."
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), "The same write gave two states."


def check_first_gradient(memorizer: Memorizer, item_dim: int) -> None:
    """The gradient of the last memory reaches the first segment."""
    stream = _stream(item_dim)
    items = stream.items.clone().requires_grad_()
    with torch.enable_grad():
        _memory(memorizer, stream._replace(items=items)).square().sum().backward()
    first = stream.order[:, 0]
    assert items.grad is not None, "No gradient reaches the items."
    assert items.grad[first].norm() > 0, "No gradient reaches the first segment."


CHECKS: tuple[Callable[[Memorizer, int], None], ...] = (
    check_chunking,
    check_padding,
    check_neighbours,
    check_bounded,
    check_purity,
    check_saved,
    check_first_gradient,
)


def check_memorizer(memorizer: Memorizer, item_dim: int) -> None:
    """All checks; a module is put into evaluation mode first, since dropout breaks every one of them on purpose."""
    _evaluating(memorizer)
    for check in CHECKS:
        with torch.no_grad():
            check(memorizer, item_dim)
