from __future__ import annotations

import math

import pytest
import torch
from builders import additive_score, assert_close, matvec, softmax
from torch import Tensor

from remem.model.attention import AdditiveScore
from remem.model.reasoner import MultiHopReasoner


def make_reasoner(**options: object) -> MultiHopReasoner:
    return MultiHopReasoner(**{"item_dim": 4, "model_dim": 3, "num_hops": 2, **options})  # type: ignore[arg-type]


def normed(vector: list[float]) -> list[float]:
    """LayerNorm with its initial weights."""
    mean = sum(vector) / len(vector)
    variance = sum((x - mean) ** 2 for x in vector) / len(vector)
    return [(x - mean) / math.sqrt(variance + 1e-5) for x in vector]


def hops_by_hand(
    reasoner: MultiHopReasoner, memory: list[list[float]], query: list[float]
) -> tuple[list[float], list[list[float]]]:
    """Every hop of Appendix A in turn, with one W^q for all."""
    weights = []
    for hop in reasoner.hops:
        assert isinstance(hop, AdditiveScore)
        weights.append(softmax([additive_score(hop, query, slot) for slot in memory]))
        evidence = [sum(weights[-1][k] * memory[k][i] for k in range(len(memory))) for i in range(len(memory[0]))]
        query = matvec(reasoner.next_query.weight.tolist(), evidence + query)
    return query, weights


@pytest.mark.parametrize("num_hops", [1, 2, 3])
@pytest.mark.parametrize("read_norm", [False, True])
def test_hops_are_those_of_appendix_a_one_number_at_a_time(num_hops: int, read_norm: bool) -> None:
    reasoner = make_reasoner(num_hops=num_hops, read_norm=read_norm, score_gain=4.0)
    memory, query = torch.randn(2, 5, 4), torch.randn(2, 3)
    reason, weights = reasoner(memory, query)
    for b in range(2):
        slots = [normed(slot) if read_norm else slot for slot in memory[b].tolist()]
        expected_reason, expected_weights = hops_by_hand(reasoner, slots, query[b].tolist())
        assert_close(reason[b], expected_reason)
        assert_close(weights[b], expected_weights)


def test_one_matrix_without_bias_makes_the_next_query_of_every_hop() -> None:
    names = {name for name, _ in make_reasoner(num_hops=3).named_parameters()}
    assert {name for name in names if name.startswith("next_query")} == {"next_query.weight"}
    assert {name.split(".")[1] for name in names if name.startswith("hops")} == {"0", "1", "2"}


def test_read_weights_sum_to_one_over_the_slots_at_every_hop() -> None:
    _, weights = make_reasoner(num_hops=2)(torch.randn(3, 5, 4), torch.randn(3, 3))
    assert weights.shape == (3, 2, 5)
    assert (weights >= 0).all()
    assert_close(weights.sum(dim=-1), torch.ones(3, 2))


def test_the_order_of_slots_does_not_matter_to_the_reason() -> None:
    reasoner, memory, query = make_reasoner(), torch.randn(3, 5, 4), torch.randn(3, 3)
    permuted = torch.randperm(5)
    reason, weights = reasoner(memory, query)
    other_reason, other_weights = reasoner(memory[:, permuted], query)
    assert_close(other_reason, reason)
    assert_close(other_weights, weights[..., permuted])


def test_a_sharp_score_reads_one_slot() -> None:
    reasoner = make_reasoner(num_hops=1)
    hop = reasoner.hops[0]
    assert isinstance(hop, AdditiveScore)
    with torch.no_grad():
        for parameter in hop.parameters():
            parameter.zero_()
        # the score of a slot is 100 tanh of its first number
        hop.right.weight[0, 0], hop.score.weight[0, 0] = 1.0, 100.0
    memory = torch.randn(1, 5, 4).clamp(max=0.0)
    memory[0, 3, 0] = 2.0
    reason, weights = reasoner(memory, torch.zeros(1, 3))
    assert_close(weights[0, 0], torch.eye(5)[3])
    assert_close(reason[0], reasoner.next_query.weight[:, :4] @ memory[0, 3])


def test_more_leading_axes_are_read_as_if_they_were_flat() -> None:
    reasoner, memory, query = make_reasoner(), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 3)
    reason, weights = reasoner(memory, query)
    flat_reason, flat_weights = reasoner(memory.flatten(0, 1), query.flatten(0, 1))
    assert_close(reason.flatten(0, 1), flat_reason)
    assert_close(weights.flatten(0, 1), flat_weights)


def test_a_question_sees_no_other_streams_memory() -> None:
    reasoner, query = make_reasoner(read_norm=True), torch.randn(2, 3)
    memory = torch.randn(2, 5, 4, requires_grad=True)
    reasoner(memory, query)[0][0].sum().backward()
    assert memory.grad is not None
    assert memory.grad[0].norm() > 0
    assert (memory.grad[1] == 0).all()


def test_weights_stay_in_32_bits_where_products_are_16() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, weights = make_reasoner(score_gain=4.0)(torch.randn(3, 5, 4), torch.randn(3, 3))
    assert weights.dtype == torch.float32
    assert_close(weights.sum(dim=-1), torch.ones(3, 2))


@pytest.mark.parametrize("read_norm", [False, True])
def test_the_gradient_of_a_reading_is_that_of_finite_differences(read_norm: bool) -> None:
    reasoner = make_reasoner(item_dim=3, model_dim=2, read_norm=read_norm).double()
    memory = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    query = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def read(memory: Tensor, query: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        return reasoner(memory, query)

    assert torch.autograd.gradcheck(read, (memory, query, *reasoner.parameters()))


def test_rows_not_seen_get_no_weight_and_change_nothing() -> None:
    reasoner = make_reasoner()
    memory, query = torch.randn(2, 5, 4), torch.randn(2, 3)
    seen = torch.tensor([[True, True, False, False, False]] * 2)
    reason, weights = reasoner(memory, query, seen)
    assert (weights[..., 2:] == 0).all()
    alone, _ = reasoner(memory[:, :2], query)
    assert_close(reason, alone)


@pytest.mark.parametrize("match", [False, True])
def test_slot_layers_leave_rows_not_seen_out(match: bool) -> None:
    reasoner = make_reasoner(slot_layers=2, slot_heads=2, match_rows=match)
    memory, query = torch.randn(2, 5, 4), torch.randn(2, 3)
    seen = torch.tensor([[True, True, False, False, False], [True, True, True, True, True]])
    reason, weights = reasoner(memory, query, seen)
    assert (weights[0, :, 2:] == 0).all()
    assert_close(reason[0], reasoner(memory[:1, :2], query[:1])[0][0])
    assert_close(reason[1], reasoner(memory[1:], query[1:])[0][0])


@pytest.mark.parametrize("match", [False, True])
def test_slot_layers_ask_for_no_order_of_the_slots(match: bool) -> None:
    reasoner = make_reasoner(slot_layers=2, slot_heads=2, match_rows=match)
    memory, query, order = torch.randn(2, 5, 4), torch.randn(2, 3), torch.tensor([3, 0, 4, 1, 2])
    reason, weights = reasoner(memory, query)
    mixed_reason, mixed_weights = reasoner(memory[:, order], query)
    assert_close(reason, mixed_reason)
    assert_close(weights[..., order], mixed_weights)


def test_slot_layers_let_what_one_slot_gives_depend_on_another() -> None:
    """As printed, a slot that no hop looks at has no say; the layers let it speak through the one that is read."""
    memory, query = torch.randn(1, 3, 4), torch.randn(1, 3)
    for layers, depends in ((0, False), (1, True)):
        reasoner = make_reasoner(num_hops=1, slot_layers=layers, slot_heads=2)
        last = memory.clone().requires_grad_()
        rows, _ = (
            reasoner.slot_layers(last, query, torch.ones(1, 3, dtype=torch.bool))
            if reasoner.slot_layers is not None
            else (last, query)
        )
        (grad,) = torch.autograd.grad(rows[0, 0].square().sum(), last)
        assert bool(grad[0, 2].any()) is depends


def test_thinking_layers_put_a_nonlinear_layer_of_its_own_into_each_hop() -> None:
    reasoner = make_reasoner(num_hops=2, thinking_layers=True)
    memory, query = torch.randn(2, 5, 4), torch.randn(2, 3)
    expected = query
    for hop, layer in zip(reasoner.hops, reasoner.next_query, strict=True):  # type: ignore[call-overload]
        evidence = (hop(expected, memory).softmax(dim=-1)[:, None] @ memory).squeeze(1)
        inner = torch.relu(layer.inner(torch.cat([evidence, expected], dim=-1)))
        expected = torch.nn.functional.layer_norm(expected + layer.outer(inner), (3,))
    assert_close(reasoner(memory, query)[0], expected)


def test_a_layer_that_compares_sees_the_product_of_evidence_and_question() -> None:
    reasoner = make_reasoner(num_hops=1, thinking_layers=True, compare=True)
    memory, query = torch.randn(2, 5, 4), torch.randn(2, 3)
    (hop,), (layer,) = reasoner.hops, reasoner.next_query  # type: ignore[misc]
    evidence = (hop(query, memory).softmax(dim=-1)[:, None] @ memory).squeeze(1)
    inner = torch.relu(layer.inner(torch.cat([evidence, query, layer.beside(evidence) * query], dim=-1)))
    expected = torch.nn.functional.layer_norm(query + layer.outer(inner), (3,))
    assert_close(reasoner(memory, query)[0], expected)
