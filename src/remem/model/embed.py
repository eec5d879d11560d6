"""Items and questions to vectors: embeddings, projected features, the query encoders of Appendix A."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.model.recurrent import BiGRU


def lookup(table: nn.Embedding, ids: Int[Tensor, "*s"]) -> Float[Tensor, "*s d"]:
    """The rows of a table. The gradient is a plain sum into rows; that of the module itself sorts on a GPU."""
    return table.weight.index_select(0, ids.flatten()).view(*ids.shape, table.embedding_dim)


class ItemEmbedding(nn.Module):
    """The feature x of an item, by a trainable embedding layer (Appendix B)."""

    def __init__(self, *, num_items: int, item_dim: int, std: float) -> None:
        super().__init__()
        self.table = nn.Embedding(num_items, item_dim)
        nn.init.normal_(self.table.weight, std=std)

    @property
    def num_items(self) -> int:
        """Size of the vocabulary."""
        return self.table.num_embeddings

    def forward(self, items: Int[Tensor, "*s"]) -> Float[Tensor, "*s d"]:
        return lookup(self.table, items)


class VectorEmbedding(nn.Module):
    """The feature x of an item that is a vector to begin with, such as a frame: LayerNorm(W v + b).

    Normed, so that features of any scale come to that of an embedding of standard deviation one.
    """

    num_items = None  # there is no vocabulary

    def __init__(self, *, width: int, item_dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, item_dim)
        self.norm = nn.LayerNorm(item_dim)

    def forward(self, items: Float[Tensor, "*s e"]) -> Float[Tensor, "*s d"]:
        return self.norm(self.project(items))


class IdQueryEncoder(nn.Module):
    """q by an embedding layer of its own: the query is one number (synthetic task)."""

    def __init__(self, *, num_queries: int, model_dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(num_queries, model_dim)

    def forward(self, tokens: Int[Tensor, "b w"], mask: Bool[Tensor, "b w"]) -> Float[Tensor, "b m"]:
        return lookup(self.table, tokens[:, 0])


class TargetQueryEncoder(nn.Module):
    """q = W x of the target item, whose embedding is that of the stream's items (recommendation)."""

    def __init__(self, *, items: nn.Embedding, model_dim: int, copy_start: bool = False) -> None:
        super().__init__()
        self.items = items
        self.project = nn.Linear(items.embedding_dim, model_dim, bias=False)
        if copy_start:
            nn.init.eye_(self.project.weight)

    def forward(self, tokens: Int[Tensor, "b w"], mask: Bool[Tensor, "b w"]) -> Float[Tensor, "b m"]:
        return self.project(self.items(tokens[:, 0]))


class PlacedSum(nn.Module):
    """sum_n p_n * x_n / sqrt(N), a sentence as one vector: its words, each weighed by its place, element by element.

    A word is found in it as it is, whatever stands beside it, so sentences with a word in common are alike from the
    first step on (Henaff et al., ICLR 2017, read stories so). Words beyond the last place take its weights.
    """

    def __init__(self, *, places: int, dim: int, std: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(1 + std * torch.randn(places, dim))

    def forward(self, words: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "b d"]:
        place = torch.arange(words.shape[1], device=words.device).clamp(max=len(self.weights) - 1)
        # padding may hold anything, so it is left out rather than multiplied by zero
        real = words.masked_fill(~mask[..., None], 0.0).to(torch.float32)
        weights = self.weights.index_select(0, place)
        return (real * weights).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1).sqrt()


class SentenceQueryEncoder(nn.Module):
    """q by a bi-directional GRU over the words of a question (text and video QA), or as a `PlacedSum` of them."""

    def __init__(self, *, words: nn.Embedding, model_dim: int, summed: PlacedSum | None = None) -> None:
        super().__init__()
        self.words, self.summed = words, summed
        if summed is None:
            self.gru = BiGRU(input_dim=words.embedding_dim, output_dim=model_dim)

    def forward(self, tokens: Int[Tensor, "b w"], mask: Bool[Tensor, "b w"]) -> Float[Tensor, "b m"]:
        return self.read(lookup(self.words, tokens), mask)

    def read(self, words: Float[Tensor, "b w d"], mask: Bool[Tensor, "b w"]) -> Float[Tensor, "b m"]:
        """The same from the words' vectors."""
        return self.gru(words, mask)[1] if self.summed is None else self.summed(words, mask)


Embedding = ItemEmbedding | VectorEmbedding
QueryEncoder = IdQueryEncoder | TargetQueryEncoder | SentenceQueryEncoder
