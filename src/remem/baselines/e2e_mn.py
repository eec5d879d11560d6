"""E2E-MN: Sukhbaatar et al., End-To-End Memory Networks, NeurIPS 2015.

A sentence is the sum of its words' vectors, weighted by place, plus a vector of its age; hops over all sentences, with
adjacent ones tied (A_{h+1} = C_h, B = A_1, W = C_H: H + 1 tables of words and of ages in all):

    u = sum_j l_j * A_1 w_j     m_i = sum_j l_j * A_h w_ij + T_h(age_i)     c_i = the same with A_{h+1}, T_{h+1}
    p = softmax_i(u . m_i)     u <- u + sum_i p_i c_i     score of a candidate = u . sum_j l_j * A_{H+1} w_j
    l_jk = 1 + 4 (k - (D + 1) / 2) (j - (J + 1) / 2) / (D J)     for number k of D, word j of J

Changed for the shared harness: a candidate is a bag of words like a sentence, while answers of the original are
single words. Its random empty memories ("time noise") here only make the others older, and nobody looks at them. Left
out is the linear start, training for some epochs without the softmax. Dropout on the words' vectors is ours. A sentence
longer than a segment is several memories.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.baselines.reading import by_view
from remem.data.batch import Candidates, QueryBatch, StreamBatch
from remem.errors import BadInput
from remem.model.interface import gather_rows
from remem.ops.precision import at_least_float32


class E2EMN(nn.Module):
    """T(X, Q) by hops over bags of words."""

    def __init__(
        self,
        *,
        num_words: int,
        model_dim: int,
        num_hops: int,
        num_ages: int,
        time_noise: float,
        word_std: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.words = nn.ModuleList(nn.Embedding(num_words, model_dim) for _ in range(num_hops + 1))
        self.ages = nn.ModuleList(nn.Embedding(num_ages, model_dim) for _ in range(num_hops + 1))
        for table in (*self.words, *self.ages):
            assert isinstance(table, nn.Embedding)
            nn.init.normal_(table.weight, std=word_std)
        self.time_noise, self.dropout = time_noise, nn.Dropout(dropout)

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """A score for each candidate."""
        if query.candidates is None:
            raise BadInput("E2E-MN chooses among candidate answers; the question came without any.")
        ages, seen = self._ages(stream, query)  # [b, v, t]
        asked = by_view(self._bags(0, query.tokens, query.token_mask), ages.shape[1])  # u [b, v, p, m]
        keys = self._memories(0, stream, ages)
        for hop in range(1, len(self.words)):
            values = self._memories(hop, stream, ages)  # [b, v, t, m]
            scores = at_least_float32(asked @ keys.mT)
            scores = scores.masked_fill(~seen[:, :, None], torch.finfo(scores.dtype).min)
            weights = scores.softmax(dim=-1) * seen.any(dim=-1)[..., None, None]  # nothing read, nothing found
            asked = asked + weights.to(values.dtype) @ values
            keys = values
        return self._choose(asked.flatten(1, 2), query.candidates)

    def _choose(self, asked: Float[Tensor, "b q m"], candidates: Candidates) -> Float[Tensor, "b q c"]:
        answers = self._bags(len(self.words) - 1, candidates.tokens, candidates.token_mask)  # [b, c, m]
        padding = ~candidates.token_mask.any(dim=-1)[:, None]
        return at_least_float32(asked @ answers.mT).masked_fill(padding, -torch.inf)

    def _memories(self, table: int, stream: StreamBatch, ages: Int[Tensor, "b v t"]) -> Float[Tensor, "b v t m"]:
        bags = self._bags(table, stream.items, stream.item_mask)  # each distinct sentence once
        # by rows: the gradient of that is a plain sum into rows
        rows = bags.index_select(0, stream.order.flatten()).unflatten(0, stream.order.shape)
        return rows[:, None] + self.ages[table](ages)

    def _bags(self, table: int, words: Int[Tensor, "*s n"], mask: Bool[Tensor, "*s n"]) -> Float[Tensor, "*s m"]:
        """sum_j l_j * A w_j of every row of words: the plain sum, and one by place that is scaled by number."""
        place = mask.cumsum(dim=-1)  # j of a real word, from one
        count = mask.sum(dim=-1, keepdim=True).clamp(min=1)  # J
        slope = 4 * (place - (count + 1) / 2) / count
        vectors = self.dropout(self.words[table](words))  # [*s, n, m]
        weights = torch.stack([torch.ones_like(slope), slope], dim=-2).masked_fill(~mask[..., None, :], 0.0)
        plain, by_place = (weights.to(vectors.dtype) @ vectors).unbind(dim=-2)
        dim = vectors.shape[-1]
        return plain + by_place * ((torch.arange(1, dim + 1, device=mask.device) - (dim + 1) / 2) / dim)

    def _ages(self, stream: StreamBatch, query: QueryBatch) -> tuple[Int[Tensor, "b v t"], Bool[Tensor, "b v t"]]:
        """Sentences between each one and the question, and which of them came before it."""
        real = stream.segment_mask
        position = real.sum(dim=1, keepdim=True) if query.after_all else query.position  # [b, v]
        seen = (torch.arange(real.shape[1], device=real.device) < position[..., None]) & real[:, None]
        steps = torch.ones_like(stream.order)
        if self.training and self.time_noise:
            steps = steps + (torch.rand(steps.shape, device=steps.device) < self.time_noise)
        place = steps.cumsum(dim=1)
        last = gather_rows(F.pad(place, (1, 0)), position)  # of the newest sentence
        ages = (last[..., None] - place[:, None]).clamp(min=0, max=self.num_ages - 1)
        return ages, seen

    @property
    def num_ages(self) -> int:
        """Ages told apart; whatever is older counts as the oldest."""
        table = self.ages[0]
        assert isinstance(table, nn.Embedding)
        return table.num_embeddings
