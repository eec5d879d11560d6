from __future__ import annotations

import pytest
import torch
from builders import as_torch_gru, assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from remem.errors import BadInput
from remem.model.recurrent import BiGRU, gru_step, in_autocast_type, reversal


def test_reversal_turns_the_real_part_and_leaves_padding_in_place() -> None:
    mask = torch.tensor([[True, True, True, False], [True] * 4, [False] * 4])
    assert reversal(mask).tolist() == [[2, 1, 0, 3], [3, 2, 1, 0], [0, 1, 2, 3]]


def test_reversal_applied_twice_changes_nothing() -> None:
    mask = torch.arange(6) < torch.tensor([0, 1, 3, 6])[:, None]
    turned = reversal(mask)
    assert torch.equal(turned.gather(1, turned), torch.arange(6).expand(4, 6))


@settings(max_examples=25, deadline=None)
@given(b=st.integers(1, 4), n=st.integers(1, 6), i=st.integers(1, 4), half=st.integers(1, 3), seed=st.integers(0, 99))
def test_each_row_is_torchs_bidirectional_gru_on_the_unpadded_sequence(
    b: int, n: int, i: int, half: int, seed: int
) -> None:
    torch.manual_seed(seed)
    gru, items, lengths = BiGRU(input_dim=i, output_dim=2 * half), torch.randn(b, n, i), torch.randint(1, n + 1, (b,))
    twin = as_torch_gru(gru)
    features, whole = gru(items, torch.arange(n) < lengths[:, None])
    for row, length in enumerate(lengths.tolist()):
        expected, last = twin(items[row : row + 1, :length])
        assert_close(features[row, :length], expected[0])
        assert_close(whole[row], last.flatten())


def test_padding_may_hold_anything() -> None:
    gru, items = BiGRU(input_dim=3, output_dim=4), torch.randn(2, 5, 3)
    mask = torch.arange(5) < torch.tensor([2, 4])[:, None]
    features, whole = gru(items, mask)
    spoilt_features, spoilt_whole = gru(items.masked_fill(~mask[..., None], torch.nan), mask)
    assert_close(spoilt_features[mask], features[mask])
    assert_close(spoilt_whole, whole)


def test_a_sequence_of_padding_gives_finite_numbers() -> None:
    features, whole = BiGRU(input_dim=3, output_dim=4)(torch.randn(2, 5, 3), torch.zeros(2, 5, dtype=torch.bool))
    assert features.isfinite().all()
    assert whole.isfinite().all()


def test_float16_becomes_the_type_of_autocast_and_nothing_else_changes() -> None:
    half, whole = torch.ones(2, dtype=torch.float16), torch.ones(2)
    assert in_autocast_type(half) is half
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert in_autocast_type(half).dtype == torch.bfloat16
        assert in_autocast_type(whole) is whole


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_type_of_autocast() -> None:
    gru = BiGRU(input_dim=8, output_dim=8).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outputs = gru(torch.randn(2, 5, 8, device="cuda"), torch.ones(2, 5, dtype=torch.bool, device="cuda"))
    assert [output.dtype for output in outputs] == [torch.bfloat16] * 2


def test_an_odd_width_is_refused_with_a_sentence() -> None:
    with pytest.raises(BadInput, match="7 is odd"):
        BiGRU(input_dim=3, output_dim=7)


def test_a_step_from_given_products_is_that_of_a_gru() -> None:
    cell, items, states = nn.GRUCell(4, 3), torch.randn(5, 4), torch.randn(5, 3)
    inputs = nn.functional.linear(items, cell.weight_ih, cell.bias_ih)
    recurrent = nn.functional.linear(states, cell.weight_hh, cell.bias_hh)
    torch.testing.assert_close(gru_step(inputs, recurrent, states), cell(items, states))
