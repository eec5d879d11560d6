"""How a memory matrix is addressed: the equations of the Differentiable Neural Computer, one function each.

Graves et al., "Hybrid computing using a neural network with dynamic external memory", Nature 538 (2016), Methods.
Masks, de-allocation and sharpening: Csordas and Schmidhuber, "Improving Differentiable Neural Computers Through Memory
Masking, De-allocation, and Link Distribution Sharpness Control", ICLR 2019.

Shape letters: k slots, d slot width, r read heads; in front of them streams, and blocks where there are several. All of
it is done in at least 32 bits: powers, logarithms and products of many weights do not survive 16. One operand of each
operation is widened and the other follows. Nothing here asks the host for a value, in the backward pass either, where
`prod` and `cumprod` do: they look for zeros.
"""

from __future__ import annotations

from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from remem.ops.precision import at_least_float32

EPSILON = 1e-6
LARGEST = 20.0  # what goes into an exponential is clipped to this on both sides


def oneplus(values: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """1 + log(1 + e^x): a strength of at least one."""
    return 1.0 + F.softplus(at_least_float32(values).clamp(-LARGEST, LARGEST))


def unit(vectors: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    """x / sqrt(|x|^2 + eps): finite gradients at zero, too."""
    vectors = at_least_float32(vectors)
    return vectors * (vectors.square().sum(dim=-1, keepdim=True) + EPSILON).rsqrt()


def product(left: Float[Tensor, "*b i j"], right: Float[Tensor, "... j o"]) -> Float[Tensor, "*b i o"]:
    """The matrix product in at least 32 bits, also where autocast would take 16."""
    with torch.autocast(left.device.type, enabled=False):
        return at_least_float32(left) @ at_least_float32(right)


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
