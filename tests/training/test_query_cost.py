"""What one question costs: counted by hand for a memory, and growing with the history for what reads it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from remem.baselines.click import ClickModel
from remem.build import build_model
from remem.data.batch import QueryBatch
from remem.data.codec import ClickCodec
from remem.data.dataset import Bucket, Split
from remem.ops.paths import fast
from remem.settings.baselines import (
    BlindSettings,
    CaserSettings,
    DIENSettings,
    GRU4RecSettings,
    HPMNSettings,
    RUMSettings,
)
from remem.settings.model import ModelSettings, without_rehearsal
from remem.training.query_cost import TIMED_RUNS, _measure, _recurrent_flops, last_question, query_cost

N, DIM = 5, 8
CODEC = ClickCodec(segment_len=N, num_items=30)
SETTINGS = without_rehearsal(ModelSettings(item_dim=DIM, model_dim=6))


def make(machine: Any) -> Any:
    torch.manual_seed(0)
    return build_model(replace(SETTINGS, machine=machine), CODEC)


def split(segments: int) -> Split:
    """Two streams, the first half as long, each with three questions of which the last is padding."""
    items = torch.randint(30, (2 * segments, N))
    order = torch.arange(2 * segments).view(2, segments)
    real = torch.ones(2, segments, dtype=torch.bool)
    real[0, segments // 2 :] = False
    position = torch.tensor([[1, 1, 0], [segments - 1, segments, segments]])
    mask = torch.tensor([[True, True, False]] * 2)
    tokens = torch.tensor([[[1], [2], [0]], [[3], [4], [0]]])
    zeros = torch.zeros_like(position)
    query = QueryBatch(tokens, torch.ones_like(tokens, dtype=torch.bool), position, zeros, mask, zeros, zeros)
    bucket = Bucket(order, real, query, torch.arange(2))
    return Split(items, torch.ones(2 * segments, N, dtype=torch.bool), (bucket,), repeats=False)


def test_the_question_is_the_last_real_one_of_the_longest_stream() -> None:
    batch, items = last_question(split(6))
    assert items == 30
    assert batch.ids.tolist() == [1]
    assert batch.query.tokens.tolist() == [[[4]]]
    assert batch.query.position.tolist() == [[6]]


def test_products_are_counted_where_no_kernel_hides_them_and_timed_where_it_is_fast() -> None:
    ways, weight = [], torch.zeros(3, 4)

    def answer() -> torch.Tensor:
        ways.append(fast())
        return weight @ torch.zeros(4, 5)

    assert _measure(answer, 0, torch.device("cpu")).flops == 2 * 3 * 4 * 5
    assert ways == [False] + TIMED_RUNS * [True]


def test_a_memory_answers_at_one_price_whatever_was_read() -> None:
    model = make(HPMNSettings(num_slots=4, num_layers=2))
    short, long = (query_cost(model, split(segments)) for segments in (4, 40))
    k, d, m, hops = 4, DIM, 6, 2
    # the target's map; in each hop query and slots into the attention, its score, the weighted sum, the next query
    hop = 2 * m * m + k * 2 * d * m + k * 2 * m + 2 * k * d + 2 * (d + m) * m
    assert short.flops == long.flops == 2 * d * m + hops * hop + 2 * m
    assert short.reads == long.reads == k * d + 1
    assert long.milliseconds > 0


@pytest.mark.parametrize("machine", [GRU4RecSettings(), CaserSettings(), RUMSettings(), DIENSettings()])
def test_what_reads_everything_again_pays_for_every_item(machine: Any) -> None:
    model: ClickModel = make(machine).train()
    short, long = (query_cost(model, split(segments)) for segments in (4, 40))
    assert (short.reads, long.reads) == (20, 200)
    assert long.flops - short.flops >= 180 * 2 * 2 * DIM  # at the least a product of each item with the target, twice
    assert model.training  # as it was
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(("machine", "reads"), [(BlindSettings(), 0), (RUMSettings(memory_items=7), 7)])
def test_what_does_not_read_everything_is_not_said_to(machine: Any, reads: int) -> None:
    assert query_cost(make(machine), split(4)).reads == reads


def test_a_gru_is_counted_as_its_products() -> None:
    history = {n: query_cost(make(GRU4RecSettings()), split(n)).flops for n in (4, 5)}
    assert history[5] - history[4] == N * 2 * 3 * DIM * (DIM + DIM)
    shapes = [(3 * DIM, DIM), (3 * DIM, DIM), (3 * DIM,), (3 * DIM,)]
    assert _recurrent_flops((1, N, DIM), shapes, 4, None, (1, 1, DIM), out_val=()) == history[5] - history[4]
