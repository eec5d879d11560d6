"""A whole model: embedding, any memory, reasoner and head, and what only training needs: the decoder that rehearses,
and the asker of a story's own questions."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.data.batch import Candidates, QueryBatch, Segment, StreamBatch
from remem.model.delta import ItemMatch
from remem.model.embed import Embedding, QueryEncoder
from remem.model.heads import Head
from remem.model.interface import Memorizer, State, Trace, embed_stream, gather_rows
from remem.model.matching import WordMatch
from remem.model.own_questions import Asker
from remem.model.reasoner import MultiHopReasoner
from remem.model.rehearsal import RehearsalDecoder

FOR_TRAINING = ("decoder.", "asker.")  # parts that no answer needs, by how the names of their weights begin


class Answered(NamedTuple):
    """Scores of every answer for each question, and where the reasoner looked."""

    scores: Float[Tensor, "*b c"]
    read_weights: Float[Tensor, "*b h k"]


class MemoryModel(nn.Module):
    """What is trained, saved and served. The decoder is None where nothing is rehearsed, the asker where a stream asks
    nothing by itself; answering needs neither."""

    def __init__(
        self,
        *,
        embed: Embedding,
        memorizer: nn.Module,
        query_encoder: QueryEncoder,
        reasoner: MultiHopReasoner,
        head: Head,
        decoder: RehearsalDecoder | None,
        match: WordMatch | ItemMatch | None = None,
        asker: Asker | None = None,
    ) -> None:
        super().__init__()
        self.embed, self.query_encoder = embed, query_encoder
        self.memorizer = memorizer
        self.reasoner, self.head, self.decoder = reasoner, head, decoder
        self.match, self.asker = match, asker

    @property
    def memory_method(self) -> Memorizer:
        """The memory itself: the rehearsal memory machine, or any other."""
        return cast(Memorizer, self.memorizer)

    def initial_state(self, batch_size: int) -> State:
        """The memory of streams of which nothing has been read."""
        return self.memory_method.initial_state(batch_size)

    def write(self, state: Any, items: Int[Tensor, "b n"] | Float[Tensor, "b n e"], mask: Bool[Tensor, "b n"]) -> State:
        """The memory after one more segment of each stream."""
        return self.memory_method.write(state, Segment(self.embed(items), mask))

    def memorize(self, stream: StreamBatch, state: Any = None) -> Trace:
        """The memory along whole streams."""
        memorizer = self.memory_method
        state = memorizer.initial_state(len(stream.order)) if state is None else state
        embedded = embed_stream(self.embed, stream)
        return memorizer.write_stream(state, embedded)

    def answer(
        self,
        memory: Float[Tensor, "b k d"],
        tokens: Int[Tensor, "b w"],
        token_mask: Bool[Tensor, "b w"],
        candidates: Candidates | None = None,
    ) -> Answered:
        """A = R(M, Q): the memory is all it sees of the stream."""
        reason, weights = self.reasoner(memory, self.query_encoder(tokens, token_mask))
        scores = self.head(reason[:, None], candidates)
        if self.match is not None:
            scores = scores + self.match(memory[:, None], tokens[:, None], token_mask[:, None], candidates)
        return Answered(scores.squeeze(1), weights)

    def answer_all(self, trace: Trace, query: QueryBatch) -> Answered:
        """Every question of every stream, from the memory as it was when the question was asked."""
        return self.answer_from(gather_rows(trace.memories, query.position), query)

    def answer_from(self, memory: Float[Tensor, "b q k d"], query: QueryBatch) -> Answered:
        """The same, from the memory that each question finds."""
        question = self.query_encoder(query.tokens.flatten(0, 1), query.token_mask.flatten(0, 1))
        found = self.reasoner(memory.flatten(0, 1), question)
        reason, weights = (value.unflatten(0, query.answer.shape) for value in found)
        scores = self.head(reason, query.candidates)
        if self.match is not None:
            scores = scores + self.match(memory, query.tokens, query.token_mask, query.candidates)
        return Answered(scores, weights)

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """Scores of every answer: what the harness asks of every method; zeros where there is no question.

        Without gradients the reasoner sees real questions alone: stories of one question stand beside some of twelve.
        In training it sees padding, too, as shapes must not depend on what is in a batch; and where streams have
        candidates, which are for all their questions.
        """
        trace, real = self.memorize(stream), query.mask
        if torch.is_grad_enabled() or query.candidates is not None or not real.any():
            return self.answer_all(trace, query).scores
        asked = query.each(lambda value: value[real][:, None])
        found = self.answer_from(gather_rows(trace.memories, query.position)[real][:, None], asked).scores
        scores = found.new_zeros(*real.shape, found.shape[-1])
        scores[real] = found.squeeze(1)
        return scores
