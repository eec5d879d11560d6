"""Multi-Hop Reason (Appendix B): the hops of the reasoner over all states of a recurrent network, nothing compressed.

The strongest directly reasoning model of the paper's synthetic task. As with Directly Reason the network is a GRU of
one layer; the hops are those of Appendix A, which all memory-based methods use as well.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.baselines.directly_reason import StreamReader, encode_questions
from remem.data.batch import QueryBatch, StreamBatch
from remem.model.embed import Embedding, QueryEncoder
from remem.model.heads import Head
from remem.model.interface import gather_rows
from remem.model.reasoner import MultiHopReasoner


class MultiHopReason(nn.Module):
    """T(X, Q) by attention over every item read before the question."""

    def __init__(
        self,
        *,
        embed: Embedding,
        reader: StreamReader,
        query_encoder: QueryEncoder,
        reasoner: MultiHopReasoner,
        head: Head,
    ) -> None:
        super().__init__()
        self.embed, self.reader, self.query_encoder = embed, reader, query_encoder
        self.reasoner, self.head = reasoner, head

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """A score for each answer."""
        states, packed = self.reader(self.embed, stream)
        read = gather_rows(packed.read, query.position)  # [b, q]
        seen = torch.arange(states.shape[1], device=states.device) < read[..., None]  # [b, q, l]
        every = states[:, None].expand(-1, seen.shape[1], -1, -1)
        reason, _ = self.reasoner(every, encode_questions(self.query_encoder, query), seen)
        return self.head(reason, query.candidates)
