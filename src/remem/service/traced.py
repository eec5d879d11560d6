"""A model's step as a recorded graph: run step by step, the interpreter would take as long as the arithmetic.

A graph is used only where it gives the same bits as the module on every example, so nobody can tell but by the time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

_RUNS = 3  # the graph's executor rewrites it after its first runs

Step = Callable[..., tuple[Tensor, ...]]


class _Recorded(nn.Module):
    """A graph needs a module; the weights are found through it."""

    def __init__(self, module: nn.Module, step: Step) -> None:
        super().__init__()
        self.module, self.step = module, step

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.step(*inputs))


@torch.no_grad()
def traced(module: nn.Module, step: Step, examples: Sequence[tuple[Tensor, ...]]) -> Step:
    """`step`, a function of tensors and of the module's weights, recorded on the first of these inputs.

    Returns `step` itself where it can't be recorded, or where the graph differs on any of the examples: they should be
    of every size that may come.
    """
    wanted = [tuple(step(*inputs)) for inputs in examples]
    # whatever stands against a graph does not stand against the step
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises compiling instead, which takes a compiler and minutes
        whole = torch.jit.trace(_Recorded(module, step).eval(), examples[0])
        # with its weights as constants it is faster, but a GRU then takes another path, and gives other last bits
        for graph in (torch.jit.freeze(whole), whole):
            if _same_bits(graph, examples, wanted):
                return graph
    return step


def _same_bits(graph: Step, examples: Sequence[tuple[Tensor, ...]], wanted: Sequence[tuple[Tensor, ...]]) -> bool:
    """Whether a graph gives what the module gave, each time it is run."""
    return all(
        all(map(torch.equal, graph(*inputs), want))
        for inputs, want in zip(examples, wanted, strict=True)
        for _ in range(_RUNS)
    )
