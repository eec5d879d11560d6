from __future__ import annotations

import torch
from builders import as_torch_gru, assert_close
from torch import nn

from remem.model.embed import IdQueryEncoder, ItemEmbedding, SentenceQueryEncoder, TargetQueryEncoder, VectorEmbedding


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


def test_padded_words_change_no_sentence() -> None:
    encoder = SentenceQueryEncoder(words=nn.Embedding(9, 5), model_dim=6)
    tokens = torch.randint(9, (3, 5))
    mask = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    others = torch.where(mask, tokens, torch.randint(9, (3, 5)))
    longer = nn.functional.pad(tokens, (0, 2), value=4)
    assert_close(encoder(others, mask), encoder(tokens, mask))
    assert_close(encoder(longer, nn.functional.pad(mask, (0, 2))), encoder(tokens, mask))


def test_the_order_of_words_matters() -> None:
    encoder = SentenceQueryEncoder(words=nn.Embedding(9, 5), model_dim=6)
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert not torch.allclose(encoder(torch.tensor([[1, 2, 3]]), mask), encoder(torch.tensor([[3, 2, 1]]), mask))
