"""A run that differs from its preset is named by what differs, so that no altered run hides in a preset's row."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from remem.experiments.presets import PRESETS, find_preset
from remem.experiments.variation import leaves, name_variation
from remem.settings.run import Run
from remem.settings.tasks import BabiTask, SyntheticTask

PRESET = PRESETS["synthetic/rm"]


@pytest.mark.parametrize("name", PRESETS)
def test_an_unchanged_preset_keeps_its_name(name: str) -> None:
    assert name_variation(find_preset(name), find_preset(name)) == find_preset(name)


def test_changed_fields_are_named_with_their_values() -> None:
    run = replace(PRESET, model=replace(PRESET.model, machine=replace(PRESET.model.machine, num_slots=10)))
    assert name_variation(PRESET, run).method == "rm[model.machine.num_slots=10]"
    run = replace(run, train=replace(run.train, steps=5, learning_rate=0.01))
    named = name_variation(PRESET, run)
    assert named.method == "rm[model.machine.num_slots=10,train.steps=5,train.learning_rate=0.01]"
    # nothing but the name is touched
    assert replace(named, method="rm") == run


def test_a_list_is_named_whole() -> None:
    preset = PRESETS["babi/rm"]
    assert isinstance(preset.task, BabiTask)
    run = replace(preset, task=replace(preset.task, tasks=(1, 6)))
    assert name_variation(preset, run).method == "rm[task.tasks=[1,6]]"


def test_neutral_fields_are_not_named() -> None:
    preset = PRESETS["babi/rm"]
    assert isinstance(preset.task, BabiTask)
    run = replace(
        preset,
        seed=7,
        task=replace(preset.task, data=Path("elsewhere")),
        model=replace(preset.model, rehearsal=replace(preset.model.rehearsal, sampler_from=Path("sampler"))),
        train=replace(preset.train, precision="bf16", capture=False, log_every=1, checkpoint_every=9),
        sampler_train=replace(preset.sampler_train, compile=True, log_every=2),
    )
    assert name_variation(preset, run) == run


def test_a_field_of_both_stages_is_named_with_its_stage() -> None:
    run = replace(PRESET, sampler_train=replace(PRESET.sampler_train, steps=1))
    assert name_variation(PRESET, run).method == "rm[sampler_train.steps=1]"


def test_many_changes_are_counted_and_told_apart_by_a_hash() -> None:
    machine = replace(PRESET.model.machine, num_slots=10, encoder_layers=1, num_heads=2, dropout=0.25)
    names = []
    for steps in (100, 200, 100):
        run = replace(PRESET, train=replace(PRESET.train, steps=steps), model=replace(PRESET.model, machine=machine))
        names.append(name_variation(PRESET, run).method)
    assert all(re.fullmatch(r"rm\[5 changes [0-9a-f]{8}\]", name) for name in names)
    assert names[0] == names[2] != names[1]


def test_another_task_never_keeps_the_name() -> None:
    named = name_variation(PRESET, replace(PRESET, task=BabiTask())).method
    assert named.startswith("rm[")
    assert named != name_variation(PRESET, replace(PRESET, task=BabiTask(tasks=(1,)))).method


def test_a_run_with_a_name_of_its_own_keeps_it() -> None:
    run = replace(PRESET, method="own", seed=3, train=replace(PRESET.train, steps=1))
    assert name_variation(PRESET, run) == run


def test_leaves_are_all_fields_by_their_dotted_name() -> None:
    flat = leaves(Run(task=SyntheticTask(num_facts=40)))
    assert flat["seed"] == 0
    assert flat["task.num_facts"] == 40
    assert flat["model.rehearsal.sampler_from"] is None
    assert flat["sampler_train.batch_size"] == 1024
    assert not any(name.endswith("type") for name in flat)
    assert not any(isinstance(value, dict) for value in flat.values())
