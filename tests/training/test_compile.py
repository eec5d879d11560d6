"""Compiled parts, in a process of their own: torch.compile cannot look through the shape checks of the test run."""

from __future__ import annotations

import subprocess
import sys

CODE = """
from dataclasses import replace
import torch
from remem.experiments.presets import DEMO
from remem.build import build_model, build_sampler
from remem.tasks.load import load_task
from remem.training.objective import MemoryObjective

task = load_task(replace(DEMO.task, samples_per_chain=2))
batch = task.load("train").batch(0, torch.arange(6))
torch.manual_seed(0)
model = build_model(DEMO.model, task.codec)
teacher = build_sampler(DEMO.model, task.codec).eval().requires_grad_(False)
results = []
for compiled in (False, True):
    objective = MemoryObjective(model, DEMO.model.rehearsal, teacher)
    if compiled:
        objective.compile(backend="aot_eager")
    torch.manual_seed(4)
    model.zero_grad()
    total, logs = objective(batch)
    total.backward()
    results.append([*logs.values(), *(p.grad.clone() for p in model.parameters())])
for plain, fast in zip(*results, strict=True):
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
counters = torch._dynamo.utils.counters
assert counters["stats"]["unique_graphs"] >= 4, "nothing was compiled"
assert not counters["graph_break"], counters["graph_break"]
"""


def test_compiling_changes_no_loss_and_no_gradient() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


EVALUATION = """
from dataclasses import replace
import torch
from remem.experiments.presets import DEMO
from remem.build import build_model
from remem.settings.baselines import DNCSettings
from remem.settings.model import without_rehearsal
from remem.tasks.load import load_task
from remem.training.evaluate import evaluate
from remem.training.objective import make_objective

task = load_task(replace(DEMO.task, samples_per_chain=2, eval_samples_per_chain=3))
train, valid = task.load("train"), task.load("valid")
stats = torch._dynamo.utils.counters["stats"]
for machine, again in ((DEMO.model.machine, False), (DNCSettings(num_slots=4), True)):
    settings = replace(without_rehearsal(DEMO.model), machine=machine)
    torch.manual_seed(0)
    model = build_model(settings, task.codec)
    plain = [evaluate(model, split, batch_size=7) for split in (valid, train)]
    objective = make_objective(model, settings.rehearsal, None)
    objective.compile(backend="aot_eager")
    objective(train.batch(0, torch.arange(6)))[0].backward()
    before = stats["unique_graphs"]
    assert before, "nothing was compiled"
    assert [evaluate(model, split, batch_size=7) for split in (valid, train)] == plain
    # once, though the last batch of each split is smaller
    assert stats["unique_graphs"] - before == again, (machine, before, stats["unique_graphs"])
assert len(valid) % 7 and len(train) % 7
"""


def test_only_a_step_for_each_item_is_compiled_for_evaluation() -> None:
    done = subprocess.run([sys.executable, "-c", EVALUATION], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
