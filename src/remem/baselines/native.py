"""DNC, NUTM and DMSDNC as their authors ran them on bAbI: one model from the words to the answer.

The memories are those of `remem.baselines.dnc`, `nutm` and `dmsdnc` (which cite the papers); here they have their own
output layer in place of the reasoner that all methods share. Story and questions are one sequence of words, read and
written alike, and a question is answered at its last word from the controller and from what the heads read there:

    y = W_y [dropout(h); r^1 .. r^R]

So an answer may depend on the questions before it, as in the originals, and on nothing after it.

Changed: the originals answer word by word, at marks that follow the question, over all words; here an answer is one of
the answers seen in training, given at the question's last word. DMSDNC's output layer is one for answers and
reproduced words; here each has its own, as answers are no words.

DMSDNC weighs every answer by (chosen words) / (answers), so that answers and reproduced words have the same weight in
all, and takes the mean over all positions of the batch. With c words chosen among l that is

    (1 / l) (sum_chosen CE + (c / a) sum_answers CE) = (c / l) (mean_chosen CE + mean_answers CE)

We leave out c / l, a number for the whole batch that RMSprop divides out again: both means are added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.baselines.dmsdnc import DMSDNC
from remem.baselines.dnc import DNC
from remem.baselines.nutm import NUTM
from remem.data.batch import QueryBatch, StreamBatch
from remem.model.embed import ItemEmbedding
from remem.model.interface import Answers, gather_rows
from remem.model.packing import pack


class Words(NamedTuple):
    """Each stream with its questions as one sequence."""

    ids: Int[Tensor, "b l"]
    real: Bool[Tensor, "b l"]
    story: Bool[Tensor, "b l"]
    """Real words of the stream itself, not of a question."""
    read: Int[Tensor, "b q"]
    """Words read once a question has been read whole."""


def interleave(stream: StreamBatch, query: QueryBatch) -> Words:
    """Put every question right after the segments read before it; those of one moment keep their order.

    A question becomes one more segment of its stream. Shapes depend on shapes and `most_items` alone.
    """
    (b, t), (_, q, w) = stream.order.shape, query.tokens.shape
    width = max(stream.items.shape[1], w)
    ids = torch.cat([_widened(stream.items, width), _widened(query.tokens.flatten(0, 1), width)])
    mask = torch.cat([_widened(stream.item_mask, width), _widened(query.token_mask.flatten(0, 1), width)])
    device, first_question = stream.order.device, len(stream.items)
    rows = first_question + torch.arange(b * q, device=device).view(b, q)
    # segment i has the odd number 2 i + 1; a question asked after p segments fits before segment p
    odd = 2 * torch.arange(t, device=device).expand(b, t) + 1
    turn = torch.cat([odd, 2 * query.position], dim=1).argsort(dim=1, stable=True)  # [b, t+q]
    order = torch.cat([stream.order, rows], dim=1).gather(1, turn)
    present = torch.cat([stream.segment_mask, query.mask], dim=1).gather(1, turn)
    packed = pack(mask, order, present, None if stream.most_items is None else stream.most_items + q * w)
    place = turn.argsort(dim=1)[:, t:]  # of each question among all segments
    return Words(
        ids=ids.flatten()[packed.rows],
        real=packed.real,
        story=packed.real & (packed.rows < first_question * width),
        read=gather_rows(packed.read, place + 1),
    )


def _widened(table: Tensor, width: int) -> Tensor:
    return F.pad(table, (0, width - table.shape[1]))


class NativeWordModel(nn.Module):
    """T(X, Q) by a memory that reads the questions as well and answers by itself.

    Args:
        memory: only its cell, and what it says of the states, are used: the map from slots to the shared reasoner stays
            as it was made.
        bypass_dropout: on the controller's side of the output layer, so that the memory is worth reading.
    """

    def __init__(
        self,
        *,
        embed: ItemEmbedding,
        memory: DNC | NUTM | DMSDNC,
        num_answers: int,
        bypass_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.memory: DNC | NUTM | DMSDNC = memory
        self.dropout = nn.Dropout(bypass_dropout)
        first = memory.cell.initial_state(1)
        self.out = nn.Linear(first.hidden.shape[1] + first.reads.shape[1], num_answers)  # W_y

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """A score for each answer class."""
        words = interleave(stream, query)
        # of a state only this is kept: all the slots of all moments would be gigabytes
        return self._answer([(state.hidden, state.reads) for state in self._states(words)], words)

    def answer_and_losses(self, stream: StreamBatch, query: QueryBatch) -> Answers:
        """The scores; and, while training, the method's own losses and figures, over the words of the story alone."""
        words = interleave(stream, query)
        states = list(self._states(words))
        scores = self._answer([(state.hidden, state.reads) for state in states], words)
        if not self.training:
            return Answers(scores, {}, {})
        figures, losses = self.memory.observe(states[1:], words.story.T.contiguous(), words.ids.T.contiguous())
        return Answers(scores, losses, figures)

    def compile_parts(self, backend: str) -> None:
        """The step, which is the same graph for every word."""
        self.memory.compile_parts(backend)

    def _states(self, words: Words) -> Iterator[Any]:
        """Before the first word and after every one."""
        cell = self.memory.cell
        # what a step does to its word alone is done once for the whole vocabulary
        table = cell.project(self.embed.table.weight)
        ids, real = words.ids.T, words.real.T
        inputs = table.index_select(0, ids.flatten()).unflatten(0, ids.shape)  # [l, b, g]
        state = cell.initial_state(len(words.ids))
        yield state
        for word, there in zip(inputs.unbind(), real.unbind(), strict=True):
            state = cell(state, word, there)
            yield state

    def _answer(self, seen: list[tuple[Tensor, Tensor]], words: Words) -> Float[Tensor, "b q c"]:
        """From the controller and the reads of every moment, of which each question has one."""
        hidden, reads = (gather_rows(torch.stack(moments, dim=1), words.read) for moments in zip(*seen, strict=True))
        return self.out(torch.cat([self.dropout(self.memory.cell.features(hidden)), reads], dim=-1))
