"""Mixed precision: 16-bit matrix products, with slots, softmaxes and losses kept in float32 by the code itself."""

from __future__ import annotations

import torch


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """bf16 needs no loss scaling, so a context around the forward pass is all there is to it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
