"""What the tests of click models share: tiny models of each method, histories and clicks."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from remem.baselines.click import ClickModel, History
from remem.build import build_model
from remem.data.batch import QueryBatch, StreamBatch
from remem.data.codec import ClickCodec
from remem.settings.baselines import CaserSettings, ClickSettings, DIENSettings, GRU4RecSettings, RUMSettings
from remem.settings.model import ModelSettings, without_rehearsal

CODEC = ClickCodec(segment_len=4, num_items=30)
DIM = 8
PLAIN = without_rehearsal(ModelSettings(item_dim=DIM, model_dim=6))
METHODS: dict[str, ClickSettings] = {
    "gru4rec": GRU4RecSettings(),
    "gru4rec, appended": GRU4RecSettings(appended=True, hidden_dim=5),
    "caser": CaserSettings(window=7),
    "rum": RUMSettings(),
    "rum, last three": RUMSettings(memory_items=3),
    "dien": DIENSettings(),
    "dien, wider": DIENSettings(hidden_dim=11),
}


def make(name: str) -> ClickModel:
    torch.manual_seed(0)
    return cast(ClickModel, build_model(replace(PLAIN, machine=METHODS[name]), CODEC)).eval()


def assert_close(actual: Tensor, expected: object) -> None:
    target = expected if isinstance(expected, Tensor) else torch.tensor(expected)
    torch.testing.assert_close(actual, target.to(actual.dtype), rtol=1e-4, atol=1e-5)


def streams(*rows: list[list[int]], width: int = 4) -> StreamBatch:
    """Streams of segments of at most four items."""
    longest = max(map(len, rows))
    items, mask = (
        torch.zeros(len(rows), longest, width, dtype=torch.long),
        torch.zeros(len(rows), longest, width).bool(),
    )
    for i, segments in enumerate(rows):
        for t, segment in enumerate(segments):
            items[i, t, : len(segment)], mask[i, t, : len(segment)] = torch.tensor(segment), True
    order = torch.arange(len(rows) * longest).view(len(rows), longest)
    return StreamBatch(items.flatten(0, 1), mask.flatten(0, 1), order, mask.any(dim=-1))


def clicks(*asked: list[tuple[int, int]], answers: list[list[int]] | None = None) -> QueryBatch:
    """Pairs of target and position for each stream."""
    tokens, position = (torch.tensor([[pair[part] for pair in row] for row in asked]) for part in (0, 1))
    ones = torch.ones_like(position, dtype=torch.bool)
    answer = torch.zeros_like(position) if answers is None else torch.tensor(answers)
    zeros = torch.zeros_like(position)
    return QueryBatch(tokens[..., None], ones[..., None], position, answer, ones, zeros, zeros)


def random_history(b: int, l: int, q: int) -> History:  # noqa: E741
    real = torch.arange(l) < torch.randint(l // 2, l + 1, (b, 1))
    seen = (torch.rand(b, q) * (real.sum(dim=1, keepdim=True) + 1)).long()
    return History(torch.randn(b, l, DIM), real, torch.randn(b, q, DIM), seen)
