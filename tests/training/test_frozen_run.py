"""A tiny run whose losses are kept: a change that alters training without meaning to is seen here."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from remem.build import build_model, build_sampler
from remem.data.dataset import training_batches
from remem.ops.paths import reference_only
from remem.settings.run import Run
from remem.tasks.load import load_task
from remem.training.objective import make_objective
from remem.training.step import make_step

# float32, torch 2.11 to 2.13; whoever alters training on purpose writes new ones, and says so in CHANGELOG.md
LOSSES = [4.8343, 4.4363, 4.2528, 4.4373, 4.3493, 4.299, 4.215, 4.1618]


def losses(run: Run) -> list[float]:
    task = load_task(run.task)
    split = task.load("train")
    torch.manual_seed(0)
    model = build_model(run.model, task.codec)
    sampler = build_sampler(run.model, task.codec).eval().requires_grad_(False)
    step = make_step(model, make_objective(model, run.model.rehearsal, sampler), split, run.train)
    torch.manual_seed(1)
    found = []
    for batch in islice(training_batches(split, run.train.batch_size, 0, 0), 8):
        step(*batch, run.train.learning_rate)
        found.append(float(step.logs["loss"]))
    return found


@pytest.mark.parametrize("plain", [False, True])
def test_the_losses_of_a_tiny_run_are_those_that_were_kept(tiny_run: Run, plain: bool) -> None:
    if plain:
        with reference_only():
            found = losses(tiny_run)
    else:
        found = losses(tiny_run)
    assert found == pytest.approx(LOSSES, rel=1e-3), [round(loss, 4) for loss in found]
