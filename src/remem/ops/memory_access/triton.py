"""One step of a memory matrix as two Triton kernels: one program is one block of one stream.

A block's slots stay in registers from the write to the last head's read. README.md has the derivation. Names that begin
with `on_` are gradients.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from remem.ops.memory_access import reference

EPSILON = tl.constexpr(reference.EPSILON)
LARGEST = tl.constexpr(reference.LARGEST)
MULTIPROCESSORS = 132  # of the GPU this was compiled for


@triton.jit
def _row(pointer, places, size: tl.constexpr):
    """A vector, zeros where it is padded."""
    return tl.load(pointer + places, mask=places < size, other=0.0)


@triton.jit
def _put_row(pointer, values, places, size: tl.constexpr):
    tl.store(pointer + places, values, mask=places < size)


@triton.jit
def _tile(pointer, rows, columns, num_rows: tl.constexpr, num_columns: tl.constexpr):
    """A matrix, zeros where it is padded."""
    inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    return tl.load(pointer + rows[:, None] * num_columns + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _put_tile(pointer, values, rows, columns, num_rows: tl.constexpr, num_columns: tl.constexpr):
    inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    tl.store(pointer + rows[:, None] * num_columns + columns[None, :], values, mask=inside)


@triton.jit
def _oneplus(x):
    """1 + log(1 + e^x), x clipped on both sides."""
    return 1.0 + tl.log(1.0 + tl.exp(tl.minimum(tl.maximum(x, -LARGEST), LARGEST)))


@triton.jit
def _through_oneplus(x, grad):
    return tl.where((x >= -LARGEST) & (x <= LARGEST), tl.sigmoid(x) * grad, 0.0)


@triton.jit
def _content(slots, inverse, key, strength, inside):
    """c = softmax_k(beta cos(key, m_k)), the cosines, and 1 / |key|; `inverse` is 1 / |m_k|."""
    key_inverse = tl.rsqrt(tl.sum(key * key, axis=0) + EPSILON)
    cosine = tl.sum(slots * key[None, :], axis=1) * inverse * key_inverse
    # a strength is at most 21: no power overflows, and no largest score has to be found and taken off
    powers = tl.where(inside, tl.exp(strength * cosine), 0.0)
    return powers / tl.sum(powers, axis=0), cosine, key_inverse


@triton.jit
def _through_content(on_found, found, cosine, strength, slots, inverse, key, key_inverse):
    """Gradients of the strength, the key and the dot products, and what turns each slot: on_cosine times cosine."""
    on_scores = found * (on_found - tl.sum(found * on_found, axis=0))
    on_strength = tl.sum(on_scores * cosine, axis=0)
    turning = strength * on_scores * cosine
    on_dots = strength * on_scores * inverse * key_inverse
    on_key = tl.sum(on_dots[:, None] * slots, axis=0) - tl.sum(turning, axis=0) * key_inverse * key_inverse * key
    return on_strength, on_key, on_dots, turning


@triton.jit
def _modes(commands):
    """pi = softmax of three."""
    back, found, on = tl.load(commands), tl.load(commands + 1), tl.load(commands + 2)
    most = tl.maximum(tl.maximum(back, found), on)
    back, found, on = tl.exp(back - most), tl.exp(found - most), tl.exp(on - most)
    total = back + found + on
    return back / total, found / total, on / total


@triton.jit
def _gate(logits, block, C: tl.constexpr, CP: tl.constexpr, X: tl.constexpr):
    """att of one block: a softmax over all of the stream's."""
    c = tl.arange(0, CP)
    scores = tl.load(logits + c * X, mask=c < C, other=float("-inf"))
    powers = tl.exp(scores - tl.max(scores, axis=0))
    return tl.sum(tl.where(c == block, powers, 0.0), axis=0) / tl.sum(powers, axis=0)


@triton.jit
def _allocation(usage, k, inside):
    """a_j = (1 - u_j) prod u_i over the i before j; besides a the products, u~ and which i stands before which j."""
    used = EPSILON + (1.0 - EPSILON) * usage
    own, other = used[:, None], used[None, :]
    before = ((other < own) | ((other == own) & (k[None, :] < k[:, None]))) & inside[None, :]
    less_used = tl.exp(tl.sum(tl.where(before, tl.log(other), 0.0), axis=1))
    return tl.where(inside, (1.0 - used) * less_used, 0.0), less_used, used, before


@triton.jit
def _next_links(links, precedence, written, k):
    """L'_ij = (1 - w_i - w_j) L_ij + w_i p_j, nothing on the diagonal."""
    row, column = written[:, None], written[None, :]
    return tl.where(k[:, None] == k[None, :], 0.0, (1.0 - row - column) * links + row * precedence[None, :])


@triton.jit
def _forward(
    slots, usage, write_weights, read_weights, precedence, links, reads, xi, real,
    new_slots, new_usage, new_write_weights, new_read_weights, new_precedence, new_links, new_reads,
    C: tl.constexpr, K: tl.constexpr, D: tl.constexpr, R: tl.constexpr, LINKS: tl.constexpr,
    CP: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RP: tl.constexpr,
    MODES: tl.constexpr, GATES: tl.constexpr, STRENGTHS: tl.constexpr, FREE: tl.constexpr, WRITE_KEY: tl.constexpr,
    VECTOR: tl.constexpr, WRITE_STRENGTH: tl.constexpr, OPENINGS: tl.constexpr, X: tl.constexpr,
):  # fmt: skip
    """The write, then the heads in turn. `new_reads` are this block's; a padded stream's are in its first block."""
    stream, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = stream * C + block
    k, d, r = tl.arange(0, KP), tl.arange(0, DP), tl.arange(0, RP)
    inside = k < K
    slot = _tile(slots + row * K * D, k, d, K, D)
    used = _row(usage + row * K, k, K)
    written = _row(write_weights + row * K, k, K)
    if tl.load(real + stream) != 0:
        commands = xi + row * X
        # what is free, and what looks like the key
        kept = tl.full([KP], 1.0, tl.float32)
        for i in tl.static_range(R):
            kept *= 1.0 - tl.sigmoid(tl.load(commands + FREE + i)) * _row(read_weights + (row * R + i) * K, k, K)
        used = (1.0 - (1.0 - used) * (1.0 - written)) * kept
        allocated, _, _, _ = _allocation(used, k, inside)
        inverse = tl.rsqrt(tl.sum(slot * slot, axis=1) + EPSILON)
        strength = _oneplus(tl.load(commands + WRITE_STRENGTH))
        found, _, _ = _content(slot, inverse, _row(commands + WRITE_KEY, d, D), strength, inside)
        allocation_gate = tl.sigmoid(tl.load(commands + OPENINGS))
        write_gate = tl.sigmoid(tl.load(commands + OPENINGS + 1))
        written = write_gate * (allocation_gate * allocated + (1.0 - allocation_gate) * found)
        # the write
        vector = _row(commands + VECTOR, d, D)
        erase = tl.sigmoid(_row(commands + OPENINGS + 2, d, D))
        slot += written[:, None] * (vector[None, :] - erase[None, :] * slot)
        inverse = tl.rsqrt(tl.sum(slot * slot, axis=1) + EPSILON)
        if LINKS:
            last = _row(precedence + row * K, k, K)
            linked = _next_links(_tile(links + row * K * K, k, k, K, K), last, written, k)
            _put_tile(new_links + row * K * K, linked, k, k, K, K)
            _put_row(new_precedence + row * K, (1.0 - tl.sum(written, axis=0)) * last + written, k, K)
        # the reads
        for i in range(R):
            strength = _oneplus(tl.load(commands + STRENGTHS + i))
            weights, _, _ = _content(slot, inverse, _row(commands + i * D, d, D), strength, inside)
            if LINKS:
                back, by_content, on = _modes(commands + MODES + 3 * i)
                old = _row(read_weights + (row * R + i) * K, k, K)
                weights = by_content * weights
                weights += back * tl.sum(linked * old[:, None], axis=0)
                weights += on * tl.sum(linked * old[None, :], axis=1)
            if C > 1:
                weights *= _gate(xi + stream * C * X + GATES + i, block, C, CP, X)
            _put_row(new_read_weights + (row * R + i) * K, weights, k, K)
            _put_row(new_reads + (row * R + i) * D, tl.sum(slot * weights[:, None], axis=0), d, D)
    else:
        _put_tile(new_read_weights + row * R * K, _tile(read_weights + row * R * K, r, k, R, K), r, k, R, K)
        old_reads = _tile(reads + stream * R * D, r, d, R, D)
        if C > 1:
            old_reads = tl.where(block == 0, old_reads, 0.0)
        _put_tile(new_reads + row * R * D, old_reads, r, d, R, D)
        if LINKS:
            _put_tile(new_links + row * K * K, _tile(links + row * K * K, k, k, K, K), k, k, K, K)
            _put_row(new_precedence + row * K, _row(precedence + row * K, k, K), k, K)
    _put_tile(new_slots + row * K * D, slot, k, d, K, D)
    _put_row(new_usage + row * K, used, k, K)
    _put_row(new_write_weights + row * K, written, k, K)


@triton.jit
def _backward(
    grad_new_slots, grad_new_usage, grad_new_read_weights, grad_new_precedence, grad_new_links, grad_new_reads,
    slots, usage, write_weights, read_weights, precedence, links, xi, real,
    new_usage, new_write_weights, new_read_weights, new_reads,
    grad_slots, grad_usage, grad_read_weights, grad_precedence, grad_links, grad_reads, grad_xi,
    C: tl.constexpr, K: tl.constexpr, D: tl.constexpr, R: tl.constexpr, LINKS: tl.constexpr,
    CP: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RP: tl.constexpr,
    MODES: tl.constexpr, GATES: tl.constexpr, STRENGTHS: tl.constexpr, FREE: tl.constexpr, WRITE_KEY: tl.constexpr,
    VECTOR: tl.constexpr, WRITE_STRENGTH: tl.constexpr, OPENINGS: tl.constexpr, X: tl.constexpr,
):  # fmt: skip
    """The heads first, then the write, then what was free; every gradient of this block is written once."""
    stream, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = stream * C + block
    k, d, r = tl.arange(0, KP), tl.arange(0, DP), tl.arange(0, RP)
    inside = k < K
    commands, on_commands = xi + row * X, grad_xi + row * X
    on_slots = _tile(grad_new_slots + row * K * D, k, d, K, D)
    on_usage = _row(grad_new_usage + row * K, k, K)
    if tl.load(real + stream) != 0:
        slot = _tile(slots + row * K * D, k, d, K, D)
        written = _row(new_write_weights + row * K, k, K)
        vector = _row(commands + VECTOR, d, D)
        erase = tl.sigmoid(_row(commands + OPENINGS + 2, d, D))
        new = slot + written[:, None] * (vector[None, :] - erase[None, :] * slot)
        inverse = tl.rsqrt(tl.sum(new * new, axis=1) + EPSILON)
        turning = tl.zeros([KP], tl.float32)
        on_old = tl.zeros([RP, KP], tl.float32)  # of the read weights of the step before
        if LINKS:
            link, last = _tile(links + row * K * K, k, k, K, K), _row(precedence + row * K, k, K)
            linked = _next_links(link, last, written, k)
            on_linked = _tile(grad_new_links + row * K * K, k, k, K, K)
        for i in range(R):
            # r = w M'
            on_read = _row(grad_new_reads + (stream * R + i) * D, d, D)
            weights = _row(new_read_weights + (row * R + i) * K, k, K)
            on_weights = _row(grad_new_read_weights + (row * R + i) * K, k, K) + tl.sum(new * on_read[None, :], axis=1)
            on_slots += weights[:, None] * on_read[None, :]
            if C > 1:
                # the softmax over blocks: what the others' programs find here is in what they have left
                gate = _gate(xi + stream * C * X + GATES + i, block, C, CP, X)
                total = tl.sum(_row(new_reads + (stream * R + i) * D, d, D) * on_read, axis=0)
                for c in tl.static_range(C):
                    place = ((stream * C + c) * R + i) * K
                    total += tl.sum(_row(new_read_weights + place, k, K) * _row(grad_new_read_weights + place, k, K))
                tl.store(on_commands + GATES + i, tl.sum(on_weights * weights, axis=0) - gate * total)
                on_weights *= gate
            key, raw_strength = _row(commands + i * D, d, D), tl.load(commands + STRENGTHS + i)
            strength = _oneplus(raw_strength)
            found, cosine, key_inverse = _content(new, inverse, key, strength, inside)
            if LINKS:
                back, by_content, on = _modes(commands + MODES + 3 * i)
                old = _row(read_weights + (row * R + i) * K, k, K)
                on_back_mode = tl.sum(on_weights * tl.sum(linked * old[:, None], axis=0), axis=0)
                on_content_mode = tl.sum(on_weights * found, axis=0)
                on_on_mode = tl.sum(on_weights * tl.sum(linked * old[None, :], axis=1), axis=0)
                mean = back * on_back_mode + by_content * on_content_mode + on * on_on_mode
                tl.store(on_commands + MODES + 3 * i, back * (on_back_mode - mean))
                tl.store(on_commands + MODES + 3 * i + 1, by_content * (on_content_mode - mean))
                tl.store(on_commands + MODES + 3 * i + 2, on * (on_on_mode - mean))
                on_back, on_on = back * on_weights, on * on_weights
                on_linked += old[:, None] * on_back[None, :] + on_on[:, None] * old[None, :]
                through = tl.sum(linked * on_back[None, :], axis=1)[None, :]
                through += tl.sum(linked * on_on[:, None], axis=0)[None, :]
                on_old = tl.where(r[:, None] == i, through, on_old)
                on_weights *= by_content
            on_strength, on_key, on_dots, turns = _through_content(
                on_weights, found, cosine, strength, new, inverse, key, key_inverse
            )
            on_slots += on_dots[:, None] * key[None, :]
            turning += turns
            _put_row(on_commands + i * D, on_key, d, D)
            tl.store(on_commands + STRENGTHS + i, _through_oneplus(raw_strength, on_strength))
        on_slots -= (turning * inverse * inverse)[:, None] * new
        # the write; the slots are loaded again rather than held all along
        slot = _tile(slots + row * K * D, k, d, K, D)
        on_written = tl.sum(on_slots * (vector[None, :] - erase[None, :] * slot), axis=1)
        _put_row(on_commands + VECTOR, tl.sum(on_slots * written[:, None], axis=0), d, D)
        on_erase = -tl.sum(on_slots * slot * written[:, None], axis=0)
        _put_row(on_commands + OPENINGS + 2, on_erase * erase * (1.0 - erase), d, D)
        on_slots *= 1.0 - written[:, None] * erase[None, :]
        if LINKS:
            on_linked = tl.where(k[:, None] == k[None, :], 0.0, on_linked)
            on_last = _row(grad_new_precedence + row * K, k, K)
            on_written += tl.sum(on_linked * (last[None, :] - link), axis=1) - tl.sum(on_linked * link, axis=0)
            on_written += on_last - tl.sum(on_last * last, axis=0)
            on_last = (1.0 - tl.sum(written, axis=0)) * on_last + tl.sum(on_linked * written[:, None], axis=0)
            _put_row(grad_precedence + row * K, on_last, k, K)
            _put_tile(grad_links + row * K * K, (1.0 - written[:, None] - written[None, :]) * on_linked, k, k, K, K)
        # the write weights: by content and by what is free
        allocation_gate = tl.sigmoid(tl.load(commands + OPENINGS))
        write_gate = tl.sigmoid(tl.load(commands + OPENINGS + 1))
        allocated, less_used, used, before = _allocation(_row(new_usage + row * K, k, K), k, inside)
        inverse = tl.rsqrt(tl.sum(slot * slot, axis=1) + EPSILON)
        key, raw_strength = _row(commands + WRITE_KEY, d, D), tl.load(commands + WRITE_STRENGTH)
        strength = _oneplus(raw_strength)
        found, cosine, key_inverse = _content(slot, inverse, key, strength, inside)
        on_gate = write_gate * tl.sum(on_written * (allocated - found), axis=0)
        tl.store(on_commands + OPENINGS, on_gate * allocation_gate * (1.0 - allocation_gate))
        on_gate = tl.sum(on_written * (allocation_gate * allocated + (1.0 - allocation_gate) * found), axis=0)
        tl.store(on_commands + OPENINGS + 1, on_gate * write_gate * (1.0 - write_gate))
        on_found = write_gate * (1.0 - allocation_gate) * on_written
        on_strength, on_key, on_dots, turns = _through_content(
            on_found, found, cosine, strength, slot, inverse, key, key_inverse
        )
        on_slots += on_dots[:, None] * key[None, :] - (turns * inverse * inverse)[:, None] * slot
        _put_row(on_commands + WRITE_KEY, on_key, d, D)
        tl.store(on_commands + WRITE_STRENGTH, _through_oneplus(raw_strength, on_strength))
        on_allocated = write_gate * allocation_gate * on_written
        on_logs = tl.sum(tl.where(before, (on_allocated * allocated)[:, None], 0.0), axis=0)
        on_usage += (1.0 - EPSILON) * (on_logs / used - less_used * on_allocated)
        # usage, and what the heads have freed
        old_usage, old_written = _row(usage + row * K, k, K), _row(write_weights + row * K, k, K)
        on_kept = on_usage * (1.0 - (1.0 - old_usage) * (1.0 - old_written))
        kept = tl.full([KP], 1.0, tl.float32)
        for i in tl.static_range(R):
            free = tl.sigmoid(tl.load(commands + FREE + i))
            old = _row(read_weights + (row * R + i) * K, k, K)
            kept *= 1.0 - free * old
            # a product of the others, not a division: a factor may be zero
            others = on_kept
            for j in tl.static_range(R):
                if j != i:
                    gate = tl.sigmoid(tl.load(commands + FREE + j))
                    others *= 1.0 - gate * _row(read_weights + (row * R + j) * K, k, K)
            tl.store(on_commands + FREE + i, -tl.sum(old * others, axis=0) * free * (1.0 - free))
            on_old -= tl.where(r[:, None] == i, (free * others)[None, :], 0.0)
        on_usage = on_usage * (1.0 - old_written) * kept
        on_old_reads = tl.zeros([RP, DP], tl.float32)
    else:
        on_old = _tile(grad_new_read_weights + row * R * K, r, k, R, K)
        on_old_reads = _tile(grad_new_reads + stream * R * D, r, d, R, D)
        if LINKS:
            _put_tile(grad_links + row * K * K, _tile(grad_new_links + row * K * K, k, k, K, K), k, k, K, K)
            _put_row(grad_precedence + row * K, _row(grad_new_precedence + row * K, k, K), k, K)
        for start in tl.static_range(0, X, DP):
            _put_row(on_commands + start, tl.zeros([DP], tl.float32), d, X - start)
    _put_tile(grad_slots + row * K * D, on_slots, k, d, K, D)
    _put_row(grad_usage + row * K, on_usage, k, K)
    _put_tile(grad_read_weights + row * R * K, on_old, r, k, R, K)
    if block == 0:
        _put_tile(grad_reads + stream * R * D, on_old_reads, r, d, R, D)


def forward(
    slots: Tensor, usage: Tensor, write_weights: Tensor, read_weights: Tensor, precedence: Tensor, links: Tensor,
    reads: Tensor, xi: Tensor, real: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The state after one step, in the order of `AccessState`."""
    state = [x.contiguous() for x in (slots, usage, write_weights, read_weights, precedence, links, reads)]
    b, c = slots.shape[:2]
    after = [torch.empty(x.shape, device=x.device) for x in state[:6]]
    parts = torch.empty(b, c, reads.shape[1], device=reads.device)
    _forward[(b, c)](
        *state, xi.contiguous(), real.contiguous(), *after, parts,
        **_constants(*slots.shape[1:], read_weights.shape[2], links.shape[-1] > 0),
        num_warps=_warps(b * c, slots.shape[-1]), num_stages=1,
    )  # fmt: skip
    return (*after, parts.flatten(1) if c == 1 else parts.sum(dim=1))


def backward(
    grad_slots: Tensor, grad_usage: Tensor, grad_read_weights: Tensor, grad_precedence: Tensor, grad_links: Tensor,
    grad_reads: Tensor, slots: Tensor, usage: Tensor, write_weights: Tensor, read_weights: Tensor, precedence: Tensor,
    links: Tensor, xi: Tensor, real: Tensor, new_usage: Tensor, new_write_weights: Tensor, new_read_weights: Tensor,
    new_reads: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of slots, usage, read_weights, precedence, links, reads and xi."""
    given = (
        grad_slots, grad_usage, grad_read_weights, grad_precedence, grad_links, grad_reads,
        slots, usage, write_weights, read_weights, precedence, links, xi, real,
        new_usage, new_write_weights, new_read_weights, new_reads,
    )  # fmt: skip
    of = (slots, usage, read_weights, precedence, links, new_reads, xi)
    grads = [torch.empty(x.shape, device=x.device) for x in of]
    b, c = slots.shape[:2]
    _backward[(b, c)](
        *(x.contiguous() for x in given), *grads,
        **_constants(*slots.shape[1:], read_weights.shape[2], links.shape[-1] > 0),
        num_warps=_warps(b * c, slots.shape[-1]), num_stages=1,
    )  # fmt: skip
    return tuple(grads)


def _warps(programs: int, width: int) -> int:
    """Small programs share a processor where there are enough of them; one that has it alone is better large.

    So is one with wide slots, which would not fit into the registers of four.
    """
    return 4 if programs > MULTIPROCESSORS and width <= 128 else 8


@cache
def _constants(c: int, k: int, d: int, r: int, linked: bool) -> dict[str, Any]:
    """What the kernels are compiled for: sizes, the same padded to powers of two, and where each command stands."""
    sizes = {"C": c, "K": k, "D": d, "R": r}
    padded = {f"{name}P": triton.next_power_of_2(size) for name, size in sizes.items()}
    layout = reference.CommandLayout(slot_dim=d, num_reads=r, num_blocks=c, links=linked)
    names = ("MODES", "GATES", "STRENGTHS", "FREE", "WRITE_KEY", "VECTOR", "WRITE_STRENGTH", "OPENINGS", "X")
    return sizes | padded | {"LINKS": linked} | dict(zip(names, accumulate(layout.sizes()), strict=True))
