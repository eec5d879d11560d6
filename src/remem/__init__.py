"""remem: a fixed-size neural memory for endless streams.

It reads a stream once, keeps K slots, and answers any later question from those slots alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remem.bundle import Bundle, load_bundle, save_bundle
    from remem.client.aio import AsyncClient
    from remem.client.sync import Client
    from remem.errors import BadInput, RememError
    from remem.experiments.presets import PRESETS
    from remem.model.assembly import MemoryModel
    from remem.model.interface import Memorizer
    from remem.service.engine import MemoryEngine
    from remem.settings.run import Run
    from remem.streaming.memory import StreamMemory
    from remem.training.run import Trainer

__all__ = [
    "PRESETS",
    "AsyncClient",
    "BadInput",
    "Bundle",
    "Client",
    "Memorizer",
    "MemoryEngine",
    "MemoryModel",
    "RememError",
    "Run",
    "StreamMemory",
    "Trainer",
    "load_bundle",
    "save_bundle",
]

# Looked up on first use, so that `import remem` and the command line's --help need not wait for torch.
_HOME = {
    "BadInput": "remem.errors",
    "RememError": "remem.errors",
    "PRESETS": "remem.experiments.presets",
    "MemoryModel": "remem.model.assembly",
    "Bundle": "remem.bundle",
    "load_bundle": "remem.bundle",
    "save_bundle": "remem.bundle",
    "Client": "remem.client.sync",
    "AsyncClient": "remem.client.aio",
    "Memorizer": "remem.model.interface",
    "MemoryEngine": "remem.service.engine",
    "Run": "remem.settings.run",
    "StreamMemory": "remem.streaming.memory",
    "Trainer": "remem.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'remem' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
