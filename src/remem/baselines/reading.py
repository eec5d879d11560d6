"""What the directly reasoning methods share: all that a question may read, and a video as a few positions.

A question may come in the middle of a stream and must not see what follows it, so that a network which reads backwards,
or cuts a video into parts, has to read once for each question. Where all questions come last, as in both tasks of the
paper, one reading serves them all. Such readings are [b, v, ...] with v = q views of a stream, or a single one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.baselines.directly_reason import encode_questions
from remem.data.batch import QueryBatch, StreamBatch
from remem.model.embed import Embedding, QueryEncoder
from remem.model.heads import Head
from remem.model.interface import gather_rows
from remem.model.packing import pack


class Reading(NamedTuple):
    """The items of each stream one after another, and how much of that each view holds."""

    rows: Int[Tensor, "b l"]
    """Where the items stand in the flattened table of segments."""
    real: Bool[Tensor, "b v l"]


def read_stream(stream: StreamBatch, query: QueryBatch) -> Reading:
    """All that came before the questions: real items first, then padding."""
    packed = pack(stream.item_mask, stream.order, stream.segment_mask, stream.most_items)
    if query.after_all:
        return Reading(packed.rows, packed.real[:, None])
    read = gather_rows(packed.read, query.position)  # [b, q]
    return Reading(packed.rows, torch.arange(packed.rows.shape[1], device=read.device) < read[..., None])


def by_view(questions: Float[Tensor, "b q m"], views: int) -> Float[Tensor, "b v p m"]:
    """The questions that share a view: all of a stream's, or one each; `.flatten(1, 2)` undoes it."""
    return questions.unflatten(1, (views, -1))


def spread(items: Float[Tensor, "b l d"], real: Bool[Tensor, "b v l"], count: int) -> Float[Tensor, "b v c d"]:
    """What was read as `count` positions, evenly spread: each the mean of its share of the items.

    Of fewer items than positions some stand for several; of no item all positions are zero.
    """
    place, i = torch.arange(real.shape[2], device=real.device), torch.arange(count, device=real.device)
    length = real.sum(dim=2)[..., None]  # [b, v, 1]
    start = i * length // count
    end = torch.maximum(start + 1, (i + 1) * length // count).minimum(length)  # [b, v, c]
    share = (place >= start[..., None]) & (place < end[..., None])  # [b, v, c, l]
    return (share / (end - start).clamp(min=1)[..., None]).to(items.dtype) @ items[:, None]


class VideoReasoner(nn.Module, ABC):
    """The ends that the methods of video QA share. A method is the `reason` between them.

    The embedding, the encoder of questions and the last layer are those of every method of the task.
    """

    def __init__(
        self, *, embed: Embedding, query_encoder: QueryEncoder, head: Head, num_positions: int, dropout: float
    ) -> None:
        super().__init__()
        self.embed, self.query_encoder, self.head = embed, query_encoder, head
        self.num_positions = num_positions
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """A score for each answer."""
        rows, real = read_stream(stream, query)
        video = spread(self.embed(stream.items.flatten(0, 1)[rows]), real, self.num_positions)
        reason = self.reason(video, encode_questions(self.query_encoder, query))
        return self.head(self.dropout(reason), query.candidates)

    @abstractmethod
    def reason(self, video: Float[Tensor, "b v c d"], question: Float[Tensor, "b q m"]) -> Float[Tensor, "b q m"]:
        """What is to be classified, of the video's positions and the questions."""
