"""The two longest methods give the numbers they always gave: inputs by a formula, results written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from remem.baselines.compressive_transformer import CompressiveTransformer
from remem.baselines.stm import STM
from remem.model.interface import EmbeddedStream

METHODS: dict[str, tuple[Callable[[], Any], tuple[float, ...]]] = {
    "stm": (
        lambda: STM(item_dim=8, num_slots=3, segment_len=4, width=6, num_queries=2, hidden_dim=5),
        (36.8171, -1.08394, 0.0244176, 22.4397),
    ),
    "ct": (
        lambda: CompressiveTransformer(item_dim=8, num_slots=3, segment_len=4, num_layers=2, rate=2),
        (39.3359, -1.65381, 0.726807, 1404.48),
    ),
}


def waves(*shape: int, start: int) -> torch.Tensor:
    """Numbers that no random generator had a part in."""
    count = torch.Size(shape).numel()
    return 0.5 * torch.sin(0.7 * torch.arange(start, start + count, dtype=torch.float64)).float().view(shape)


@pytest.mark.parametrize("name", METHODS)
def test_the_numbers_of_a_method_stay_what_they_were(name: str) -> None:
    make, wanted = METHODS[name]
    memory = make().eval()
    with torch.no_grad():
        for number, (_, weight) in enumerate(sorted(memory.named_parameters())):
            weight.copy_(waves(*weight.shape, start=10 * number))
    items = waves(15, 4, 8, start=1).requires_grad_()
    mask = torch.arange(4) < torch.tensor([4, 3, 4, 1, 4]).repeat(3)[:, None]
    order = torch.arange(15).view(3, 5)
    trace = memory.write_stream(memory.initial_state(3), EmbeddedStream(items, mask, order, order != 9, in_turn=True))
    (trace.memories * waves(*trace.memories.shape, start=7)).sum().backward()
    weights = torch.cat(
        [weight.grad.flatten() for _, weight in sorted(memory.named_parameters()) if weight.grad is not None]
    )
    assert items.grad is not None
    memories = trace.memories.detach()
    found = (
        float(memories[:, -1].square().sum()), float(memories[:, 2, 1, 3].sum()),
        float(items.grad.square().sum()), float(weights.square().sum()),
    )  # fmt: skip
    assert found == pytest.approx(wanted, rel=1e-4)
