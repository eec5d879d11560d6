"""One step of a memory matrix in plain PyTorch: the equations of the Differentiable Neural Computer, one function each.

Graves et al., "Hybrid computing using a neural network with dynamic external memory", Nature 538 (2016), Methods.
Masks, de-allocation and sharpening: Csordas and Schmidhuber, "Improving Differentiable Neural Computers Through Memory
Masking, De-allocation, and Link Distribution Sharpness Control", ICLR 2019.

Shape letters: b streams, c blocks, k slots of a block, d slot width, r read heads, x commands of a block. All of it is
done in at least 32 bits: powers, logarithms and products of many weights do not survive 16. One operand of each
operation is widened and the other follows. Nothing here asks the host for a value, in the backward pass either, where
`prod` and `cumprod` do: they look for zeros.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from remem.ops.precision import at_least_float32, product

EPSILON = 1e-6
LARGEST = 20.0  # what goes into an exponential is clipped to this on both sides


class AccessState(NamedTuple):
    """What one step of the memory takes and gives."""

    slots: Float[Tensor, "b c k d"]  # M
    usage: Float[Tensor, "b c k"]  # u
    write_weights: Float[Tensor, "b c k"]  # w^w
    read_weights: Float[Tensor, "b c r k"]  # w^r
    precedence: Float[Tensor, "b c l"]  # p; no slots where there are no links
    links: Float[Tensor, "b c l l"]  # L; likewise
    reads: Float[Tensor, "b r*d"]  # r^1 .. r^R, of all blocks together


class Commands(NamedTuple):
    """What the controller orders at one step, for every block: xi, split and squashed."""

    read_keys: Float[Tensor, "b c r d"]  # k^{r,i}
    read_modes: Float[Tensor, "b c r 3"] | None  # pi^i: back, by content, on
    block_gates: Float[Tensor, "b c r"] | None  # att^i: which block is read
    read_strengths: Float[Tensor, "b c r"]  # beta^{r,i}
    sharpness: Float[Tensor, "b c r 2"] | None  # s^{b,i}, s^{f,i}
    free_gates: Float[Tensor, "b c r"]  # f^i
    read_masks: Float[Tensor, "b c r d"] | None
    write_key: Float[Tensor, "b c d"]  # k^w
    write_vector: Float[Tensor, "b c d"]  # v
    write_strength: Float[Tensor, "b c"]  # beta^w
    erase: Float[Tensor, "b c d"]  # e
    allocation_gate: Float[Tensor, "b c"]  # g^a
    write_gate: Float[Tensor, "b c"]  # g^w
    write_mask: Float[Tensor, "b c d"] | None


class CommandLayout(NamedTuple):
    """Where each command stands in xi: first all that reading needs, then all that writing needs."""

    slot_dim: int
    num_reads: int
    num_blocks: int = 1
    links: bool = True
    masked: bool = False
    sharpen: bool = False

    @property
    def reading(self) -> int:
        """How many numbers of a block's xi are for reading."""
        return sum(self.sizes()[:5])

    @property
    def writing(self) -> int:
        """How many are for writing."""
        return sum(self.sizes()[5:])

    def sizes(self) -> list[int]:
        """How many numbers each part of xi has: five of reading, then four of writing."""
        heads, width, wide = self.num_reads, self.slot_dim, self.num_reads * self.slot_dim
        return [
            wide,  # keys
            3 * heads if self.links else 0,  # modes
            heads if self.num_blocks > 1 else 0,  # gates of the blocks
            heads + (2 * heads if self.sharpen else 0),  # all that is at least one
            heads + (wide if self.masked else 0),  # all that is between zero and one
            width,  # write key
            width,  # write vector
            1,  # write strength
            2 + width + (width if self.masked else 0),  # all of writing that is between zero and one
        ]

    def split(self, xi: Float[Tensor, "b c x"]) -> Commands:
        """The commands, each in the range it belongs to."""
        parts = xi.split(self.sizes(), dim=-1)
        keys, modes, gates, strengths, openings, write_key, write_vector, write_strength, write_openings = parts
        heads, width = self.num_reads, self.slot_dim
        strengths = oneplus(strengths)
        openings, write_openings = torch.sigmoid(openings), torch.sigmoid(write_openings)
        return Commands(
            read_keys=keys.unflatten(-1, (heads, width)),
            read_modes=modes.unflatten(-1, (heads, 3)).softmax(dim=-1) if self.links else None,
            block_gates=gates.softmax(dim=1) if self.num_blocks > 1 else None,
            read_strengths=strengths[..., :heads],
            sharpness=strengths[..., heads:].unflatten(-1, (heads, 2)) if self.sharpen else None,
            free_gates=openings[..., :heads],
            read_masks=openings[..., heads:].unflatten(-1, (heads, width)) if self.masked else None,
            write_key=write_key,
            write_vector=write_vector,
            write_strength=oneplus(write_strength).squeeze(-1),
            allocation_gate=write_openings[..., 0],
            write_gate=write_openings[..., 1],
            erase=write_openings[..., 2 : 2 + width],
            write_mask=write_openings[..., 2 + width :] if self.masked else None,
        )


def oneplus(values: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """1 + log(1 + e^x): a strength of at least one."""
    return 1.0 + F.softplus(at_least_float32(values).clamp(-LARGEST, LARGEST))


def unit(vectors: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    """x / sqrt(|x|^2 + eps): finite gradients at zero, too."""
    vectors = at_least_float32(vectors)
    return vectors * (vectors.square().sum(dim=-1, keepdim=True) + EPSILON).rsqrt()


def retention(free_gates: Float[Tensor, "*b r"], read_weights: Float[Tensor, "*b r k"]) -> Float[Tensor, "*b k"]:
    """psi = prod_i (1 - f^i w^{r,i}): how much of each slot is kept when the read heads free what they have read."""
    kept = 1.0 - free_gates[..., None] * at_least_float32(read_weights)
    return reduce(torch.mul, kept.unbind(dim=-2))


def next_usage(
    usage: Float[Tensor, "*b k"], write_weights: Float[Tensor, "*b k"], kept: Float[Tensor, "*b k"]
) -> Float[Tensor, "*b k"]:
    """u' = (u + w - u w) psi, with w = w^w of the step before: what was written is used until it is freed.

    As in its authors' code no gradient goes through w: writing is not to be learned by way of what becomes free later.
    """
    # the same as u + w - u w, but never beyond one by rounding
    return (1.0 - (1.0 - at_least_float32(usage)) * (1.0 - write_weights.detach())) * kept


def allocation(usage: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
    """a_j = (1 - u_j) prod u_i over the slots i that are less used than j: a weight for the freest slots.

    The product runs over the slots before j in ascending order of usage, equal ones by number. It is found by comparing
    every two slots rather than by sorting: one sum in place of a sort, a gather, a scan and a scatter. The weights are
    one minus the product of all usages together, so at most one. The order itself has no gradient.
    """
    used = EPSILON + (1.0 - EPSILON) * at_least_float32(usage)
    own, other = used.detach()[..., :, None], used.detach()[..., None, :]
    number = torch.arange(used.shape[-1], device=used.device)
    before = (other < own) | ((other == own) & (number < number[:, None]))  # [*b, k, k]
    less_used = (before * used.log()[..., None, :]).sum(dim=-1).exp()
    return (1.0 - used) * less_used


def content_weights(
    keys: Float[Tensor, "*b r d"],
    strengths: Float[Tensor, "*b r"],
    slots: Float[Tensor, "*b k d"],
    masks: Float[Tensor, "*b r d"] | None = None,
) -> Float[Tensor, "*b r k"]:
    """c = softmax_k(beta cos(key, m_k)): where the memory looks like the key.

    With a mask the cosine is that of key * mask and m_k * mask, so that a key can ask for some of the coordinates and
    find out the others. Norms are sqrt(|x|^2 + eps): finite gradients at zero, where the memory starts.
    """
    keys, slots = at_least_float32(keys), at_least_float32(slots)
    if masks is None:
        dots = product(keys, slots.mT)
        slot_squares = slots.square().sum(dim=-1)[..., None, :]
    else:
        masks = at_least_float32(masks)
        keys = keys * masks
        # sum_d (key mask) (m mask), without a copy of the slots for every key
        dots = product(keys * masks, slots.mT)
        slot_squares = product(masks.square(), slots.square().mT)
    key_squares = keys.square().sum(dim=-1)[..., None]
    cosine = dots * ((key_squares + EPSILON) * (slot_squares + EPSILON)).rsqrt()
    return (strengths[..., None] * cosine).softmax(dim=-1)


def mixed_write_weights(
    allocated: Float[Tensor, "*b k"],
    found: Float[Tensor, "*b k"],
    allocation_gate: Float[Tensor, "*b"],
    write_gate: Float[Tensor, "*b"],
) -> Float[Tensor, "*b k"]:
    """w^w = g^w (g^a a + (1 - g^a) c^w): into a free slot, over what looks like the key, or nowhere."""
    gate = at_least_float32(allocation_gate)[..., None]
    return write_gate[..., None] * (gate * allocated + (1.0 - gate) * found)


def erase_and_write(
    slots: Float[Tensor, "*b k d"],
    write_weights: Float[Tensor, "*b k"],
    erase: Float[Tensor, "*b d"],
    write_vector: Float[Tensor, "*b d"],
) -> Float[Tensor, "*b k d"]:
    """M' = M (1 - w^w (x) e) + w^w (x) v, computed as M + w^w (v - e M)."""
    slots, weights = at_least_float32(slots), at_least_float32(write_weights)[..., None]
    return torch.addcmul(slots, weights, write_vector[..., None, :] - erase[..., None, :] * slots)


def next_links(
    links: Float[Tensor, "*b k k"], precedence: Float[Tensor, "*b k"], write_weights: Float[Tensor, "*b k"]
) -> Float[Tensor, "*b k k"]:
    """L'_ij = (1 - w_i - w_j) L_ij + w_i p_j, and L'_ii = 0: slot i was written right after slot j.

    `precedence` is that of before this write.
    """
    written = at_least_float32(write_weights)
    row, column = written[..., :, None], written[..., None, :]
    linked = (1.0 - row - column) * links + row * precedence[..., None, :]
    number = torch.arange(links.shape[-1], device=links.device)
    return linked.masked_fill(number == number[:, None], 0.0)


def next_precedence(precedence: Float[Tensor, "*b k"], write_weights: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
    """p' = (1 - sum_k w_k) p + w: how much each slot was the last one written to."""
    written = at_least_float32(write_weights)
    return (1.0 - written.sum(dim=-1, keepdim=True)) * precedence + written


def forward_weights(links: Float[Tensor, "*b k k"], read_weights: Float[Tensor, "*b r k"]) -> Float[Tensor, "*b r k"]:
    """f^i = L w^{r,i}: from what was read last to what was written after it."""
    return product(read_weights, links.mT)


def backward_weights(links: Float[Tensor, "*b k k"], read_weights: Float[Tensor, "*b r k"]) -> Float[Tensor, "*b r k"]:
    """b^i = L^T w^{r,i}: from what was read last to what was written before it."""
    return product(read_weights, links)


def sharpened(weights: Float[Tensor, "*b k"], sharpness: Float[Tensor, "*b"]) -> Float[Tensor, "*b k"]:
    """d_k^s / sum_k d_k^s, times what the weights summed to: links blur with every write, and a power undoes it.

    The sum is kept so that where nothing is linked nothing is read.
    """
    weights = at_least_float32(weights)
    powers = (sharpness[..., None] * (weights + EPSILON).log()).softmax(dim=-1)
    return weights.sum(dim=-1, keepdim=True) * powers


def mixed_read_weights(
    modes: Float[Tensor, "*b 3"],
    backward: Float[Tensor, "*b k"],
    found: Float[Tensor, "*b k"],
    forward: Float[Tensor, "*b k"],
) -> Float[Tensor, "*b k"]:
    """w^r = pi_1 b + pi_2 c^r + pi_3 f: back along the writes, by content, or on along them."""
    back, content, on = at_least_float32(modes)[..., None, :].unbind(dim=-1)
    return back * backward + content * found + on * forward


def access(
    state: AccessState,
    xi: Float[Tensor, "b c x"],
    real: Bool[Tensor, " b"],
    layout: CommandLayout,
    *,
    deallocate: bool = False,
) -> AccessState:
    """The memory after one write and one read; where the item is padding, the memory before.

    The write weights that are kept carry no gradient: all they are for is the next usage, which takes none.
    """
    commands = layout.split(xi)
    after = read(write(state, commands, deallocate=deallocate), commands)
    after = AccessState(
        *(
            new if new is old else torch.where(real.view(-1, *(1,) * (new.dim() - 1)), new, old)
            for new, old in zip(after, state, strict=True)
        )
    )
    return after._replace(write_weights=after.write_weights.detach())


def write(state: AccessState, commands: Commands, *, deallocate: bool) -> AccessState:
    """Usage, allocation, write weights, memory and links of one step."""
    kept = retention(commands.free_gates, state.read_weights)
    usage = next_usage(state.usage, state.write_weights, kept)
    mask = commands.write_mask
    found = content_weights(
        commands.write_key[..., None, :],
        commands.write_strength[..., None],
        state.slots,
        None if mask is None else mask[..., None, :],
    ).squeeze(-2)
    weights = mixed_write_weights(allocation(usage), found, commands.allocation_gate, commands.write_gate)
    slots = state.slots * kept[..., None] if deallocate else state.slots
    state = state._replace(
        slots=erase_and_write(slots, weights, commands.erase, commands.write_vector),
        usage=usage,
        write_weights=weights,
    )
    if commands.read_modes is None:
        return state
    return state._replace(
        links=next_links(state.links, state.precedence, weights),
        precedence=next_precedence(state.precedence, weights),
    )


def read(state: AccessState, commands: Commands) -> AccessState:
    """Read weights and what they read, from the memory as it is after the write."""
    weights = content_weights(commands.read_keys, commands.read_strengths, state.slots, commands.read_masks)
    if commands.read_modes is not None:
        back = backward_weights(state.links, state.read_weights)
        on = forward_weights(state.links, state.read_weights)
        if commands.sharpness is not None:
            back = sharpened(back, commands.sharpness[..., 0])
            on = sharpened(on, commands.sharpness[..., 1])
        weights = mixed_read_weights(commands.read_modes, back, weights, on)
    if commands.block_gates is not None:
        weights = commands.block_gates[..., None] * weights
    reads = product(weights, state.slots).sum(dim=1).flatten(1)
    return state._replace(read_weights=weights, reads=reads)
