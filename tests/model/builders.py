"""Small models, streams and questions, and the equations one number at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from remem.build import build_machine, build_memory_model
from remem.data.batch import Batch, QueryBatch, StreamBatch
from remem.data.codec import IdCodec, TextCodec
from remem.model.assembly import MemoryModel
from remem.model.attention import AdditiveScore
from remem.model.interface import EmbeddedStream
from remem.model.machine import MemoryMachine
from remem.model.recurrent import BiGRU
from remem.settings.model import MachineSettings, ModelSettings, RehearsalSettings, rm_improvements

Vector = Sequence[float]
Ids = Sequence[Sequence[Sequence[int]]]

CODEC = IdCodec(segment_len=4, num_items=30, num_queries=5, num_answers=3)
TEXT_CODEC = TextCodec(segment_len=4, words=[f"word{i}" for i in range(12)], answers=["here", "there"])

PAPER = ModelSettings(
    item_dim=8,
    model_dim=6,
    machine=MachineSettings(num_slots=3, encoder_layers=1, num_heads=2),
    rehearsal=RehearsalSettings(num_fragments=4, decoder_layers=1, num_heads=2),
)
RM = rm_improvements(PAPER)


def assert_close(actual: Tensor, expected: object) -> None:
    """The one tolerance of all these tests."""
    target = expected if isinstance(expected, Tensor) else torch.tensor(expected)
    torch.testing.assert_close(actual, target.to(actual.dtype), rtol=1e-5, atol=1e-6)


def with_encoder(settings: ModelSettings, kind: Literal["transformer", "gru"]) -> ModelSettings:
    """The same settings with one encoder or the other."""
    return replace(settings, machine=replace(settings.machine, encoder=kind))


def make_machine(settings: ModelSettings = RM, segment_len: int = 4) -> MemoryMachine:
    """A memory machine that is not training."""
    return build_machine(settings, segment_len).eval()


def make_model(settings: ModelSettings = RM, codec: IdCodec | TextCodec = CODEC) -> MemoryModel:
    """A whole model that is not training."""
    return build_memory_model(settings, codec).eval()


def stream_of(streams: Ids, segment_len: int = 4, padding: int = 0) -> StreamBatch:
    """Streams written out as item ids, each segment in a row of its own."""
    longest = max(len(segments) for segments in streams)
    items = torch.full((len(streams), longest, segment_len), padding)
    item_mask = torch.zeros(items.shape, dtype=torch.bool)
    for i, segments in enumerate(streams):
        for t, segment in enumerate(segments):
            items[i, t, : len(segment)] = torch.tensor(segment)
            item_mask[i, t, : len(segment)] = True
    order = torch.arange(items.shape[0] * longest).view(-1, longest)
    return StreamBatch(items.flatten(0, 1), item_mask.flatten(0, 1), order, item_mask.any(dim=-1))


def random_stream(b: int, t: int, n: int = 4, *, num_items: int = CODEC.num_items, ragged: bool = True) -> StreamBatch:
    """Random streams; ragged ones have segments of different lengths, and all but the first may end early."""
    streams = []
    for i in range(b):
        count = t if i == 0 or not ragged else int(torch.randint(1, t + 1, ()))
        lengths = [int(torch.randint(1, n + 1, ())) if ragged else n for _ in range(count)]
        streams.append([torch.randint(num_items, (length,)).tolist() for length in lengths])
    return stream_of(streams, n)


def disjoint_stream(b: int, t: int, n: int, per_stream: int = 100) -> StreamBatch:
    """Streams in which no item occurs twice: those of stream i lie in [i * per_stream, (i + 1) * per_stream)."""
    return stream_of([[[i * per_stream + c * n + j for j in range(n)] for c in range(t)] for i in range(b)], n)


def embedded(stream: StreamBatch, table: Tensor) -> EmbeddedStream:
    """The stream with the table's rows in place of its ids."""
    return EmbeddedStream(table[stream.items], stream.item_mask, stream.order, stream.segment_mask)


def random_embedded(b: int, t: int, n: int, d: int, *, ragged: bool = True) -> EmbeddedStream:
    """Random streams of random vectors."""
    stream = random_stream(b, t, n, ragged=ragged)
    return EmbeddedStream(torch.randn(*stream.items.shape, d), *stream[1:])


def between(stream: EmbeddedStream, start: int, stop: int) -> EmbeddedStream:
    """Segments start to stop of every stream."""
    return stream._replace(order=stream.order[:, start:stop], segment_mask=stream.segment_mask[:, start:stop])


def take_streams(stream: EmbeddedStream, rows: Tensor) -> EmbeddedStream:
    """Some of the streams, in the given order."""
    return stream._replace(order=stream.order[rows], segment_mask=stream.segment_mask[rows])


def questions_at(
    positions: Sequence[Sequence[int]], *, num_queries: int = CODEC.num_queries, num_answers: int = CODEC.num_answers
) -> QueryBatch:
    """Random questions of one id each, asked at the given positions; -1 is padding."""
    position = torch.tensor(positions)
    mask = position >= 0
    return QueryBatch(
        tokens=torch.randint(num_queries, (*position.shape, 1)),
        token_mask=mask[..., None],
        position=position.clamp(min=0),
        answer=torch.randint(num_answers, position.shape),
        mask=mask,
        part=torch.zeros_like(position),
        evidence=torch.zeros_like(position),
    )


def batch_of(stream: StreamBatch, query: QueryBatch) -> Batch:
    """Streams and questions together."""
    return Batch(stream, query, torch.arange(len(stream.order)))


def as_torch_gru(gru: BiGRU) -> nn.GRU:
    """torch's own bi-directional GRU with the same weights."""
    twin = nn.GRU(gru.ahead.input_size, gru.ahead.hidden_size, batch_first=True, bidirectional=True)
    weights = dict(gru.ahead.named_parameters())
    weights |= {f"{name}_reverse": value for name, value in gru.back.named_parameters()}
    twin.load_state_dict(weights)
    return twin


def dot(left: Vector, right: Vector) -> float:
    """Inner product."""
    return sum(a * c for a, c in zip(left, right, strict=True))


def matvec(matrix: Sequence[Vector], vector: Vector) -> list[float]:
    """Matrix times vector."""
    return [dot(row, vector) for row in matrix]


def softmax(scores: Vector) -> list[float]:
    """exp(s_i) / sum_j exp(s_j)."""
    powers = [math.exp(s) for s in scores]
    return [p / sum(powers) for p in powers]


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + math.exp(-x))


def additive_score(attention: AdditiveScore, left: Vector, right: Vector, extra: Vector | None = None) -> float:
    """w^T tanh(W_1 a + W_2 c + b), and with `extra` one more vector inside the tanh."""
    from_left = matvec(attention.left.weight.tolist(), left)
    from_right = matvec(attention.right.weight.tolist(), right)
    bias, weight = attention.right.bias.tolist(), attention.score.weight[0].tolist()
    more = extra or [0.0] * len(bias)
    return sum(
        w * math.tanh(a + c + b + e) for w, a, c, b, e in zip(weight, from_left, from_right, bias, more, strict=True)
    )
