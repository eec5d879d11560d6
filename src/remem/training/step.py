"""One training step, in two ways: eagerly, or as a captured CUDA graph without a word between host and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from remem.data.batch import Batch
from remem.data.dataset import Split
from remem.ops.onednn import products_by_onednn
from remem.settings.run import TrainSettings
from remem.training.objective import MISSED, Logs
from remem.training.optimizer import make_optimizer
from remem.training.precision import autocast, layers_in_bf16, rounded

Objective = Callable[[Batch], tuple[Tensor, Logs]]
WARM_UP_RUNS = 3  # capture needs lazily made buffers and handles to exist


class Step(Protocol):
    """Takes rows of a bucket, updates the weights, and keeps what the last step showed."""

    optimizer: torch.optim.Optimizer
    waits: bool  # whether asking how many updates were left out stops the device's work
    logs: Logs
    batch_ids: Tensor
    missed: Tensor  # how wrong each stream was when last trained on, from 0 to 1; empty where nobody asks

    def __call__(self, bucket: int, rows: Tensor, learning_rate: float) -> None:
        """One update; left out if the loss or the gradient is not finite."""
        ...

    def skipped(self) -> int:
        """Updates left out so far; reading it waits for the device."""
        ...

    def renew(self) -> None:
        """The objective has changed: what was kept of it no longer holds."""
        ...


class EagerStep:
    """The step as it is written; runs anywhere."""

    waits = False

    def __init__(self, model: nn.Module, objective: Objective, split: Split, settings: TrainSettings) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.layers = layers_in_bf16(model, settings.precision)
        self.optimizer = make_optimizer(self.parameters, settings)
        self.objective, self.split, self.settings = objective, split, settings
        self.logs: Logs = {}
        self.batch_ids = torch.empty(0)
        self.missed = no_misses(split, settings).to(self.parameters[0].device)
        self._skipped = 0

    def __call__(self, bucket: int, rows: Tensor, learning_rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        batch = self.split.batch(bucket, rows)
        self.optimizer.zero_grad(set_to_none=True)
        self.logs, finite = backward(self.objective, self.parameters, batch, self.settings, self.layers)
        note_missed(self.missed, self.split.places(bucket, rows), self.logs)
        if finite:
            self.optimizer.step()
        else:
            self._skipped += 1
            self.batch_ids = batch.ids

    def skipped(self) -> int:
        return self._skipped

    def renew(self) -> None:
        pass


class GraphedStep:
    """The whole step (gather, forward, backward, clip, update) captured once for each batch shape, then replayed."""

    waits = True

    def __init__(self, model: nn.Module, objective: Objective, split: Split, settings: TrainSettings) -> None:
        # at these lengths cuDNN's attention takes several times as long as the others
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.layers = layers_in_bf16(model, settings.precision)
        self.device = self.parameters[0].device
        self.rate = torch.tensor(settings.learning_rate, device=self.device)
        self.optimizer = make_optimizer(self.parameters, settings, rate=self.rate)
        self.objective, self.split, self.settings = objective, split, settings
        # Adam's fused kernel leaves everything as it is where this is one, and so does our RMSprop
        self.found_inf = torch.zeros((), device=self.device)
        self.optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]
        self.count = torch.zeros((), device=self.device)
        self.graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor, Logs]] = {}
        self.pool: Any = None
        self.logs: Logs = {}
        self.batch_ids = torch.empty(0)
        self.missed = no_misses(split, settings).to(self.device)

    def __call__(self, bucket: int, rows: Tensor, learning_rate: float) -> None:
        self.rate.fill_(learning_rate)
        key = (bucket, len(rows))
        if key not in self.graphs:
            self.graphs[key] = self._capture(bucket, rows)
        graph, static_rows, self.logs = self.graphs[key]
        static_rows.copy_(rows, non_blocking=True)
        graph.replay()
        self.batch_ids = static_rows

    def skipped(self) -> int:
        return int(self.count)

    def renew(self) -> None:
        torch.cuda.synchronize(self.device)  # none of them may be under way
        self.optimizer.zero_grad(set_to_none=True)  # these gradients lie in the pool
        self.graphs.clear()
        self.pool = None
        torch.cuda.empty_cache()  # other runs may share the device

    def _update(self, bucket: int, rows: Tensor) -> Logs:
        self.optimizer.zero_grad(set_to_none=True)  # so that the captured backward pass writes instead of adding
        batch = self.split.batch(bucket, rows)
        logs, finite = backward(self.objective, self.parameters, batch, self.settings, self.layers)
        note_missed(self.missed, self.split.places(bucket, rows), logs)
        self.found_inf.copy_(~finite)
        self.count += self.found_inf
        self.optimizer.step()
        return logs

    def _capture(self, bucket: int, rows: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Logs]:
        """Run the step a few times on a side stream and undo it, then record it."""
        static_rows = rows.to(self.device, copy=True)
        weights = [p.detach().clone() for p in self.parameters]
        state = [{k: v.clone() for k, v in self.optimizer.state[p].items()} for p in self.parameters]
        random, count, missed = torch.cuda.get_rng_state(), self.count.clone(), self.missed.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # shapes after the first find compiled code, and need no more than buffers of their own
            for _ in range(1 if self.graphs else WARM_UP_RUNS):
                self._update(bucket, static_rows)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            logs = self._update(bucket, static_rows)
        self.pool = self.pool or graph.pool()
        with torch.no_grad():
            for parameter, weight, kept in zip(self.parameters, weights, state, strict=True):
                parameter.copy_(weight)
                for name, value in self.optimizer.state[parameter].items():
                    value.copy_(kept[name]) if name in kept else value.zero_()
        self.count.copy_(count)
        self.missed.copy_(missed)
        torch.cuda.set_rng_state(random)
        return graph, static_rows, logs


def no_misses(split: Split, settings: TrainSettings) -> Tensor:
    """A number for each stream of a split, if any are to be noted."""
    return torch.zeros(len(split) if settings.focus_streams else 0)


def note_missed(missed: Tensor, places: Tensor, logs: Logs) -> None:
    """Half of what was known of each stream, and half of what this step saw: was one of its answers wrong?

    Taken out of the logs, whose other figures are about the whole batch.
    """
    seen = logs.pop(MISSED, None)
    if seen is not None and len(missed):
        places = places.to(missed.device)
        missed.index_copy_(0, places, (missed[places] + seen) / 2)


def backward(
    objective: Objective,
    parameters: list[nn.Parameter],
    batch: Batch,
    settings: TrainSettings,
    layers: Sequence[nn.Linear] = (),
) -> tuple[Logs, Tensor]:
    """Loss, gradients and clipping; and whether all of it is finite. The given layers are rounded to bf16 at once."""
    device = batch.ids.device
    with products_by_onednn(device):
        with autocast(device, settings.precision), rounded(layers):
            loss, logs = objective(batch)
        loss.backward()
    norm = nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
    return {**logs, "gradient_norm": norm.detach()}, torch.isfinite(loss.detach()) & torch.isfinite(norm)


def make_step(model: nn.Module, objective: Objective, split: Split, settings: TrainSettings) -> Step:
    """The captured step where the settings ask for it and a GPU is there, the eager one otherwise."""
    graphed = settings.capture and next(model.parameters()).is_cuda
    return (GraphedStep if graphed else EagerStep)(model, objective, split, settings)
