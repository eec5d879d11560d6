"""Adam and RMSprop from settings; either can be captured in a CUDA graph, and leave out a step on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from remem.errors import BadInput
from remem.ops.paths import fast
from remem.settings.run import TrainSettings


class GuardedRMSprop(torch.optim.RMSprop):
    """RMSprop that, like the fused Adam, leaves everything as it was where `found_inf` is one.

    A gradient of zeros is not enough for that: momentum would go on, and the mean square would fade. So weights and
    state are copied, the step is made, and the device itself chooses between before and after: nothing waits for it.
    """

    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update, or none."""
        if self.found_inf is None:
            super().step()
            return
        left_out = self.found_inf.bool()
        before = {key: tensor.clone() for key, tensor in self._tensors().items()}
        super().step()
        for key, after in self._tensors().items():
            # state that this very step has made starts at zero
            old = before.get(key)
            after.copy_(torch.where(left_out.to(after.device), torch.zeros_like(after) if old is None else old, after))

    def _tensors(self) -> dict[tuple[nn.Parameter, str], Tensor]:
        """Every weight that has a gradient, and all that is kept for it."""
        weights = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        kept = {(p, name): value for p in weights for name, value in self.state.get(p, {}).items()}
        return {**{(p, ""): p for p in weights}, **kept}


def make_optimizer(
    parameters: list[nn.Parameter], settings: TrainSettings, *, rate: Tensor | None = None
) -> torch.optim.Optimizer:
    """The optimiser of the settings; with the learning rate as a tensor on the device, one that can be captured."""
    captured = rate is not None
    learning_rate = settings.learning_rate if rate is None else rate
    if settings.optimizer == "adam":
        # the fused update goes over weights and moments once; on a CPU that is five times as fast
        on_cpu = all(p.device.type == "cpu" for p in parameters)
        options: dict[str, Any] = {"capturable": True, "fused": True} if captured else {"fused": on_cpu and fast()}
        return torch.optim.AdamW(
            _groups(parameters, settings),
            lr=learning_rate,
            betas=(0.9, settings.beta2),
            eps=settings.epsilon,
            **options,
        )
    if settings.weight_decay:
        raise BadInput("RMSprop has no decoupled weight decay here; give --train.weight-decay 0, or take adam.")
    return GuardedRMSprop(
        parameters,
        lr=learning_rate,
        alpha=settings.beta2,
        eps=settings.epsilon,
        momentum=settings.momentum,
        capturable=captured,
        foreach=True if captured else None,
    )


def _groups(parameters: list[nn.Parameter], settings: TrainSettings) -> list[dict[str, Any]]:
    """Matrices, which may decay, and everything else."""
    matrices = [p for p in parameters if p.ndim > 1]
    others = [p for p in parameters if p.ndim <= 1]
    decays = ((matrices, settings.weight_decay), (others, 0.0))
    return [{"params": group, "weight_decay": decay} for group, decay in decays if group]


def forget(optimizer: torch.optim.Optimizer) -> None:
    """Leave an optimiser as it was before its first update, in place: a captured step knows its tensors by address."""
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()
