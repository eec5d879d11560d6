from __future__ import annotations

import math

import pytest
import torch
from builders import assert_close, dot, softmax
from torch import Tensor, nn

from remem.errors import BadInput
from remem.model.transformer import (
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    PositionCode,
    attendable,
    final_norm,
    scale_of,
    sinusoids,
)


@pytest.mark.parametrize("dim", [6, 7])
def test_sinusoids_are_the_published_formula_one_number_at_a_time(dim: int) -> None:
    expected = [
        [
            math.sin(pos / 10_000 ** (i / dim)) if i % 2 == 0 else math.cos(pos / 10_000 ** ((i - 1) / dim))
            for i in range(dim)
        ]
        for pos in range(12)
    ]
    assert_close(sinusoids(12, dim), expected)


@pytest.mark.parametrize("kind", ["sinusoid", "learned"])
def test_a_position_code_adds_the_same_row_to_every_item_of_a_place(kind: str) -> None:
    code = PositionCode(length=5, dim=4, kind=kind, std=0.3)  # type: ignore[arg-type]
    items = torch.randn(2, 3, 4, 4)
    assert_close(code(items) - items, code.table[:4].expand(2, 3, 4, 4))


@pytest.mark.parametrize("length", [1, 4])
def test_more_items_than_a_position_code_has_places_are_refused_with_a_sentence(length: int) -> None:
    position = PositionCode(length=length, dim=6, kind="learned", std=0.3)
    with pytest.raises(BadInput, match=f"5 items were given where {length} places are known"):
        position(torch.randn(2, 5, 6))


def test_only_a_learned_position_code_is_trained_and_saved() -> None:
    learned = PositionCode(length=50, dim=40, kind="learned", std=0.3)
    fixed = PositionCode(length=50, dim=40, kind="sinusoid", std=0.3)
    assert [name for name, _ in learned.named_parameters()] == ["table"]
    assert abs(learned.table.std().item() - 0.3) < 0.02
    assert not list(fixed.parameters())
    assert not fixed.state_dict()


def heads_by_hand(
    attention: MultiHeadAttention, queries: Tensor, keys: Tensor, mask: Tensor, *, others: bool = False
) -> Tensor:
    """softmax(q k / sqrt(d / heads)) v for each head, one query at a time; with `others` none looks at itself."""
    q, k, v = attention.query(queries), attention.key(keys), attention.value(keys)
    width = q.shape[-1] // attention.num_heads
    mixed = torch.zeros_like(q)
    for b in range(len(q)):
        real = [j for j in range(keys.shape[1]) if mask[b, j]]
        for start in range(0, q.shape[-1], width):
            part = slice(start, start + width)
            for i in range(q.shape[1]):
                seen = [j for j in real if not others or j != i] or [i]
                scores = [dot(q[b, i, part].tolist(), k[b, j, part].tolist()) / math.sqrt(width) for j in seen]
                for weight, j in zip(softmax(scores), seen, strict=True):
                    mixed[b, i, part] += weight * v[b, j, part]
    return attention.out(mixed)


@torch.no_grad()
def test_attention_is_the_published_formula_one_query_at_a_time() -> None:
    attention = MultiHeadAttention(dim=6, num_heads=2)
    queries, keys = torch.randn(2, 3, 6), torch.randn(2, 5, 6)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    assert_close(attention(queries, keys), heads_by_hand(attention, queries, keys, torch.ones(2, 5)))
    assert_close(attention.within(keys, mask), heads_by_hand(attention, keys, keys, mask))


@torch.no_grad()
def test_items_that_match_look_at_others_alone_unless_there_are_none() -> None:
    attention = MultiHeadAttention(dim=6, num_heads=2, match=True)
    items = torch.randn(3, 5, 6)
    mask = torch.arange(5) < torch.tensor([5, 2, 1])[:, None]
    assert_close(attention.within(items, mask)[mask], heads_by_hand(attention, items, items, mask, others=True)[mask])
    assert torch.isfinite(attention.within(items, torch.zeros_like(mask))).all()


def test_items_that_match_begin_by_looking_at_those_like_them() -> None:
    attention = MultiHeadAttention(dim=64, num_heads=4, match=True)
    items = torch.randn(1, 6, 64)
    items[0, 4] = items[0, 1] + 0.1 * torch.randn(64)  # as two sentences with most words in common
    q, k = attention.query(items), attention.key(items)
    scores = (q @ k.mT)[0].fill_diagonal_(-torch.inf)
    assert scores[1].argmax() == 4
    assert scores[4].argmax() == 1


@pytest.mark.parametrize("match", [False, True])
def test_a_masked_key_changes_nothing(match: bool) -> None:
    attention = MultiHeadAttention(dim=6, num_heads=3, match=match)
    keys = torch.randn(2, 5, 6)
    mask = torch.arange(5) < torch.tensor([3, 1])[:, None]
    spoilt = torch.where(mask[..., None], keys, 1e3 * torch.randn(2, 5, 6))
    assert_close(attention.within(spoilt, mask)[mask], attention.within(keys, mask)[mask])


def test_dropout_acts_only_while_training() -> None:
    layer = EncoderLayer(dim=6, num_heads=2, dropout=0.5)
    x, mask = torch.randn(2, 8, 6), torch.ones(2, 8, dtype=torch.bool)
    assert not torch.equal(layer(x, mask), layer(x, mask))
    layer.eval()
    assert torch.equal(layer(x, mask), layer(x, mask))


def test_a_width_that_heads_cannot_share_is_refused_with_a_sentence() -> None:
    with pytest.raises(BadInput, match="10 cannot be split into 4 heads"):
        MultiHeadAttention(dim=10, num_heads=4)


def test_attendable_opens_one_place_only_where_there_is_none() -> None:
    mask = torch.tensor([[True, False, False], [False, False, False], [False, True, False]])
    before = mask.clone()
    assert attendable(mask).tolist() == [[True, False, False], [True, False, False], [False, True, False]]
    assert torch.equal(mask, before)


def copy_attention(ours: MultiHeadAttention, twin: nn.MultiheadAttention) -> None:
    assert twin.in_proj_weight is not None
    twin.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
    twin.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
    twin.out_proj.load_state_dict(ours.out.state_dict())


def copy_rest(ours: EncoderLayer | DecoderLayer, twin: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> None:
    twin.linear1.load_state_dict(ours.feed_forward[0].state_dict())
    twin.linear2.load_state_dict(ours.feed_forward[3].state_dict())
    norms = [module for module in ours.modules() if isinstance(module, nn.LayerNorm)]
    for number, norm in enumerate(norms, start=1):
        nn.init.normal_(norm.weight)
        getattr(twin, f"norm{number}").load_state_dict(norm.state_dict())


@pytest.mark.parametrize("pre_norm", [False, True])
@torch.no_grad()
def test_an_encoder_layer_is_torchs_own_with_the_same_weights(pre_norm: bool) -> None:
    layer = EncoderLayer(dim=8, num_heads=2, dropout=0.0, pre_norm=pre_norm)
    twin = nn.TransformerEncoderLayer(8, 2, dim_feedforward=32, dropout=0.0, batch_first=True, norm_first=pre_norm)
    copy_attention(layer.attention, twin.self_attn)
    copy_rest(layer, twin)
    x, mask = torch.randn(3, 5, 8), torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    assert_close(layer(x, mask)[mask], twin(x, src_key_padding_mask=~mask)[mask])


@pytest.mark.parametrize("pre_norm", [False, True])
@torch.no_grad()
def test_a_decoder_layer_is_torchs_own_without_future_masking_for_each_fragment(pre_norm: bool) -> None:
    layer = DecoderLayer(dim=8, num_heads=2, dropout=0.0, pre_norm=pre_norm)
    twin = nn.TransformerDecoderLayer(8, 2, dim_feedforward=32, dropout=0.0, batch_first=True, norm_first=pre_norm)
    copy_attention(layer.attention, twin.self_attn)
    copy_attention(layer.recall, twin.multihead_attn)
    copy_rest(layer, twin)
    x, memory = torch.randn(2, 3, 5, 8), torch.randn(2, 4, 8)
    mask = torch.arange(5) < torch.randint(1, 6, (2, 3, 1))
    after = layer(x, mask, memory)
    for f in range(3):
        expected = twin(x[:, f], memory, tgt_key_padding_mask=~mask[:, f])
        assert_close(after[:, f][mask[:, f]], expected[mask[:, f]])


def test_a_stack_is_closed_by_a_norm_only_where_its_layers_end_without_one() -> None:
    assert isinstance(final_norm(8, pre_norm=True), nn.LayerNorm)
    assert isinstance(final_norm(8, pre_norm=False), nn.Identity)


def test_the_scale_brings_inner_products_of_unit_vectors_to_unit_variance() -> None:
    left, right = torch.randn(2, 4000, 64)
    assert scale_of(64) == 0.125
    assert abs((scale_of(64) * (left * right).sum(dim=-1)).std().item() - 1.0) < 0.05
