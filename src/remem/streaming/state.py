"""What is kept of a stream between two items: a value of bounded size, whatever the stream's length."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remem.bundle import load_tensors, save_tensors
from remem.errors import BadInput
from remem.model.interface import State


@dataclass(frozen=True)
class StreamState:
    """The memory of one stream: the method's state, fewer than N pending items, and counters.

    `fingerprint` names the weights that wrote it: a memory means nothing to other weights.
    """

    memory: State
    pending: tuple[Any, ...]  # numbers, or tuples of them where items are vectors
    items: int
    segments: int
    fingerprint: str

    def num_bytes(self) -> int:
        """Size of everything that is kept, in bytes: constant but for the pending items."""
        numbers = sum(len(item) if isinstance(item, tuple) else 1 for item in self.pending)
        return sum(t.numel() * t.element_size() for t in self.memory) + 8 * (numbers + 2)


def save_state(path: Path, state: StreamState) -> None:
    """Write a stream's state to one safetensors file."""
    tensors = dict(zip(_names(state.memory), state.memory, strict=True))
    info = {
        "pending": list(state.pending),
        "items": state.items,
        "segments": state.segments,
        "fingerprint": state.fingerprint,
    }
    save_tensors(path, tensors, info)


def load_state(path: Path, like: State, fingerprint: str) -> StreamState:
    """Read a state that `save_state` wrote; `like` is an empty state of the model that will go on with it."""
    tensors, info = load_tensors(path, "fingerprint", "pending", "items", "segments")
    if info["fingerprint"] != fingerprint:
        raise BadInput(
            f"The memory in {path} was written by the weights {info['fingerprint']}, not by {fingerprint}, "
            "which this model has; read the stream again with this model, or load the model that wrote it."
        )
    names = _names(like)
    if set(tensors) != set(names):
        raise BadInput(f"The memory in {path} does not have the parts of this model's memory: {', '.join(names)}.")
    values = [tensors[name] for name in names]
    if any(value.shape != torch.Size(part.shape) for value, part in zip(values, like, strict=True)):
        raise BadInput(f"The memory in {path} has other sizes than this model's memory.")
    pending = tuple(tuple(item) if isinstance(item, list) else item for item in info["pending"])
    return StreamState(type(like)(*values), pending, info["items"], info["segments"], fingerprint)


def _names(state: State) -> list[str]:
    return [f"memory.{name}" for name in state._fields]  # type: ignore[attr-defined]
