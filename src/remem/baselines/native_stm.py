"""STM as its authors ran it on bAbI: the two memories of `remem.baselines.stm` with the reader of the original.

H. Le, T. Tran and S. Venkatesh, "Self-Attentive Associative Memory", ICML 2020; the reader is that of the authors'
program for bAbI.

A sentence is the sum of its words' embeddings, each times a learned mask of its position, and so is a question, with
the same masks. The question is not written; it asks the relational memory three times over (see `AssociativeReader`).

Changed: every question of a story is answered in one pass over it, from the relational memory as it was at that moment;
the original reads the story anew for each. Z is trained: the original multiplies by a copy without gradient, so that it
stays at its random start. Padding is not written. Answers are one of those seen in training, not a word.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.baselines.stm import TwoMemories
from remem.baselines.stm_cell import STMState
from remem.data.batch import QueryBatch, StreamBatch
from remem.errors import BadInput
from remem.model.embed import ItemEmbedding
from remem.model.interface import Answers, embed_stream, gather_rows
from remem.ops.precision import at_least_float32

NUM_READS = 3


class Asked(NamedTuple):
    """What a question looks for; none of it depends on the memory."""

    entity: Float[Tensor, "b q e"]  # e
    roles: Float[Tensor, "h b q r"]  # r_1, r_2, r_3


class AssociativeReader(nn.Module):
    """Three steps through the relational memory, each from what the last one found.

    i_1 = LN(sum_n r_1n e^T M^r_n)     i_2 = LN(sum_n r_2n i_1^T M^r_n)     i_3 = LN(sum_n r_3n i_2^T M^r_n)
    scores = (i_1 + i_2 + i_3) Z

    e, r_1, r_2 and r_3 come from the question by two tanh layers each, which start without a bias: a question is a
    small vector at first, and a bias would drown it. LayerNorm's epsilon is as small as the original's for the same
    reason.
    """

    def __init__(self, *, item_dim: int, hidden_dim: int, width: int, num_queries: int, num_answers: int) -> None:
        super().__init__()
        self.to_entity = _tanh_layers(item_dim, hidden_dim, width)
        self.to_roles = nn.ModuleList(_tanh_layers(item_dim, hidden_dim, num_queries) for _ in range(NUM_READS))
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-12) for _ in range(NUM_READS))
        self.out = nn.Linear(width, num_answers, bias=False)  # Z
        nn.init.xavier_uniform_(self.out.weight)

    def ask(self, question: Float[Tensor, "b q d"]) -> Asked:
        """e, r_1, r_2 and r_3 of every question."""
        roles = torch.stack([at_least_float32(to_role(question)) for to_role in self.to_roles])
        return Asked(at_least_float32(self.to_entity(question)), roles)

    def read(self, asked: Asked, relations: Float[Tensor, "b r e e"]) -> Float[Tensor, "b q e"]:
        """i_1 + i_2 + i_3 of every question, from one memory of each stream."""
        rows = relations.flatten(1, 2)  # [b, r e, e]
        found, steps = asked.entity, []
        for role, norm in zip(asked.roles, self.norms, strict=True):
            weights = (role[..., :, None] * found[..., None, :]).flatten(2)  # [b, q, r e]
            found = norm(weights @ rows)
            steps.append(found)
        return torch.stack(steps).sum(dim=0)

    def forward(self, found: Float[Tensor, "b q e"]) -> Float[Tensor, "b q c"]:
        """The scores of what was found."""
        return self.out(found)


class NativeSTM(nn.Module):
    """T(X, Q) by `TwoMemories` and the reader of the original.

    A relational memory is too large to keep one for each segment, or even for each question: what stays of a moment is
    what every question would find then, and a question takes what it found at its own.
    """

    def __init__(self, *, embed: ItemEmbedding, memory: TwoMemories, reader: AssociativeReader) -> None:
        super().__init__()
        self.embed, self.memory, self.reader = embed, memory, reader

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """A score for each answer class."""
        return self._answer(stream, query).scores

    def answer_and_losses(self, stream: StreamBatch, query: QueryBatch) -> Answers:
        """The scores and figures of the memory; there is no loss but the answer's."""
        return self._answer(stream, query)

    def compile_parts(self, backend: str) -> None:
        """The step of one segment, which a stream repeats."""
        self.memory.compile_parts(backend)

    def _answer(self, stream: StreamBatch, query: QueryBatch) -> Answers:
        shape, most = query.position.shape, len(self.memory.position)
        if query.tokens.shape[-1] > most:
            raise BadInput(
                f"A question of {query.tokens.shape[-1]} words was given to a model that knows {most} places, those of "
                "a sentence; ask in fewer words or build it with a larger segment_len."
            )
        vectors = self.memory.vector(self.embed(query.tokens.flatten(0, 1)), query.token_mask.flatten(0, 1))
        asked = self.reader.ask(vectors.unflatten(0, shape))

        def look(state: STMState) -> Tensor:
            return self.reader.read(asked, state.relations)

        embedded = embed_stream(self.embed, stream)
        passage = self.memory.along(self.memory.initial_state(len(stream.order)), embedded, look)
        # [b, t+1, q, e] -> each question's own row of moments -> the moment it was asked
        moments = passage.seen.transpose(1, 2).flatten(0, 1)
        found = gather_rows(moments, query.position.flatten()[:, None]).squeeze(1).unflatten(0, shape)
        return Answers(self.reader(found), {}, passage.figures)


def _tanh_layers(input_dim: int, hidden_dim: int, output_dim: int) -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(input_dim, hidden_dim), nn.Tanh(), nn.Linear(hidden_dim, output_dim), nn.Tanh())
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return layers
