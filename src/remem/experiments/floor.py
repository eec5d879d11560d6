"""The least time a training step could take: its arithmetic and its bytes, at the rates this machine shows.

Arithmetic is every matrix product of the plain step, forward and backward. Bytes are what no fusion removes: what the
backward pass must find again is written once and read once, and Adam reads and writes weights, gradients and moments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from remem.ops.onednn import products_by_onednn


class Work(NamedTuple):
    """What a step has to do."""

    flops: float
    bytes: float


class Rates(NamedTuple):
    """What a machine can do in a second."""

    flops: float
    bytes: float

    def floor_ms(self, work: Work) -> float:
        """Arithmetic and traffic overlap, so the longer of the two counts."""
        return 1000 * max(work.flops / self.flops, work.bytes / self.bytes)


def count_work(loss: Callable[[], Tensor], parameters: list[Tensor]) -> Work:
    """Run one plain forward and backward pass and count."""
    kept: dict[tuple[int, int], int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())] = tensor.numel() * tensor.element_size()
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            total = loss()
        total.backward()
    weights = sum(p.numel() * p.element_size() for p in parameters)
    # weights are read forward and backward, the gradient is written and read, Adam reads and writes weights and moments
    return Work(counter.get_total_flops(), 2 * sum(kept.values()) + 10 * weights)


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """The best of a few large matrix products, and of a few large copies."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    with products_by_onednn(device):  # as a step takes them
        flops = 2 * size**3 / _best_seconds(lambda: a @ a, device)
    source = torch.empty(2**28 if device.type == "cuda" else 2**25, device=device)
    target = torch.empty_like(source)
    traffic = 2 * source.numel() * 4 / _best_seconds(lambda: target.copy_(source), device)
    return Rates(flops, traffic)


def _best_seconds(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best
