from __future__ import annotations

import pytest
import torch
from builders import PAPER, RM, as_torch_gru, assert_close, make_machine, with_encoder
from torch import Tensor, nn

from remem.model.encoder import GRUEncoder, TransformerEncoder
from remem.settings.model import ModelSettings

KINDS = {
    "transformer, sinusoids": PAPER,
    "transformer, learned positions": RM,
    "gru": with_encoder(PAPER, "gru"),
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def encoder(request: pytest.FixtureRequest) -> nn.Module:
    return make_machine(request.param, segment_len=5).encoder


def segments() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 5, 8), torch.arange(5) < torch.tensor([5, 3, 1])[:, None]


def test_padding_changes_no_real_items_feature(encoder: nn.Module) -> None:
    items, mask = segments()
    spoilt = torch.where(mask[..., None], items, 1e3 * torch.randn(3, 5, 8))
    assert_close(encoder(spoilt, mask)[mask], encoder(items, mask)[mask])


def test_a_segment_is_encoded_the_same_without_its_padding(encoder: nn.Module) -> None:
    items, mask = segments()
    features = encoder(items, mask)
    for row, length in enumerate([5, 3, 1]):
        alone = encoder(items[row : row + 1, :length], mask[row : row + 1, :length])
        assert_close(features[row, :length], alone[0])


def test_segments_do_not_see_each_other(encoder: nn.Module) -> None:
    items, mask = segments()
    others = torch.cat([items[:1], torch.randn(2, 5, 8)])
    assert_close(encoder(others, mask)[0], encoder(items, mask)[0])


def test_every_item_sees_the_whole_segment(encoder: nn.Module) -> None:
    items, mask = torch.randn(1, 5, 8), torch.ones(1, 5, dtype=torch.bool)
    for changed in (0, 4):
        other = items.clone()
        other[:, changed] = torch.randn(8)
        assert ((encoder(other, mask) - encoder(items, mask)).abs().amax(dim=-1) > 1e-5).all()


def test_the_order_of_items_matters(encoder: nn.Module) -> None:
    items, mask = torch.randn(1, 5, 8), torch.ones(1, 5, dtype=torch.bool)
    turned = encoder(items.flip(1), mask).flip(1)
    assert (turned - encoder(items, mask)).abs().max() > 1e-3


def test_a_segment_of_padding_gives_finite_numbers(encoder: nn.Module) -> None:
    assert encoder(torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)).isfinite().all()


@pytest.mark.parametrize("settings", [PAPER, RM], ids=["rm-paper", "rm"])
def test_the_transformer_encoder_is_position_then_each_layer_in_turn(settings: ModelSettings) -> None:
    encoder = make_machine(settings, segment_len=5).encoder
    assert isinstance(encoder, TransformerEncoder)
    items, mask = segments()
    expected = items + encoder.position.table[:5]
    for layer in encoder.layers:
        expected = layer(expected, mask)
    assert_close(encoder(items, mask)[mask], encoder.norm(expected)[mask])  # what is made of padding means nothing


def test_a_segment_of_padding_is_encoded_as_if_its_first_item_were_real_and_zero() -> None:
    # what a softmax over nothing gives depends on the kernel, so the encoder never asks for one
    encoder, items = make_machine(RM, segment_len=5).encoder, torch.randn(2, 5, 8)
    first = (torch.arange(5) < 1).expand(2, 5)
    assert_close(encoder(items, torch.zeros_like(first)), encoder(torch.zeros_like(items), first))


def test_the_gru_encoder_is_torchs_bidirectional_gru() -> None:
    encoder = GRUEncoder(item_dim=8)
    items, mask = segments()
    features = encoder(items, mask)
    for row, length in enumerate([5, 3, 1]):
        expected, _ = as_torch_gru(encoder.gru)(items[row : row + 1, :length])
        assert_close(features[row, :length], expected[0])
