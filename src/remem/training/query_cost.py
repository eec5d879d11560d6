"""What one question costs once the stream has been read: from the memory, or by reading everything again.

The question is the last one of the longest stream of a split. A memory model answers it from the memory it has built by
then, so that neither reading nor writing counts; a model that reasons directly has to read the whole stream for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from remem.baselines.blind import Blind
from remem.baselines.click import ClickModel
from remem.baselines.rum import RUM
from remem.data.batch import Batch
from remem.data.dataset import Split
from remem.model.assembly import MemoryModel
from remem.model.interface import gather_rows
from remem.ops.paths import reference_only
from remem.training.precision import autocast

TIMED_RUNS = 5


class QueryCost(NamedTuple):
    """Of one question, asked alone."""

    flops: int
    """Additions and multiplications of all matrix products; not of element-wise operations."""
    milliseconds: float
    """Median time, without compilation."""
    reads: int
    """Numbers kept of the stream that are read again: those of the memory, or every item."""


@torch.no_grad()
def query_cost(model: nn.Module, split: Split, *, precision: str = "float32") -> QueryCost:
    """Count and time the answer to one question."""
    was_training = model.training
    # the counter follows modules by the gradients of what they are given, and stumbles over a parameter among it
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval().requires_grad_(False)
    batch, items = last_question(split)
    # a compiled part would hide its products from the count
    with torch.compiler.set_stance("force_eager"), autocast(batch.ids.device, precision):
        if isinstance(model, MemoryModel):
            trace = model.memorize(batch.stream)
            reads = sum(part[0].numel() for part in trace.state)
            cost = _measure(lambda: model.answer_all(trace, batch.query).scores, reads, batch.ids.device)
        else:
            cost = _measure(lambda: model(batch.stream, batch.query), _items_read(model, items), batch.ids.device)
    model.train(was_training)
    for parameter in trained:
        parameter.requires_grad_()
    return cost


def _items_read(model: nn.Module, items: int) -> int:
    """A model that reasons directly reads everything, but for one that is blind, and one that keeps the last few."""
    if isinstance(model, Blind):
        return 0
    kept = model.reader.memory_items if isinstance(model, ClickModel) and isinstance(model.reader, RUM) else None
    return items if kept is None else min(kept, items)


def last_question(split: Split) -> tuple[Batch, int]:
    """The longest stream of a split by itself, with the last of its questions, and how many items it has."""
    most = split.most_items
    number = most.index(max(most))
    bucket = split.buckets[number]
    row = (split.lengths[bucket.order] * bucket.segment_mask).sum(dim=1).argmax()[None]
    batch = split.batch(number, row)
    index = batch.query.position.masked_fill(~batch.query.mask, -1).argmax(dim=1, keepdim=True)
    return batch._replace(query=batch.query.each(lambda value: gather_rows(value, index))), most[number]


def _measure(answer: Callable[[], Tensor], reads: int, device: torch.device) -> QueryCost:
    # on a GPU a whole GRU is one operation, which the counter does not know, and it knows none of our kernels
    mapping = {torch.ops.aten._cudnn_rnn: _recurrent_flops}
    with reference_only(), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        answer()
    times = []
    for _ in range(TIMED_RUNS):
        _wait(device)
        started = time.perf_counter()
        answer()
        _wait(device)
        times.append(1000 * (time.perf_counter() - started))
    return QueryCost(counter.get_total_flops(), round(statistics.median(times), 3), reads)


def _recurrent_flops(inputs: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Each matrix of weights is multiplied once for each item of each sequence; arguments are shapes."""
    first, second, _width = inputs
    return sum(2 * first * second * shape[0] * shape[1] for shape in weights if len(shape) == 2)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
