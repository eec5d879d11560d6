"""Small STMs, streams for them, and a comparison: what the tests of STM share."""

from __future__ import annotations

import torch
from torch import Tensor

from remem.baselines.stm import STM
from remem.data.batch import Segment
from remem.model.interface import EmbeddedStream

D, K, N, E, R = 6, 3, 4, 5, 2


def assert_close(actual: Tensor, expected: object) -> None:
    target = expected if isinstance(expected, Tensor) else torch.tensor(expected)
    torch.testing.assert_close(actual, target.to(actual.dtype), rtol=1e-5, atol=1e-6)


def make_stm(*, learned: bool = False, bounded_after: int | None = 1000, width: int = E, num_queries: int = R) -> STM:
    """A small STM as on bAbI, or with all alphas learned; those that are learned stand where all terms count."""
    sizes = {"item_dim": D, "num_slots": K, "segment_len": N, "width": width, "num_queries": num_queries}
    alpha1, alpha3 = (None, None) if learned else (1.0, 0.0)
    stm = STM(**sizes, hidden_dim=7, alpha1=alpha1, alpha3=alpha3, bounded_after=bounded_after).eval()
    with torch.no_grad():
        for name, value in {"alpha1": 0.8, "alpha2": 0.6, "alpha3": -0.4}.items():
            alpha = getattr(stm.cell, name)
            if isinstance(alpha, Tensor):
                alpha.fill_(value)
        # at their first values it would not be seen if a gain or a bias were left out
        for parameter in (stm.position, stm.cell.qkv_norm.weight, stm.cell.qkv_norm.bias, stm.slot_norm.weight):
            parameter.add_(0.2 * torch.randn_like(parameter))
    return stm


def random_stream(b: int, t: int, *, ragged: bool = True) -> EmbeddedStream:
    """Random streams; in ragged ones segments have different lengths, and all but the first may end early."""
    lengths = torch.randint(1, N + 1, (b * t,)) if ragged else torch.full((b * t,), N)
    ends = torch.cat([torch.tensor([t]), torch.randint(1, t + 1, (b - 1,))]) if ragged else torch.full((b,), t)
    return EmbeddedStream(
        torch.randn(b * t, N, D),
        torch.arange(N) < lengths[:, None],
        torch.arange(b * t).view(b, t),
        torch.arange(t) < ends[:, None],
    )


def segment_at(stream: EmbeddedStream, t: int) -> Segment:
    rows = stream.order[:, t]
    return Segment(stream.items[rows], stream.item_mask[rows] & stream.segment_mask[:, t, None])


def memories(stm: STM, stream: EmbeddedStream) -> Tensor:
    return stm.write_stream(stm.initial_state(len(stream.order)), stream).memories
