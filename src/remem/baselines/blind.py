"""Blind: answers from the question alone, to show what a task gives away without its streams.

    scores = head(q + W_2 relu(W_1 q))

Ours, to be shown beside every number: encoder of questions and head are those of all methods. On NarrativeQA it sees
the candidates, in recommendation the target item.
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
    """T(Q), with the encoder of questions and the last layer of every other method."""

    def __init__(self, *, query_encoder: QueryEncoder, head: Head, model_dim: int, dropout: float) -> None:
        super().__init__()
        self.query_encoder, self.head = query_encoder, head
        self.inner = nn.Linear(model_dim, model_dim)
        self.outer = nn.Linear(model_dim, model_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """A score for each answer; `stream` is not looked at."""
        question = encode_questions(self.query_encoder, query)
        reason = question + self.outer(torch.relu(self.inner(question)))
        return self.head(self.dropout(reason), query.candidates)
