"""The two things one does with a trained memory: write segments into it, and ask it. Both are pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from remem.data.batch import Candidates
from remem.data.codec import Codec
from remem.errors import BadInput
from remem.model.assembly import MemoryModel
from remem.model.interface import State, detach_state


class Answer(NamedTuple):
    """The likeliest answer with its probability, and the runners-up in order; True or False where a click was asked."""

    answer: Any
    probability: float
    top: list[tuple[Any, float]]
    read_weights: list[list[float]]
    """How much of each slot every hop looked at."""


@torch.no_grad()
def write_segments(model: MemoryModel, codec: Codec, memory: State, segments: Sequence[Sequence[Any]]) -> State:
    """The memories of some streams after a segment of each, of at most N items; padded to N, so all take one path."""
    rows = [torch.tensor(items) for items in segments]  # numbers [n], or vectors [n, e]
    ids = rows[0].new_zeros(len(rows), codec.segment_len, *rows[0].shape[1:])
    for padded, real in zip(ids, rows, strict=True):
        padded[: len(real)] = real
    lengths = torch.tensor([len(items) for items in segments])
    mask = torch.arange(codec.segment_len)[None] < lengths[:, None]
    return detach_state(model.write(memory, ids, mask))


@torch.no_grad()
def answer_question(
    model: MemoryModel,
    codec: Codec,
    slots: Float[Tensor, "1 k d"],
    question: Any,
    *,
    top: int = 5,
    candidates: Sequence[str] | None = None,
) -> Answer:
    """Answer from the slots alone; a model that chooses among candidates must be given some."""
    tokens = torch.tensor([codec.encode_question(question)])
    given = _candidates(codec, candidates)
    answered = model.answer(slots, tokens, torch.ones_like(tokens, dtype=torch.bool), given)
    scores = answered.scores[0]
    if codec.kind == "clicks":  # one logit stands for no and yes
        scores = torch.cat([torch.zeros_like(scores), scores])
    best = scores.softmax(dim=-1).topk(min(top, len(scores)))
    names = [_decoded(codec, index, candidates) for index in best.indices.tolist()]
    ranked = list(zip(names, best.values.tolist(), strict=True))
    return Answer(ranked[0][0], ranked[0][1], ranked, answered.read_weights[0].tolist())


def _candidates(codec: Codec, texts: Sequence[str] | None) -> Candidates | None:
    if codec.kind != "passage":
        if texts is not None:
            raise BadInput("This model has answers of its own; ask it without candidates.")
        return None
    if not texts:
        raise BadInput("This model chooses among candidate answers; give some with candidates=[...].")
    rows = [codec.encode_question(text) for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(1, len(rows), int(lengths.max()), dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[0, i, : len(row)] = torch.tensor(row)
    return Candidates(tokens, (torch.arange(tokens.shape[2]) < lengths[:, None])[None])


def _decoded(codec: Codec, index: int, candidates: Sequence[str] | None) -> Any:
    if codec.kind == "passage":
        return candidates[index] if candidates else None
    return bool(index) if codec.kind == "clicks" else codec.decode_answer(index)
