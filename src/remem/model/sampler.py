"""History sampler S (Eq. 5, Sec. 3.3.2): a teacher that sees the whole stream and tells what is worth rehearsing."""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.data.batch import QueryBatch, StreamBatch
from remem.model.attention import AdditiveScore
from remem.model.embed import Embedding, QueryEncoder
from remem.model.heads import Head
from remem.ops.precision import at_least_float32


class Sampler(Protocol):
    """Chooses the segments to rehearse for one question of each stream."""

    def choose(
        self, stream: StreamBatch, query: QueryBatch, num_fragments: int
    ) -> tuple[Int[Tensor, "b f"], Bool[Tensor, "b f"]]:
        """Segment numbers, and which of them are real."""
        ...


class HistorySampler(nn.Module):
    """Attention over the means of the segments; trained by itself to answer, then frozen.

    h_c = mean of segment c     beta_c = w^T tanh(W_1 q + W_2 h_c + b)     a = [sum_c softmax(beta)_c h_c; q]
    """

    def __init__(
        self,
        *,
        embed: Embedding,
        query_encoder: QueryEncoder,
        item_dim: int,
        model_dim: int,
        head: Head,
    ) -> None:
        super().__init__()
        self.embed, self.query_encoder = embed, query_encoder
        self.attention = AdditiveScore(left_dim=model_dim, right_dim=item_dim, model_dim=model_dim)
        self.head = head  # over [evidence; q], of width item_dim + model_dim

    def segment_means(self, stream: StreamBatch) -> Float[Tensor, "b t d"]:
        """h_c: the mean of a segment's item features."""
        features = self.embed(stream.items).masked_fill(~stream.item_mask[..., None], 0.0)
        means = features.sum(dim=1) / stream.item_mask.sum(dim=1, keepdim=True).clamp(min=1)
        return means[stream.order]

    def attend(self, stream: StreamBatch, query: QueryBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Scores beta [b, q, t] with -inf at segments not yet read, query features [b, q, m], means [b, t, d]."""
        means = self.segment_means(stream)
        features = self.query_encoder(query.tokens.flatten(0, 1), query.token_mask.flatten(0, 1))
        features = features.unflatten(0, query.answer.shape)
        scores = self.attention.pairs(self.attention.left(features)[:, :, None], self.attention.right(means)[:, None])
        return at_least_float32(scores).masked_fill(~available_segments(stream, query), -torch.inf), features, means

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """The teacher's own answers, from what it attends to."""
        scores, features, means = self.attend(stream, query)
        evidence = scores.softmax(dim=-1).nan_to_num(0.0).to(means.dtype) @ means  # a padded question sees nothing
        return self.head(torch.cat([evidence, features], dim=-1), query.candidates)

    @torch.no_grad()
    def choose(
        self, stream: StreamBatch, query: QueryBatch, num_fragments: int
    ) -> tuple[Int[Tensor, "b f"], Bool[Tensor, "b f"]]:
        """B/2 segments with the largest weights from each half of what was read before the question."""
        scores, _, _ = self.attend(stream, query)
        return top_of_each_half(scores[:, 0], query.position[:, 0], num_fragments)


class RandomSampler:
    """The ablation: any B segments of what was read, by chance."""

    def choose(
        self, stream: StreamBatch, query: QueryBatch, num_fragments: int
    ) -> tuple[Int[Tensor, "b f"], Bool[Tensor, "b f"]]:
        """B different segments, each equally likely."""
        available = available_segments(stream, query)[:, 0]
        scores = torch.rand(available.shape, device=available.device).masked_fill(~available, -torch.inf)
        return _top(scores, num_fragments)


def available_segments(stream: StreamBatch, query: QueryBatch) -> Bool[Tensor, "b q t"]:
    """The segments read before each question."""
    place = torch.arange(stream.order.shape[1], device=stream.order.device)
    return (place < query.position[..., None]) & stream.segment_mask[:, None]


def top_of_each_half(
    scores: Float[Tensor, "b t"], count: Int[Tensor, " b"], num_fragments: int
) -> tuple[Int[Tensor, "b f"], Bool[Tensor, "b f"]]:
    """The B/2 best of segments [0, C//2) and the B - B/2 best of [C//2, C), where C = `count` have been read."""
    place = torch.arange(scores.shape[1], device=scores.device)
    first = place < (count // 2)[:, None]
    halves = [
        _top(scores.masked_fill(~first, -torch.inf), num_fragments // 2),
        _top(scores.masked_fill(first, -torch.inf), num_fragments - num_fragments // 2),
    ]
    indices, masks = zip(*halves, strict=True)
    return torch.cat(indices, dim=1), torch.cat(masks, dim=1)


def _top(scores: Float[Tensor, "b t"], count: int) -> tuple[Int[Tensor, "b f"], Bool[Tensor, "b f"]]:
    missing = count - scores.shape[1]
    if missing > 0:
        scores = nn.functional.pad(scores, (0, missing), value=-torch.inf)
    best = scores.topk(count, dim=1)
    real = best.values > -torch.inf
    return best.indices.masked_fill(~real, 0), real
