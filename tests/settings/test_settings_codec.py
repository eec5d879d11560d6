"""Settings to JSON and back: whole for every preset, and refused by name where they are wrong."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from remem.errors import BadInput
from remem.experiments.presets import DEMO, PRESETS
from remem.settings.codec import from_json, to_json
from remem.settings.model import MachineSettings, ModelSettings
from remem.settings.run import Run, TrainSettings
from remem.settings.tasks import BabiTask, SyntheticTask

RUNS = {**PRESETS, "demo": DEMO}


@pytest.mark.parametrize("name", RUNS)
def test_every_preset_passes_through_json_unchanged(name: str) -> None:
    run = RUNS[name]
    read = from_json(Run, json.loads(json.dumps(to_json(run))))
    assert read == run
    assert type(read.task) is type(run.task)
    # equal is not enough where a list could stand for a tuple or 1 for 1.0
    assert repr(read) == repr(run)


def test_values_far_from_the_defaults_pass_through_json_unchanged() -> None:
    run = Run(
        method="own",
        seed=-3,
        task=BabiTask(name="x", data=Path("some/folder"), tasks=(3,), segment_len=7),
        train=TrainSettings(learning_rate=1.5e-7, schedule="cosine", capture=False),
    )
    sampled = dataclasses.replace(run.model.rehearsal, sampler_from=Path("run"), num_distractors=8)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, rehearsal=sampled))
    assert from_json(Run, json.loads(json.dumps(to_json(run)))) == run


def test_json_holds_plain_values_and_class_names() -> None:
    value = to_json(Run(task=BabiTask(data=Path("a/b"), tasks=(1, 2))))
    assert value["type"] == "Run"
    assert value["task"] == {
        "type": "BabiTask",
        "name": "babi",
        "data": "a/b",
        "tasks": [1, 2],
        "segment_len": 15,
        "exchanges": 0,
        "questions": 0,
    }
    assert value["model"]["machine"]["type"] == "MachineSettings"


def changed(path: str, value: Any) -> dict[str, Any]:
    """The JSON of a run with one field set to something else."""
    whole: dict[str, Any] = to_json(Run())
    *parents, last = path.split(".")
    inner = whole
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("colour", 1, "Run has the unknown field 'colour'; Run has "),
        ("model.colour", 1, "Run.model has the unknown field 'colour'; ModelSettings has "),
        ("model.machine.slots", 9, "Run.model.machine has the unknown field 'slots'; MachineSettings has "),
        ("task.type", "VideoTask", "Run.task has the unknown type 'VideoTask'."),
        ("task.type", None, "Run.task has the unknown type None."),
        ("task", "synthetic", "Run.task is 'synthetic'; expected the fields of SyntheticTask."),
        ("model", 3, "Run.model is 3; expected the fields of ModelSettings."),
        ("model", None, "Run.model is None; expected the fields of ModelSettings."),
        ("model.machine.encoder", "lstm", "Run.model.machine.encoder is 'lstm'; expected one of 'transformer', 'gru'."),
        ("train.precision", None, "Run.train.precision is None; expected one of 'auto', 'float32', 'bf16'."),
        ("seed", "0", "Run.seed is '0'; expected a value of type int."),
        ("seed", 0.0, "Run.seed is 0.0; expected a value of type int."),
        ("seed", True, "Run.seed is True; expected a value of type int."),
        ("seed", None, "Run.seed is None; expected a value of type int."),
        ("method", 1, "Run.method is 1; expected a value of type str."),
        ("train.capture", 1, "Run.train.capture is 1; expected a value of type bool."),
        ("train.learning_rate", "fast", "Run.train.learning_rate is 'fast'; expected a value of type float."),
        ("train.learning_rate", True, "Run.train.learning_rate is True; expected a value of type float."),
        ("model.rehearsal.num_distractors", 1.5, "Run.model.rehearsal.num_distractors is 1.5; expected a value of"),
        (
            "model.rehearsal.num_distractors",
            {},
            "Run.model.rehearsal.num_distractors is {}; expected a value of type int.",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_its_full_name(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(BadInput) as refusal:
        from_json(Run, changed(path, value))
    assert str(refusal.value).startswith(sentence)


def test_a_tuple_names_the_entry_that_is_wrong() -> None:
    with pytest.raises(BadInput, match=r"^BabiTask\.tasks is 'two'; expected a value of type int"):
        from_json(BabiTask, {"tasks": [1, "two"]})


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^Run is \[\]; expected the fields of Run"):
        from_json(Run, [])


@pytest.mark.parametrize("value", [{"tasks": 5}, {"tasks": None}, {"data": 5}, {"data": []}])
def test_a_number_for_a_list_or_a_path_is_refused_by_name(value: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"BabiTask.{next(iter(value))} is "):
        from_json(BabiTask, value)


def test_settings_of_another_class_are_refused_by_their_type() -> None:
    with pytest.raises(BadInput, match="TrainSettings"):
        from_json(MachineSettings, {"type": "TrainSettings"})


def test_a_missing_field_takes_its_default() -> None:
    assert from_json(Run, {}) == Run()
    assert from_json(Run, {"type": "Run", "seed": 4}) == Run(seed=4)
    assert from_json(Run, {"model": {"machine": {"num_slots": 7}}}) == Run(
        model=ModelSettings(machine=MachineSettings(num_slots=7))
    )
    assert from_json(Run, {"task": {"type": "BabiTask"}}) == Run(task=BabiTask())


def test_each_preset_without_any_one_field_is_read_with_that_fields_default() -> None:
    whole = to_json(DEMO)
    for name in ("seed", "model", "train", "sampler_train"):
        read = from_json(Run, {key: value for key, value in whole.items() if key != name})
        assert read == dataclasses.replace(DEMO, **{name: getattr(Run(), name)})


def test_a_whole_number_is_read_as_a_float_where_one_is_expected() -> None:
    read = from_json(TrainSettings, {"clip_norm": 5})
    assert read == TrainSettings(clip_norm=5.0)
    assert isinstance(read.clip_norm, float)


def test_none_is_kept_where_it_means_something() -> None:
    assert from_json(BabiTask, {"data": None}).data is None
    assert from_json(SyntheticTask, to_json(SyntheticTask(data_seed=5))).data_seed == 5
