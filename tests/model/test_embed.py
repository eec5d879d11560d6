from __future__ import annotations

import pytest
import torch
from builders import as_torch_gru, assert_close
from torch import nn

from remem.model.embed import (
    IdQueryEncoder,
    ItemEmbedding,
    PlacedSum,
    SentenceQueryEncoder,
    TargetQueryEncoder,
    VectorEmbedding,
)


def test_an_item_is_its_row_of_the_table() -> None:
    embed = ItemEmbedding(num_items=6, item_dim=4, std=1.0)
    items = torch.tensor([[5, 0], [2, 2]])
    features = embed(items)
    for i in range(2):
        for n in range(2):
            assert torch.equal(features[i, n], embed.table.weight[items[i, n]])


def test_item_embeddings_start_with_the_given_deviation() -> None:
    weight = ItemEmbedding(num_items=500, item_dim=40, std=0.25).table.weight
    assert abs(weight.std().item() - 0.25) < 0.01
    assert abs(weight.mean().item()) < 0.01


def test_a_frame_is_projected_and_then_normed() -> None:
    embed, frames = VectorEmbedding(width=5, item_dim=4), 100 * torch.randn(3, 2, 5)
    projected = frames @ embed.project.weight.T + embed.project.bias
    centred = projected - projected.mean(dim=-1, keepdim=True)
    assert_close(embed(frames), centred / (projected.var(dim=-1, unbiased=False, keepdim=True) + 1e-5).sqrt())


def test_a_target_is_its_items_row_projected() -> None:
    items = nn.Embedding(6, 5)
    encoder = TargetQueryEncoder(items=items, model_dim=4)
    query = encoder(torch.tensor([[3], [1]]), torch.ones(2, 1, dtype=torch.bool))
    assert_close(query, items.weight[[3, 1]] @ encoder.project.weight.T)


def test_a_query_number_is_its_row_of_a_table() -> None:
    encoder = IdQueryEncoder(num_queries=5, model_dim=4)
    query = encoder(torch.tensor([[3], [1]]), torch.ones(2, 1, dtype=torch.bool))
    assert torch.equal(query, encoder.table.weight[[3, 1]])


def test_a_sentence_is_the_last_states_of_torchs_bidirectional_gru_over_its_words() -> None:
    words = nn.Embedding(9, 5)
    encoder = SentenceQueryEncoder(words=words, model_dim=6)
    twin = as_torch_gru(encoder.gru)
    sentences = [[1, 2, 3, 4], [5], [8, 7]]
    tokens, mask = torch.zeros(3, 4, dtype=torch.long), torch.zeros(3, 4, dtype=torch.bool)
    for i, sentence in enumerate(sentences):
        tokens[i, : len(sentence)], mask[i, : len(sentence)] = torch.tensor(sentence), True
    query = encoder(tokens, mask)
    for i, sentence in enumerate(sentences):
        _, last = twin(words(torch.tensor([sentence])))
        assert_close(query[i], torch.cat([last[0, 0], last[1, 0]]))


def test_a_sum_of_words_weighs_each_by_its_place_and_those_beyond_the_last_as_the_last() -> None:
    placed, words = PlacedSum(places=3, dim=4, std=0.5), torch.randn(2, 5, 4)
    mask = torch.arange(5) < torch.tensor([5, 2])[:, None]
    p = placed.weights
    five = sum(p[min(n, 2)] * words[0, n] for n in range(5)) / 5**0.5
    two = (p[0] * words[1, 0] + p[1] * words[1, 1]) / 2**0.5
    poisoned = words.masked_fill(~mask[..., None], torch.nan)
    assert_close(placed(poisoned, mask), torch.stack([five, two]))  # type: ignore[list-item]
    assert (placed(words, torch.zeros_like(mask)) == 0).all()
    assert abs(PlacedSum(places=50, dim=50, std=0.3).weights.mean().item() - 1) < 0.05


def sentence_encoder(kind: str) -> SentenceQueryEncoder:
    summed = PlacedSum(places=4, dim=6, std=0.3) if kind == "sum" else None
    return SentenceQueryEncoder(words=nn.Embedding(9, 6), model_dim=6, summed=summed)


@pytest.mark.parametrize("kind", ["gru", "sum"])
def test_padded_words_change_no_sentence(kind: str) -> None:
    encoder = sentence_encoder(kind)
    tokens = torch.randint(9, (3, 5))
    mask = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    others = torch.where(mask, tokens, torch.randint(9, (3, 5)))
    longer = nn.functional.pad(tokens, (0, 2), value=4)
    assert_close(encoder(others, mask), encoder(tokens, mask))
    assert_close(encoder(longer, nn.functional.pad(mask, (0, 2))), encoder(tokens, mask))


@pytest.mark.parametrize("kind", ["gru", "sum"])
def test_the_order_of_words_matters(kind: str) -> None:
    encoder = sentence_encoder(kind)
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert not torch.allclose(encoder(torch.tensor([[1, 2, 3]]), mask), encoder(torch.tensor([[3, 2, 1]]), mask))
