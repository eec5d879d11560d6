"""Answer every question of a split and count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from remem.baselines.word_by_word import WordByWord
from remem.data.batch import QueryBatch
from remem.data.dataset import NO_STREAM, Split, evaluation_batches
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
    # a step that is compiled is compiled anew for a batch of another size
    for batch in evaluation_batches(split, batch_size, fill=bool(_compiled_steps(model))):
        with only_steps_compiled(model), autocast(batch.ids.device, precision):
            scores = model(batch.stream, batch.query)
        count(tally, batch.query, scores)
        done += int((batch.ids != NO_STREAM).sum())
        progress(done)
        if limit is not None and done >= limit:
            break
    model.train(was_training)
    return tally


@contextmanager
def only_steps_compiled(model: nn.Module) -> Iterator[None]:
    """Compiled parts are left aside, but for a step that is the same for every item.

    They were compiled for training; without gradients and in the shapes of another split each would be compiled anew,
    which takes longer than all evaluations of a run.
    """
    steps = _compiled_steps(model)
    with torch.compiler.set_stance("force_eager"):
        for each in steps:
            each.stance = "default"
        try:
            yield
        finally:
            for each in steps:
                each.stance = None


def _compiled_steps(model: nn.Module) -> list[WordByWord]:
    return [module for module in model.modules() if isinstance(module, WordByWord) and module.compiled]


def count(tally: Tally, query: QueryBatch, scores: Tensor) -> None:
    """Add the real questions of a batch to a tally; the age of evidence is the segments read since it began."""
    real, right = query.mask, credit(scores, query)
    age = query.position - 1 - query.evidence
    ages = [int(a) if e >= 0 else None for a, e in zip(age[real].tolist(), query.evidence[real].tolist(), strict=True)]
    clicks = None
    if query.asks_clicks(scores):
        clicks = list(zip(scores.squeeze(-1)[real].tolist(), query.answer[real].tolist(), strict=True))
    tally.add(query.part[real].tolist(), ages, right[real].tolist(), clicks)
