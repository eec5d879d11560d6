"""The two things one does with a trained memory: write segments into it, and ask it. Both are pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from remem.data.codec import Codec
from remem.model.assembly import MemoryModel
from remem.model.interface import State, detach_state


class Answer(NamedTuple):
    """The likeliest answer with its probability, and the runners-up in order."""

    answer: Any
    probability: float
    top: list[tuple[Any, float]]
    read_weights: list[list[float]]
    """How much of each slot every hop looked at."""


@torch.no_grad()
def write_segments(model: MemoryModel, codec: Codec, memory: State, segments: Sequence[Sequence[int]]) -> State:
    """The memories of some streams after a segment of each, of at most N items; padded to N, so all take one path."""
    ids = torch.zeros(len(segments), codec.segment_len, dtype=torch.long)
    for row, items in enumerate(segments):
        ids[row, : len(items)] = torch.tensor(items)
    lengths = torch.tensor([len(items) for items in segments])
    mask = torch.arange(codec.segment_len)[None] < lengths[:, None]
    return detach_state(model.write(memory, ids, mask))


@torch.no_grad()
def answer_question(
    model: MemoryModel, codec: Codec, slots: Float[Tensor, "1 k d"], question: Any, *, top: int = 5
) -> Answer:
    """Answer from the slots alone."""
    tokens = torch.tensor([codec.encode_question(question)])
    answered = model.answer(slots, tokens, torch.ones_like(tokens, dtype=torch.bool))
    best = answered.scores[0].softmax(dim=-1).topk(min(top, codec.num_answers))
    ranked = [(codec.decode_answer(i), p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return Answer(ranked[0][0], ranked[0][1], ranked, answered.read_weights[0].tolist())
