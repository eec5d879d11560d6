"""Answer every question of a split and count."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from remem.baselines.word_by_word import WordByWord
from remem.data.batch import QueryBatch
from remem.data.dataset import Split, evaluation_batches
from remem.tasks.base import Tally
from remem.tasks.metrics import credit
from remem.training.precision import autocast


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Split,
    *,
    batch_size: int,
    precision: str = "float32",
    limit: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Tally:
    """A model here is anything that gives scores for (stream, query).

    With a limit, batches are taken until they hold that many streams; `progress` hears how many are done.
    """
    was_training = model.training
    model.eval()
    tally, done = Tally(), 0
    for batch in evaluation_batches(split, batch_size):
        with compiled_where_it_pays(model), autocast(batch.ids.device, precision):
            scores = model(batch.stream, batch.query)
        count(tally, batch.query, scores)
        done += len(batch.ids)
        progress(done)
        if limit is not None and done >= limit:
            break
    model.train(was_training)
    return tally


def compiled_where_it_pays(model: nn.Module) -> AbstractContextManager[Any]:
    """Compiled parts are left aside, but for a step that is the same for every item.

    They were compiled for training; without gradients and in the shapes of another split each would be compiled anew,
    which takes longer than all evaluations of a run.
    """
    if any(isinstance(module, WordByWord) for module in model.modules()):
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def count(tally: Tally, query: QueryBatch, scores: Tensor) -> None:
    """Add the real questions of a batch to a tally; the age of evidence is the segments read since it began."""
    real, right = query.mask, credit(scores, query)
    age = query.position - 1 - query.evidence
    ages = [int(a) if e >= 0 else None for a, e in zip(age[real].tolist(), query.evidence[real].tolist(), strict=True)]
    clicks = None
    if query.asks_clicks(scores):
        clicks = list(zip(scores.squeeze(-1)[real].tolist(), query.answer[real].tolist(), strict=True))
    tally.add(query.part[real].tolist(), ages, right[real].tolist(), clicks)
