"""Where a run stands, on disk: weights, optimiser, random state and counters in one safetensors file.

Written whole or not at all, so after a kill the previous one is there, and a resumed run ends bit-equal on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from remem.bundle import load_tensors, load_weights, save_tensors, weights_of
from remem.errors import BadInput

# what each optimiser keeps of a weight
_KEPT = {"adam": ("step", "exp_avg", "exp_avg_sq"), "rmsprop": ("step", "square_avg", "momentum_buffer")}


@dataclass
class Progress:
    """Everything about a stage that is neither weight nor optimiser state."""

    step: int = 0
    best_score: float = float("-inf")
    best_step: int = 0
    stale: int = 0  # validations since the best one
    began: int = 0  # step at which the weights were drawn: a lead may begin anew
    tries: int = 1  # leads so far
    skipped: int = 0  # steps with a non-finite loss or gradient
    seconds: float = 0.0
    wall_seconds: float = 0.0  # of the whole run until here, over all processes it took
    made_on: dict[str, Any] = field(default_factory=dict)  # device, versions and peak memory of the last steps
    history: list[dict[str, Any]] = field(default_factory=list)


def save_checkpoint(
    path: Path,
    model: nn.Module,
    best: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    streams: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Write the whole state of a stage; `streams` is what is known of the training streams."""
    tensors = {f"model.{name}": value for name, value in weights_of(model).items()}
    tensors |= {f"best.{name}": value for name, value in best.items()}
    tensors |= {f"streams.{name}": value for name, value in streams.items()}
    kind = _kind(optimizer)
    for name, parameter in weights_of(model).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{kind}.{key}.{name}"] = torch.as_tensor(value)
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    info = asdict(progress)
    # JSON has no infinity
    info["best_score"] = None if progress.best_step == 0 else progress.best_score
    save_tensors(path, tensors, info)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Progress, dict[str, Tensor], dict[str, Tensor]]:
    """Put a stage back where it stood; returns its counters, its best weights, and what is known of the streams."""
    tensors, info = load_tensors(path, "step", "history", "best_score")
    if strange := sorted(info.keys() - {each.name for each in fields(Progress)}):
        raise BadInput(
            f"{path} says what this version of remem does not know ({strange[0]!r}); go on with a newer one."
        )
    if "random.cpu" not in tensors:
        raise BadInput(f"{path} holds no state of the random numbers, so that no run can go on from it; it is damaged.")
    kind = _kind(optimizer)
    for other in _KEPT.keys() - {kind}:
        if _under(f"{other}.", tensors):
            raise BadInput(f"{path} was written with {other}, but this run trains with {kind}; resume it as it began.")
    load_weights(model, _under("model.", tensors))
    kept = _under(f"{kind}.", tensors)
    for name, parameter in weights_of(model).items():
        state = {key: kept[f"{key}.{name}"] for key in _KEPT[kind] if f"{key}.{name}" in kept}
        if state:
            # a captured optimiser counts its steps on the device
            step_device = parameter.device if optimizer.defaults["capturable"] else torch.device("cpu")
            moved = {k: v.to(step_device if k == "step" else parameter.device) for k, v in state.items()}
            optimizer.state[parameter] = moved
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    if info["best_score"] is None:
        info["best_score"] = float("-inf")
    return Progress(**info), _under("best.", tensors), _under("streams.", tensors)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    return "rmsprop" if isinstance(optimizer, torch.optim.RMSprop) else "adam"


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
