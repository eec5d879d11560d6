"""Questions that a story asks by itself: one of its sentences with a word left out, before it is read or after.

Not in the paper. Its rehearsal asks a decoder of its own to recall; here it is the reasoner that is asked, the one that
answers real questions. So what it learns is what they need: to find sentences that speak of the same thing, and to go
on from one to the next. A sentence that is asked about before it is read can't be recalled; who says more than chance
about its last word has put together what was read before.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.data.batch import StreamBatch
from remem.model.embed import ItemEmbedding, SentenceQueryEncoder, lookup
from remem.model.fragments import random_below
from remem.model.interface import gather_rows
from remem.model.transformer import scale_of


class OwnQuestions(NamedTuple):
    """Sentences of each stream, the word left out of each, and after how many segments it is asked for."""

    tokens: Int[Tensor, "b q n"]
    token_mask: Bool[Tensor, "b q n"]
    gap: Int[Tensor, "b q"]
    position: Int[Tensor, "b q"]

    @property
    def answer(self) -> Int[Tensor, "b q"]:
        """The words left out."""
        return self.tokens.gather(2, self.gap[..., None]).squeeze(2)


def draw_questions(stream: StreamBatch, count: int) -> OwnQuestions:
    """`count` questions of each stream. The first half is asked right before a sentence is read, for its last word.

    The others are asked at a random moment after it, half of them, rounded down, for any of its words.
    """
    length = stream.segment_mask.sum(dim=1, keepdim=True).expand(-1, count)
    segment = random_below(length)
    rows = gather_rows(stream.order, segment)
    tokens, token_mask = stream.items[rows], stream.item_mask[rows]
    number = token_mask.sum(dim=-1)
    place = torch.arange(count, device=rows.device)
    ahead, last = place < count // 2, place < count - (count - count // 2) // 2
    gap = torch.where(last, (number - 1).clamp(min=0), random_below(number))
    position = torch.where(ahead, segment, segment + 1 + random_below(length - segment))
    return OwnQuestions(tokens, token_mask, gap, position)


class Asker(nn.Module):
    """A sentence with a gap as a question, and the score of every word: W r . x / sqrt(d), as Eq. 3 scores items."""

    def __init__(self, *, item_dim: int, model_dim: int) -> None:
        super().__init__()
        self.gap = nn.Parameter(torch.randn(item_dim))
        self.named = nn.Linear(model_dim, item_dim)

    def question(self, own: OwnQuestions, encoder: SentenceQueryEncoder) -> Float[Tensor, "b m"]:
        """q of every question, those of a stream one after the other."""
        words, places = lookup(encoder.words, own.tokens), torch.arange(own.tokens.shape[-1], device=own.gap.device)
        hidden = (places == own.gap[..., None])[..., None]
        return encoder.read(torch.where(hidden, self.gap, words).flatten(0, 1), own.token_mask.flatten(0, 1))

    def loss(self, reason: Float[Tensor, "b m"], own: OwnQuestions, words: ItemEmbedding) -> Float[Tensor, ""]:
        """The mean cross-entropy of the words left out, against the whole vocabulary."""
        scores = self.named(reason) @ words.table.weight.T * scale_of(words.table.embedding_dim)
        return F.cross_entropy(scores.float(), own.answer.flatten())
