"""Mixed precision: 16-bit matrix products, with slots, softmaxes and losses kept in float32 by the code itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from remem.model.reasoner import MultiHopReasoner
from remem.model.transformer import DecoderLayer, EncoderLayer


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """bf16 needs no loss scaling, so a context around the forward pass is all there is to it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


class _InBf16(torch.autograd.Function):
    """Many tensors rounded by one kernel, and their gradients widened by another."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return _converted(weights, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        wide = iter(_converted([grad for grad in grads if grad is not None], torch.float32))
        return tuple(None if grad is None else next(wide) for grad in grads)


def _converted(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)


def layers_in_bf16(model: nn.Module, precision: str) -> list[nn.Linear]:
    """The layers whose weights autocast would round one by one, on a GPU: those of Transformers and of the reasoner.

    A layer whose weights are also read as they are, as the writer's, is not among them.
    """
    if precision != "bf16" or not next(model.parameters()).is_cuda:
        return []
    return linear_layers(model)


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """Every linear layer of an encoder, a decoder or a reasoner, once."""
    parts = [part for part in model.modules() if isinstance(part, EncoderLayer | DecoderLayer | MultiHopReasoner)]
    return list(dict.fromkeys(layer for part in parts for layer in part.modules() if isinstance(layer, nn.Linear)))


@contextmanager
def rounded(layers: Sequence[nn.Linear]) -> Iterator[None]:
    """Inside, the layers have their weights in bf16, all rounded at once; gradients still reach the weights themselves.

    The products are those of autocast, to the bit. As there, gradients of a weight that is used twice add up in bf16.
    """
    places = [(layer._parameters, name, weight) for layer in layers for name, weight in layer.named_parameters()]
    copies = _InBf16.apply(*(weight for _, _, weight in places)) if places else ()  # type: ignore[no-untyped-call]
    try:
        for (parameters, name, _), copy in zip(places, copies, strict=True):
            parameters[name] = copy
        yield
    finally:
        for parameters, name, weight in places:
            parameters[name] = weight
