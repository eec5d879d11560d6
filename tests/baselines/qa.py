"""Small streams of words and of vectors, with questions and candidates, for the tests of text and video QA."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from remem.build import build_model
from remem.data.batch import Candidates, QueryBatch, StreamBatch
from remem.data.codec import FrameCodec, PassageCodec
from remem.settings.baselines import BaselineSettings
from remem.settings.model import ModelSettings, without_rehearsal
from remem.training.objective import reason_loss

WIDTH, ANSWERS = 5, 3  # of a frame's vector, and classes
NAMES = [str(i) for i in range(30)]
PASSAGE = PassageCodec(segment_len=6, words=NAMES)
FRAMES = FrameCodec(segment_len=6, width=WIDTH, words=NAMES, answers=[str(i) for i in range(ANSWERS)])
PLAIN = without_rehearsal(ModelSettings(item_dim=8, model_dim=6))
Stream = Sequence[Sequence[Any]]  # segments of items
Vector = list[float]


def make(machine: BaselineSettings, codec: PassageCodec | FrameCodec, plain: ModelSettings = PLAIN) -> Any:
    """A method at a tiny width, whose parameters are all different from zero."""
    torch.manual_seed(0)
    model = build_model(replace(plain, machine=machine), codec)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return model.eval()


def sized(width: int) -> ModelSettings:
    """Settings of one width throughout."""
    return replace(PLAIN, item_dim=width, model_dim=width)


def streams(*rows: Stream, segments: int = 0, items: int = 0) -> StreamBatch:
    """Streams of segments of numbers or vectors, padded to the longest, or further; padding is not zero."""
    t = max(segments, *map(len, rows))
    n = max(items, *(len(segment) for row in rows for segment in row))
    example = torch.tensor(next(segment for row in rows for segment in row)[0])
    values = torch.full((len(rows), t, n, *example.shape), 7, dtype=example.dtype)
    mask = torch.zeros(len(rows), t, n, dtype=torch.bool)
    for i, row in enumerate(rows):
        for j, segment in enumerate(row):
            values[i, j, : len(segment)], mask[i, j, : len(segment)] = torch.tensor(segment), True
    order = torch.arange(len(rows) * t).view(len(rows), t)
    return StreamBatch(values.flatten(0, 1), mask.flatten(0, 1), order, mask.any(dim=-1))


def questions(
    asked: Sequence[Sequence[tuple[list[int], int]]],
    candidates: Sequence[list[list[int]]] | None = None,
    *,
    words: int = 0,
    answers: Tensor | None = None,
) -> QueryBatch:
    """For each stream the words of its questions and how many segments came before each."""
    tokens, token_mask = pad3([[question for question, _ in row] for row in asked], words)
    mask = token_mask.any(dim=-1)
    position = torch.tensor([[at for _, at in row] + [0] * (mask.shape[1] - len(row)) for row in asked])
    zeros = torch.zeros_like(position)
    token_mask[..., 0] = True
    given = None if candidates is None else Candidates(*pad3(candidates, words))
    return QueryBatch(
        tokens, token_mask, position, zeros if answers is None else answers, mask, zeros, zeros, candidates=given
    )


def pad3(rows: Sequence[Sequence[list[int]]], width: int = 0) -> tuple[Tensor, Tensor]:
    """Texts of several rows as [rows, texts, words]."""
    width = max(width, *(len(text) for row in rows for text in row))
    values = torch.full((len(rows), max(map(len, rows)), width), 7)
    mask = torch.zeros(values.shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        for j, text in enumerate(row):
            values[i, j, : len(text)], mask[i, j, : len(text)] = torch.tensor(text), True
    return values, mask


def right(model: nn.Module, stream: StreamBatch, query: QueryBatch) -> float:
    """Share of right answers."""
    with torch.no_grad():
        return float((model(stream, query).argmax(dim=-1) == query.answer)[query.mask].float().mean())


def learn(
    model: nn.Module, draw: Callable[[], tuple[StreamBatch, QueryBatch]], *, steps: int, rate: float = 5e-3
) -> float:
    """Train on fresh batches; the share of right answers on one never met."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for _ in range(steps):
        stream, query = draw()
        loss = reason_loss(model(stream, query), query)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    return right(model.eval(), *draw())


# tasks that take a few hundred steps


def facts() -> tuple[StreamBatch, QueryBatch]:
    """Four pairs of a name (1-9) and what it has (10-19); asked for a name, all that was named are candidates."""
    rows, asked, choices, answers = [], [], [], []
    for _ in range(16):
        names, things = torch.randperm(9)[:4] + 1, torch.randperm(10)[:4] + 10
        rows.append([[int(name), int(thing)] for name, thing in zip(names, things, strict=True)])
        wanted = torch.randperm(4)[:2]
        asked.append([([int(names[i])], 4) for i in wanted])
        order = torch.randperm(4)
        choices.append([[0, int(things[i])] for i in order])
        answers.append([int((order == i).nonzero()) for i in wanted])
    return streams(*rows), questions(asked, choices, answers=torch.tensor(answers))._replace(after_all=True)


def last_seen() -> tuple[StreamBatch, QueryBatch]:
    """Videos of noise with one of three things in their frames, of one of two kinds; asked for the thing of a kind."""
    frames = 0.3 * torch.randn(24, 3, 4, WIDTH)
    things = torch.randint(ANSWERS, (24, 2))
    for kind in range(2):
        # a thing of the first kind is seen first: 1 for the kind, and 2 for which of them
        at = torch.arange(24), torch.full((24,), 2 * kind)
        frames[at] += (
            2 * torch.cat([torch.eye(2)[kind].expand(24, -1), torch.eye(ANSWERS)[things[:, kind]]], 1)[:, None]
        )
    asked = [[([1 + kind], 3) for kind in range(2)]] * 24
    return streams(*frames.tolist()), questions(asked, answers=things)._replace(after_all=True)


# plain arithmetic


def affine(linear: nn.Linear, vector: Sequence[float]) -> Vector:
    bias = [0.0] * linear.out_features if linear.bias is None else linear.bias.tolist()
    return [b + dot(row, vector) for row, b in zip(linear.weight.tolist(), bias, strict=True)]


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def add(left: Vector, right: Vector) -> Vector:
    return [a + b for a, b in zip(left, right, strict=True)]


def mean(rows: Sequence[Vector]) -> Vector:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def weighted(weights: Sequence[float], rows: Sequence[Vector]) -> Vector:
    return [dot(weights, column) for column in zip(*rows, strict=True)]


def softmax(scores: Sequence[float]) -> Vector:
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]
