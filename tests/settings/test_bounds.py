"""Numbers out of their range are refused by name, in any part of a run; those of every preset are within it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remem.errors import BadInput
from remem.experiments.ablations import ABLATIONS
from remem.experiments.presets import PRESETS
from remem.experiments.variation import with_field
from remem.settings.bounds import refuse_nonsense
from remem.settings.model import MachineSettings, ModelSettings
from remem.settings.run import Run, TrainSettings

NAN, INF = float("nan"), float("inf")


def complaint(run: Run) -> str:
    """Nothing where all is well."""
    try:
        refuse_nonsense(run)
    except BadInput as refused:
        return str(refused)
    return ""


def test_every_preset_is_within_bounds() -> None:
    runs = [*PRESETS.values(), *(run for each in ABLATIONS.values() for run in each.runs().values())]
    assert {complaint(run) for run in runs} == {""}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("train.eval_every", 0, "at least 1"),
        ("train.log_every", 0, "at least 1"),
        ("sampler_train.checkpoint_every", 0, "at least 1"),
        ("train.batch_size", 0, "at least 1"),
        ("train.steps", -5, "at least 0"),
        ("train.warmup_steps", -3, "at least 0"),
        ("train.learning_rate", NAN, "a number from 0 up"),
        ("train.learning_rate", INF, "a number from 0 up"),
        ("train.clip_norm", 0.0, "a number above 0"),
        ("train.weight_decay", NAN, "a number from 0 up"),
        ("train.focus", -1.0, "a number from 0 up"),
        ("train.beta2", 1.0, "a share from 0 to 1, but not 1"),
        ("model.item_dim", 0, "at least 1"),
        ("model.machine.num_slots", 0, "at least 1"),
        ("model.machine.dropout", 1.0, "a share from 0 to 1, but not 1"),
        ("model.machine.aligned_gain", NAN, "a finite number"),
        ("model.embedding.item_std", -1.0, "a number from 0 up"),
        ("model.rehearsal.decoder_layers", 0, "at least 1"),
        ("model.rehearsal.num_fragments", 0, "at least 1"),
        ("model.rehearsal.mask_ratio", 1.5, "a share from 0 to 1"),
        ("task.num_answers", 0, "at least 1"),
        ("seed", 10**20, "a whole number below 2^63"),
    ],
)
def test_a_number_out_of_its_range_is_named(name: str, value: Any, expected: str) -> None:
    flag = name.replace("_", "-")
    assert complaint(with_field(Run(), name, value)) == f"--{flag} is {value}; expected {expected}."


@pytest.mark.parametrize(("name", "value"), [("train.steps", 0), ("train.clip_norm", INF), ("seed", -1)])
def test_what_can_be_is_let_through(name: str, value: Any) -> None:
    assert complaint(with_field(Run(), name, value)) == ""


@pytest.mark.parametrize("name", ["dropout", "aligned_gain"])
def test_a_whole_number_will_do_where_a_fraction_could_stand(name: str) -> None:
    machine = replace(MachineSettings(), **{name: 0})
    run = Run(model=ModelSettings(machine=machine), train=TrainSettings(weight_decay=0, max_seconds=0))
    assert complaint(run) == ""
