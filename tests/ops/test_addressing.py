"""The equations of addressing: weights sum to what they should, free slots are found, links follow the writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from remem.ops.memory_access.reference import (
    EPSILON,
    allocation,
    backward_weights,
    content_weights,
    erase_and_write,
    forward_weights,
    mixed_read_weights,
    mixed_write_weights,
    next_links,
    next_precedence,
    next_usage,
    oneplus,
    product,
    retention,
    sharpened,
    unit,
)


@pytest.fixture(autouse=True)
def _fixed_seed_and_one_thread() -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with tensors this small, threads only wait for one another
    yield
    torch.set_num_threads(threads)


def assert_close(actual: Tensor, expected: object) -> None:
    target = expected if isinstance(expected, Tensor) else torch.tensor(expected)
    torch.testing.assert_close(actual, target.to(actual.dtype), rtol=1e-5, atol=1e-6)


def one_hot(slot: int, slots: int = 4) -> Tensor:
    return F.one_hot(torch.tensor([slot]), slots).float()


def sorted_allocation(usage: Tensor) -> Tensor:
    """The allocation of one stream as its paper has it: sort, multiply along, put back."""
    used = EPSILON + (1 - EPSILON) * usage
    order = used.argsort(stable=True)
    weights, free = torch.zeros_like(used), torch.ones(())
    for slot in order.tolist():
        weights[slot] = (1 - used[slot]) * free
        free = free * used[slot]
    return weights


def test_a_strength_is_at_least_one_and_finite() -> None:
    strengths = oneplus(torch.tensor([-1e9, -1.0, 0.0, 1.0, 1e9]))
    assert_close(strengths, [1.0, 1.313262, 1.693147, 2.313262, 21.0])


def test_a_unit_vector_is_one_long_and_zero_stays_zero() -> None:
    vectors = torch.cat([100 * torch.randn(3, 5), torch.zeros(1, 5)]).requires_grad_()
    units = unit(vectors)
    assert_close(units.norm(dim=-1), [1.0, 1.0, 1.0, 0.0])
    units.sum().backward()
    assert torch.isfinite(vectors.grad).all()


def test_content_weights_sum_to_one_and_a_sharp_key_reads_its_slot() -> None:
    slots = torch.randn(2, 5, 8)
    keys = slots[:, [3, 1, 4]]
    weights = content_weights(keys, torch.full((2, 3), 200.0), slots)
    assert_close(weights.sum(dim=-1), torch.ones(2, 3))
    assert_close(product(weights, slots), keys)


def test_content_weights_are_a_softmax_of_cosines() -> None:
    keys, slots, strengths = torch.randn(2, 3, 8), torch.randn(2, 5, 8), 1 + torch.rand(2, 3)
    cosine = F.cosine_similarity(keys[:, :, None], slots[:, None], dim=-1)
    torch.testing.assert_close(
        content_weights(keys, strengths, slots), (strengths[..., None] * cosine).softmax(dim=-1), rtol=1e-4, atol=1e-5
    )


def test_a_masked_key_compares_only_what_its_mask_lets_through() -> None:
    keys, slots, masks, strengths = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.rand(2, 3, 8), torch.ones(2, 3)
    masked = torch.stack(
        [
            content_weights((keys * masks)[:, i, None], strengths[:, i, None], slots * masks[:, i, None])
            for i in range(3)
        ],
        dim=1,
    )
    assert_close(content_weights(keys, strengths, slots, masks), masked.squeeze(2))
    first_half = (torch.arange(8) < 4).float().expand(2, 3, 8)
    other = torch.where(first_half[:, :1].bool(), slots, torch.randn(2, 5, 8))
    assert_close(
        content_weights(keys, strengths, slots, first_half), content_weights(keys, strengths, other, first_half)
    )


@pytest.mark.parametrize("value", [0.0, 1e-6, 1e3])
def test_content_weights_have_finite_gradients_wherever_the_memory_starts(value: float) -> None:
    slots = torch.full((1, 4, 6), value, requires_grad=True)
    keys = torch.zeros(1, 2, 6, requires_grad=True)
    weights = content_weights(keys, torch.full((1, 2), 21.0), slots)
    assert_close(weights, torch.full((1, 2, 4), 0.25))
    (weights * torch.randn(weights.shape)).sum().backward()
    assert torch.isfinite(slots.grad).all()
    assert torch.isfinite(keys.grad).all()


def test_what_a_head_has_read_and_freed_becomes_free() -> None:
    read = torch.stack([one_hot(1), one_hot(2)], dim=1)
    kept = retention(torch.tensor([[1.0, 0.0]]), read)
    assert_close(kept, [[1.0, 0.0, 1.0, 1.0]])
    usage = next_usage(torch.ones(1, 4), torch.zeros(1, 4), kept)
    assert_close(usage, [[1.0, 0.0, 1.0, 1.0]])
    assert_close(allocation(usage), [[0.0, 1.0, 0.0, 0.0]])


def test_retention_is_the_product_over_the_heads() -> None:
    gates, read = torch.rand(2, 3), torch.rand(2, 3, 4)
    assert_close(retention(gates, read), (1 - gates[..., None] * read).prod(dim=1))


def test_usage_grows_by_what_was_written_stays_in_bounds_and_passes_no_gradient_to_the_write() -> None:
    usage = torch.tensor([[0.0, 0.5, 1.0, 0.5]], requires_grad=True)
    written = torch.tensor([[0.5, 0.5, 0.5, 0.0]], requires_grad=True)
    after = next_usage(usage, written, torch.ones(1, 4))
    assert_close(after, [[0.5, 0.75, 1.0, 0.5]])
    after.sum().backward()
    assert written.grad is None
    assert usage.grad is not None
    usage = torch.rand(50, 6)
    for _ in range(100):
        usage = next_usage(usage, torch.rand(50, 6), torch.rand(50, 6).sqrt())
        assert ((usage >= 0) & (usage <= 1)).all()


def test_allocation_is_that_of_sorting_also_where_usages_are_equal() -> None:
    usage = torch.rand(30, 7)
    usage[10:20] = usage[10:20].mul(3).round() / 3
    usage[20:25] = 0.0
    usage[25:] = 1.0
    assert_close(allocation(usage), torch.stack([sorted_allocation(row) for row in usage]))


def test_allocation_prefers_the_least_used_slot_and_sums_to_what_is_free() -> None:
    usage = torch.rand(100, 6)
    weights = allocation(usage)
    assert torch.equal(weights.argmax(dim=1), usage.argmin(dim=1))
    assert (weights.sum(dim=1) <= 1 + 1e-6).all()
    assert_close(weights.sum(dim=1), 1 - (EPSILON + (1 - EPSILON) * usage).prod(dim=1))
    assert_close(allocation(torch.zeros(1, 4)), [[1.0, 0.0, 0.0, 0.0]])
    assert_close(allocation(torch.ones(1, 4)), [[0.0, 0.0, 0.0, 0.0]])


def test_allocation_has_the_right_gradient_and_a_finite_one_at_the_ends() -> None:
    assert torch.autograd.gradcheck(allocation, torch.rand(3, 5, dtype=torch.float64, requires_grad=True))
    usage = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.0] * 4, [1.0] * 4], requires_grad=True)
    (allocation(usage) * torch.randn(3, 4)).sum().backward()
    assert torch.isfinite(usage.grad).all()
    assert usage.grad.abs().max() < 10


def test_write_weights_sum_to_their_gate_while_a_slot_is_free() -> None:
    usage = torch.rand(8, 5)
    usage[:, 2] = 0.0
    found, gate = torch.rand(8, 5).softmax(dim=-1), torch.rand(8)
    weights = mixed_write_weights(allocation(usage), found, torch.rand(8), gate)
    assert_close(weights.sum(dim=-1), gate)
    one, zero = torch.ones(8), torch.zeros(8)
    assert_close(mixed_write_weights(allocation(usage), found, one, one), allocation(usage))
    assert_close(mixed_write_weights(allocation(usage), found, zero, one), found)
    assert torch.equal(mixed_write_weights(allocation(usage), found, one, zero), torch.zeros(8, 5))


def test_erase_and_write_is_its_equation_one_number_at_a_time() -> None:
    slots, weights, erase, vector = torch.randn(2, 3, 4), torch.rand(2, 3), torch.rand(2, 4), torch.randn(2, 4)
    written = erase_and_write(slots, weights, erase, vector)
    for b in range(2):
        for k in range(3):
            for d in range(4):
                old, w = float(slots[b, k, d]), float(weights[b, k])
                assert_close(written[b, k, d], old * (1 - w * float(erase[b, d])) + w * float(vector[b, d]))
    full = erase_and_write(slots, one_hot(1, 3).expand(2, 3), torch.ones(2, 4), vector)
    assert_close(full[:, 1], vector)
    assert torch.equal(full[:, [0, 2]], slots[:, [0, 2]])


def test_links_follow_the_order_of_the_writes() -> None:
    links, precedence = torch.zeros(1, 4, 4), torch.zeros(1, 4)
    for slot in (2, 0, 3):
        links = next_links(links, precedence, one_hot(slot))
        precedence = next_precedence(precedence, one_hot(slot))
    assert_close(precedence, one_hot(3))
    read = one_hot(2)[:, None]
    for slot in (0, 3):
        read = forward_weights(links, read)
        assert_close(read, one_hot(slot)[:, None])
    assert_close(forward_weights(links, read), torch.zeros(1, 1, 4))
    for slot in (0, 2):
        read = backward_weights(links, read)
        assert_close(read, one_hot(slot)[:, None])


def test_links_are_their_equation_and_stay_a_share_in_both_directions() -> None:
    links, precedence = torch.zeros(1, 4, 4), torch.zeros(1, 4)
    for _ in range(20):
        weights = torch.rand(1) * torch.randn(1, 4).softmax(dim=-1)
        after = next_links(links, precedence, weights)
        for i in range(4):
            for j in range(4):
                w = weights[0]
                expected = 0 if i == j else (1 - w[i] - w[j]) * links[0, i, j] + w[i] * precedence[0, j]
                assert_close(after[0, i, j], expected)
        links, precedence = after, next_precedence(precedence, weights)
        assert precedence.sum() <= 1 + 1e-6
        assert (links >= 0).all()
        assert (links.sum(dim=1) <= 1 + 1e-6).all()
        assert (links.sum(dim=2) <= 1 + 1e-6).all()


def test_sharpening_undoes_a_blur_and_leaves_nothing_where_nothing_was() -> None:
    weights = torch.tensor([[0.1, 0.4, 0.3], [0.1, 0.4, 0.3], [0.0, 0.0, 0.0]])
    sharp = sharpened(weights, torch.tensor([1.0, 60.0, 2.0]))
    torch.testing.assert_close(
        sharp, torch.tensor([[0.1, 0.4, 0.3], [0.0, 0.8, 0.0], [0.0, 0.0, 0.0]]), atol=1e-5, rtol=0
    )


def test_read_weights_mix_back_content_and_on() -> None:
    parts = torch.randn(3, 2, 4, 5).softmax(dim=-1).unbind()
    for number, part in enumerate(parts):
        assert_close(mixed_read_weights(one_hot(number, 3).expand(2, 4, 3), *parts), part)
    mixed = mixed_read_weights(torch.randn(2, 4, 3).softmax(dim=-1), *parts)
    assert_close(mixed.sum(dim=-1), torch.ones(2, 4))


def b16(*shape: int) -> Tensor:
    return torch.rand(*shape).bfloat16()


NARROW: dict[str, Callable[[], Tensor]] = {
    "oneplus": lambda: oneplus(b16(2)),
    "unit": lambda: unit(b16(2, 3)),
    "product": lambda: product(b16(2, 3, 4), b16(2, 4, 5)),
    "retention": lambda: retention(b16(2, 3), b16(2, 3, 4)),
    "next_usage": lambda: next_usage(b16(2, 4), b16(2, 4), b16(2, 4)),
    "allocation": lambda: allocation(b16(2, 4)),
    "content_weights": lambda: content_weights(b16(2, 3, 5), b16(2, 3), b16(2, 4, 5)),
    "masked content_weights": lambda: content_weights(b16(2, 3, 5), b16(2, 3), b16(2, 4, 5), b16(2, 3, 5)),
    "mixed_write_weights": lambda: mixed_write_weights(b16(2, 4), b16(2, 4), b16(2), b16(2)),
    "erase_and_write": lambda: erase_and_write(b16(2, 4, 5), b16(2, 4), b16(2, 5), b16(2, 5)),
    "next_links": lambda: next_links(b16(2, 4, 4), b16(2, 4), b16(2, 4)),
    "next_precedence": lambda: next_precedence(b16(2, 4), b16(2, 4)),
    "forward_weights": lambda: forward_weights(b16(2, 4, 4), b16(2, 3, 4)),
    "backward_weights": lambda: backward_weights(b16(2, 4, 4), b16(2, 3, 4)),
    "sharpened": lambda: sharpened(b16(2, 4), b16(2)),
    "mixed_read_weights": lambda: mixed_read_weights(b16(2, 3), b16(2, 4), b16(2, 4), b16(2, 4)),
}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("autocast", [False, True])
def test_sixteen_bits_are_widened(name: str, autocast: bool) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        assert NARROW[name]().dtype == torch.float32


def test_autocast_changes_no_weight() -> None:
    keys, slots, strengths = torch.randn(2, 3, 8), torch.randn(2, 5, 8), 1 + torch.rand(2, 3)
    weights = content_weights(keys, strengths, slots)
    read = weights @ slots
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (weights @ slots).dtype == torch.bfloat16
        assert torch.equal(content_weights(keys, strengths, slots), weights)
        assert torch.equal(product(weights, slots), read)
