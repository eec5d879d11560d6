"""The two things one does with a trained memory: write segments into it, and ask it. Both are pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
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


class Asked(NamedTuple):
    """A question, how many answers are wanted, and those to choose from where a model does."""

    question: Any
    top: int = 5
    candidates: Sequence[str] | None = None


def padded_segments(codec: Codec, segments: Sequence[Sequence[Any]]) -> tuple[Tensor, Bool[Tensor, "b n"]]:
    """Segments of at most N items, padded to N, so that all take one path, and which items are real."""
    first = segments[0][0]
    nothing = [0.0] * len(first) if isinstance(first, Sequence) else 0  # of a vector, or of a number
    length = codec.segment_len
    items = torch.tensor([[*segment, *[nothing] * (length - len(segment))] for segment in segments])
    mask = torch.tensor([[True] * len(segment) + [False] * (length - len(segment)) for segment in segments])
    return items, mask


@torch.no_grad()
def write_segments(model: MemoryModel, codec: Codec, memory: State, segments: Sequence[Sequence[Any]]) -> State:
    """The memories of some streams after a segment of each."""
    return detach_state(model.write(memory, *padded_segments(codec, segments)))


def answer_question(model: MemoryModel, codec: Codec, slots: Float[Tensor, "1 k d"], asked: Asked) -> Answer:
    """Answer from the slots alone; a model that chooses among candidates must be given some."""
    (answer,) = answer_questions(model.answer, codec, slots, [asked])
    return answer


@torch.no_grad()
def answer_questions(
    answer: Callable[..., tuple[Tensor, ...]], codec: Codec, slots: Float[Tensor, "b k d"], asked: Sequence[Asked]
) -> list[Answer]:
    """Answer each question from its row of slots.

    `answer` is the model's, or does the same. The questions have one length, and only a lone one has candidates.
    """
    tokens = torch.tensor([codec.encode_question(each.question) for each in asked])
    given = _candidates(codec, asked[0].candidates)
    scores, read_weights = answer(slots, tokens, torch.ones_like(tokens, dtype=torch.bool), *([given] if given else []))
    if codec.kind == "clicks":  # one logit stands for no and yes
        scores = torch.cat([torch.zeros_like(scores), scores], dim=-1)
    best = scores.softmax(dim=-1).topk(min(max(each.top for each in asked), scores.shape[-1]))
    rows = zip(asked, best.indices.tolist(), best.values.tolist(), read_weights.tolist(), strict=True)
    return [_answer(codec, each, found, chances, weights) for each, found, chances, weights in rows]


def _answer(codec: Codec, asked: Asked, found: list[int], chances: list[float], weights: list[list[float]]) -> Answer:
    names = [_decoded(codec, index, asked.candidates) for index in found[: asked.top]]
    ranked = list(zip(names, chances, strict=False))
    return Answer(*ranked[0], ranked, weights)


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
