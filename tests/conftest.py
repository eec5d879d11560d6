"""What many tests share: a synthetic task and a run small enough to train in seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported, by whatever does it first

from remem.experiments.models import RM
from remem.settings.model import MachineSettings, ModelSettings, RehearsalSettings, rm_improvements, with_machine
from remem.settings.run import Run, TrainSettings
from remem.settings.tasks import SyntheticTask
from remem.training.run import Trainer

# the same examples every time, so that a run can be repeated; REMEM_SEED tries others
settings.register_profile("repeatable", derandomize=True, database=None)
if "REMEM_SEED" not in os.environ:
    settings.load_profile("repeatable")

CPU = torch.device("cpu")
TINY_TASK = SyntheticTask(
    num_groups=2,
    num_facts=12,
    stream_len=12,
    num_queries=2,
    num_answers=3,
    evidence_len=2,
    samples_per_chain=200,
    eval_samples_per_chain=20,
    segment_len=4,
)
TINY_MODEL = rm_improvements(
    ModelSettings(
        item_dim=32,
        model_dim=32,
        machine=MachineSettings(num_slots=4, encoder_layers=1),
        rehearsal=RehearsalSettings(num_fragments=2, decoder_layers=1),
    )
)
TINY_RUN = Run(
    method="rm",
    task=TINY_TASK,
    model=TINY_MODEL,
    train=TrainSettings(steps=12, batch_size=16, eval_every=4, checkpoint_every=4, log_every=4, learning_rate=3e-3),
    sampler_train=TrainSettings(steps=6, batch_size=32, eval_every=3, checkpoint_every=3),
)


@pytest.fixture
def tiny_run() -> Run:
    """A run of a dozen steps."""
    return TINY_RUN


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished tiny run, trained once."""
    folder = tmp_path_factory.mktemp("tiny") / "run"
    Trainer(TINY_RUN, folder, device=CPU, quiet=True).train()
    return folder


@pytest.fixture
def shrink() -> Callable[[ModelSettings], ModelSettings]:
    """Any method's model at a tiny width, with its own options."""
    small = {"num_slots": 4, "encoder_layers": 1, "num_layers": 2, "width": 6, "num_queries": 3, "hidden_dim": 8}

    def small_fields(machine: Any) -> dict[str, Any]:
        given = {field.name: getattr(machine, field.name) for field in fields(machine)}
        made = {name: value for name, value in small.items() if name in given}
        if "memory" in given:
            made["memory"] = small_memory(given["memory"])
        if "recent" in given:
            made["recent"] = min(given["recent"], 2)
        return made

    def small_memory(memory: Any) -> Any:
        """Of a method in its native form, whose slots and controller have widths of their own."""
        return replace(memory, **small_fields(memory), slot_dim=5, controller_dim=7)

    def shrunk(model: ModelSettings) -> ModelSettings:
        machine = with_machine(model, **small_fields(model.machine)).machine
        rehearsal = replace(model.rehearsal, decoder_layers=1)
        return replace(model, item_dim=16, model_dim=16, machine=machine, rehearsal=rehearsal)

    return shrunk


@pytest.fixture
def small_rm() -> ModelSettings:
    """`rm` with its own options at a tiny width."""
    return replace(with_machine(RM, num_slots=3, encoder_layers=1), item_dim=16, model_dim=16)
