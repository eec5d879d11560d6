"""Directly Reason (Appendix B): a recurrent network reads the whole stream, and its last state answers.

The paper says no more than that. Ours is a GRU of one layer and width d_model, whose state after the last item before
the question is joined with the query and classified. A question asked in the middle of a stream sees what came before
it, which is why the network reads in one direction only.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.data.batch import QueryBatch, StreamBatch
from remem.model.embed import Embedding, QueryEncoder
from remem.model.heads import Head
from remem.model.interface import gather_rows
from remem.model.packing import Packed, pack


class StreamReader(nn.Module):
    """A recurrent network over all items of a stream, one after the other."""

    def __init__(self, *, item_dim: int, model_dim: int) -> None:
        super().__init__()
        self.gru = nn.GRU(item_dim, model_dim, batch_first=True)

    def forward(self, embed: Embedding, stream: StreamBatch) -> tuple[Float[Tensor, "b l m"], Packed]:
        """The state after every item, and where each item came from."""
        packed = pack(stream.item_mask, stream.order, stream.segment_mask, stream.most_items)
        items = embed(stream.items.flatten(0, 1)[packed.rows])
        states, _ = self.gru(items)  # what comes after the last item is never looked at
        return states, packed


class DirectlyReason(nn.Module):
    """T(X, Q) from the last state of the stream and the question."""

    def __init__(
        self,
        *,
        embed: Embedding,
        reader: StreamReader,
        query_encoder: QueryEncoder,
        head: Head,
    ) -> None:
        super().__init__()
        self.embed, self.reader, self.query_encoder = embed, reader, query_encoder
        self.head = head

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """A score for each answer."""
        states, packed = self.reader(self.embed, stream)
        before = nn.functional.pad(states, (0, 0, 1, 0))  # the state is zero before the first item
        last = gather_rows(before, gather_rows(packed.read, query.position))  # [b, q, m]
        question = encode_questions(self.query_encoder, query)
        return self.head(torch.cat([last, question], dim=-1), query.candidates)


def encode_questions(encoder: QueryEncoder, query: QueryBatch) -> Float[Tensor, "b q m"]:
    """q of every question of every stream."""
    features: Tensor = encoder(query.tokens.flatten(0, 1), query.token_mask.flatten(0, 1))
    return features.unflatten(0, query.answer.shape)
