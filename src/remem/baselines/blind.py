"""Blind: answers from the question alone, to show what a task gives away without its streams.

Ours, to be shown beside every number: the query encoder of all methods, one hidden layer, the head of all methods. On
NarrativeQA it sees the candidates, in recommendation the target item.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.baselines.directly_reason import encode_questions
from remem.data.batch import QueryBatch, StreamBatch
from remem.model.embed import QueryEncoder
from remem.model.heads import Head


class Blind(nn.Module):
    """T(Q): the stream is never looked at."""

    def __init__(self, *, query_encoder: QueryEncoder, model_dim: int, head: Head) -> None:
        super().__init__()
        self.query_encoder, self.head = query_encoder, head
        self.think = nn.Linear(model_dim, model_dim)

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """A score for each answer."""
        reason = torch.relu(self.think(encode_questions(self.query_encoder, query)))
        return self.head(reason, query.candidates)
