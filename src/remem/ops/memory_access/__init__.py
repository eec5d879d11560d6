"""One step of a memory matrix (a DNC's write and read), for memories that read word by word.

`access` takes the fastest way there is for its inputs; `reference.access` is what all of them must equal.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from remem.ops.memory_access import reference
from remem.ops.memory_access.reference import AccessState, CommandLayout
from remem.ops.paths import HAS_TRITON, fast, reference_only

__all__ = ["AccessState", "CommandLayout", "access", "reference_only"]

MAX_BLOCKS, MAX_SLOTS, MAX_WIDTH, MAX_READS = 4, 32, 256, 8


def access(
    state: AccessState,
    xi: Float[Tensor, "b c x"],
    real: Bool[Tensor, " b"],
    layout: CommandLayout,
    *,
    deallocate: bool = False,
) -> AccessState:
    """The memory after one write and one read; where the item is padding, the memory before, to the last bit.

    `xi` are the commands as `layout` has them, before any squashing. The write weights that are kept carry no gradient:
    all they are for is the next usage, which takes none.
    """
    if not fast() or deallocate or not _has_fast_path(state, xi, layout):
        return reference.access(state, xi, real, layout, deallocate=deallocate)
    return AccessState(*_memory_access(*state, xi, real))


def _has_fast_path(state: AccessState, xi: Tensor, layout: CommandLayout) -> bool:
    """Plain memories of moderate size, in float32 on a GPU: masks, sharpening and de-allocation have no kernel."""
    if not HAS_TRITON or not xi.is_cuda or layout.masked or layout.sharpen or not state.slots.numel():
        return False
    if any(part.dtype != torch.float32 for part in (*state, xi)):
        return False
    _, blocks, slots, width = state.slots.shape
    return blocks <= MAX_BLOCKS and slots <= MAX_SLOTS and width <= MAX_WIDTH and layout.num_reads <= MAX_READS


# Operations of their own, so that torch.compile takes each as one node without looking inside; Triton is imported by
# the first that runs, as the package must do without it.
@torch.library.custom_op("remem::memory_access", mutates_args=())
def _memory_access(
    slots: Tensor, usage: Tensor, write_weights: Tensor, read_weights: Tensor, precedence: Tensor, links: Tensor,
    reads: Tensor, xi: Tensor, real: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from remem.ops.memory_access.triton import forward

    return forward(slots, usage, write_weights, read_weights, precedence, links, reads, xi, real)


@_memory_access.register_fake
def _(
    slots: Tensor, usage: Tensor, write_weights: Tensor, read_weights: Tensor, precedence: Tensor, links: Tensor,
    reads: Tensor, xi: Tensor, real: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        slots.new_empty(slots.shape), usage.new_empty(usage.shape), write_weights.new_empty(write_weights.shape),
        read_weights.new_empty(read_weights.shape), precedence.new_empty(precedence.shape),
        links.new_empty(links.shape), reads.new_empty(reads.shape),
    )  # fmt: skip


@torch.library.custom_op("remem::memory_access_backward", mutates_args=())
def _memory_access_backward(
    grad_slots: Tensor, grad_usage: Tensor, grad_read_weights: Tensor, grad_precedence: Tensor, grad_links: Tensor,
    grad_reads: Tensor, slots: Tensor, usage: Tensor, write_weights: Tensor, read_weights: Tensor, precedence: Tensor,
    links: Tensor, xi: Tensor, real: Tensor, new_usage: Tensor, new_write_weights: Tensor, new_read_weights: Tensor,
    new_reads: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from remem.ops.memory_access.triton import backward

    return backward(
        grad_slots, grad_usage, grad_read_weights, grad_precedence, grad_links, grad_reads,
        slots, usage, write_weights, read_weights, precedence, links, xi, real,
        new_usage, new_write_weights, new_read_weights, new_reads,
    )  # fmt: skip


@_memory_access_backward.register_fake
def _(
    grad_slots: Tensor, grad_usage: Tensor, grad_read_weights: Tensor, grad_precedence: Tensor, grad_links: Tensor,
    grad_reads: Tensor, slots: Tensor, usage: Tensor, write_weights: Tensor, read_weights: Tensor, precedence: Tensor,
    links: Tensor, xi: Tensor, real: Tensor, new_usage: Tensor, new_write_weights: Tensor, new_read_weights: Tensor,
    new_reads: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        slots.new_empty(slots.shape), usage.new_empty(usage.shape), read_weights.new_empty(read_weights.shape),
        precedence.new_empty(precedence.shape), links.new_empty(links.shape), new_reads.new_empty(new_reads.shape),
        xi.new_empty(xi.shape),
    )  # fmt: skip


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    slots, usage, write_weights, read_weights, precedence, links, _, xi, real = inputs
    _, new_usage, new_write_weights, new_read_weights, _, _, new_reads = output
    ctx.mark_non_differentiable(new_write_weights)
    # what comes out is kept as the next step's input anyway
    ctx.save_for_backward(
        slots, usage, write_weights, read_weights, precedence, links, xi, real,
        new_usage, new_write_weights, new_read_weights, new_reads,
    )  # fmt: skip


def _gradients(
    ctx: Any, slots: Tensor, usage: Tensor, _: Tensor, read_weights: Tensor, precedence: Tensor, links: Tensor,
    reads: Tensor,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    grads = _memory_access_backward(slots, usage, read_weights, precedence, links, reads, *ctx.saved_tensors)
    slots, usage, read_weights, precedence, links, reads, xi = grads
    return slots, usage, None, read_weights, precedence, links, reads, xi, None


_memory_access.register_autograd(_gradients, setup_context=_keep)
