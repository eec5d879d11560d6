"""Whole runs: both stages, the record, and that rehearsal memory learns."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remem.build import build_model
from remem.bundle import fingerprint_of, load_bundle, load_tensors, weights_of
from remem.errors import BadInput
from remem.experiments.presets import PRESETS
from remem.model.sampler import HistorySampler
from remem.settings.codec import from_json
from remem.settings.model import ModelSettings, with_machine, without_rehearsal
from remem.settings.run import Run, TrainSettings
from remem.settings.tasks import BabiTask, SyntheticTask
from remem.tasks.base import Metrics
from remem.tasks.load import load_task
from remem.training.evaluate import evaluate
from remem.training.record import code_version
from remem.training.run import RECORD_FILE, Trainer, pick_device, settled

CPU = torch.device("cpu")


def test_a_run_leaves_its_configuration_model_sampler_and_record(tiny_model: Path, tiny_run: Run) -> None:
    assert from_json(Run, json.loads((tiny_model / "config.json").read_text())) == settled(tiny_run, CPU)
    record = json.loads((tiny_model / "record.json").read_text())
    bundle = load_bundle(tiny_model)
    assert record["model"]["fingerprint"] == bundle.fingerprint
    assert record["model"]["state_floats"] == 4 * 32
    assert record["model"]["params"] == sum(p.numel() for p in bundle.model.parameters())
    assert record["model"]["params_to_answer"] < record["model"]["params"]
    assert record["seed"] == 0
    assert set(record["data"]["fingerprint"]) == {"train", "valid", "test"}
    assert record["cost"]["steps"] == 12
    assert record["cost"]["peak_memory_mb"] > 0
    assert record["cost"]["query"]["reads"] == 4 * 32
    assert record["cost"]["query"]["flops"] > 0
    assert (tiny_model / "sampler.safetensors").exists()
    assert any((tiny_model / "tensorboard" / "model").iterdir())


def test_a_records_test_metrics_are_those_of_the_saved_model(tiny_model: Path) -> None:
    record = json.loads((tiny_model / "record.json").read_text())
    bundle = load_bundle(tiny_model)
    task = load_task(bundle.run.task)
    tally = evaluate(bundle.model, task.load("test"), batch_size=7)
    assert task.metrics(tally)["early"] == pytest.approx(record["metrics"]["test"]["early"], abs=1e-3)
    assert sum(total for _, _, total in record["test_by_age"]) == tally.questions


def test_validation_curves_hold_the_diagnostics(tiny_model: Path) -> None:
    history = json.loads((tiny_model / "record.json").read_text())["history"]
    assert [entry["step"] for entry in history] == [4, 8, 12]
    for name in ("early", "later", "slot_spread", "write_entropy", "read_entropy", "loss_recollection"):
        assert name in history[0]


def test_a_seed_fixes_the_result_and_another_changes_it(tiny_run: Run, tmp_path: Path) -> None:
    prints = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        _, record = Trainer(replace(tiny_run, seed=seed), tmp_path / name, device=CPU, quiet=True).train()
        prints.append(record["model"]["fingerprint"])
    assert prints[0] == prints[1] != prints[2]


def test_a_trained_sampler_serves_other_runs_and_stays_frozen(tiny_model: Path, tiny_run: Run, tmp_path: Path) -> None:
    rehearsal = replace(tiny_run.model.rehearsal, sampler_from=tiny_model)
    run = replace(tiny_run, model=replace(tiny_run.model, rehearsal=rehearsal))
    trainer = Trainer(run, tmp_path / "run", device=CPU, quiet=True)
    sampler, _ = trainer._sampler(resume=False)
    assert isinstance(sampler, HistorySampler)
    assert not any(p.requires_grad for p in sampler.parameters())
    _, record = trainer.train()
    assert not (tmp_path / "run" / "sampler.safetensors").exists()
    assert record["cost"]["steps"] == 12
    own, told = json.loads((tiny_model / "record.json").read_text())["sampler_stage"], record["sampler_stage"]
    assert told["from"] == tiny_model.name
    assert told["fingerprint"] == fingerprint_of(sampler)
    assert all(told[name] == own[name] for name in ("steps", "seconds", "score", "fingerprint", "code", "seed"))
    assert told["code"]["commit"]


def test_a_resumed_run_keeps_its_samplers_facts_and_its_clock(tiny_run: Run, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    stopped = Trainer(tiny_run, tmp_path / "run", device=CPU, quiet=True)
    stopped.clock.go_on_from(1000.0)  # as if it had run for so long
    validate = stopped._validator

    def until_the_model(model: nn.Module, precision: str) -> Callable[[], tuple[float, Metrics]]:
        if isinstance(model, HistorySampler):
            return validate(model, precision)
        validations = iter([validate(model, precision)] * 2)

        def validation() -> tuple[float, Metrics]:
            chosen = next(validations, None)
            if chosen is None:
                raise Stopped
            return chosen()

        return validation

    stopped._validator = until_the_model  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        stopped.train()
    _, record = Trainer(tiny_run, tmp_path / "run", device=CPU, quiet=True).train(resume=True)
    _, whole = Trainer(tiny_run, tmp_path / "whole", device=CPU, quiet=True).train()
    assert record["cost"]["wall_seconds"] > 1000.0 > whole["cost"]["wall_seconds"]
    kept, own = record["sampler_stage"], whole["sampler_stage"]
    assert "from" not in kept
    assert (kept["steps"], kept["fingerprint"], kept["history"]) == (own["steps"], own["fingerprint"], own["history"])
    assert record["model"]["fingerprint"] == whole["model"]["fingerprint"]


def test_a_sampler_of_another_task_is_refused(tiny_model: Path, tiny_run: Run, tmp_path: Path) -> None:
    rehearsal = replace(tiny_run.model.rehearsal, sampler_from=tiny_model)
    other = replace(tiny_run.task, num_facts=24)
    run = replace(tiny_run, task=other, model=replace(tiny_run.model, rehearsal=rehearsal))
    with pytest.raises(BadInput, match="other items"):
        Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()


# those of the long tasks take their steps in tests/model/test_long_interface.py
SHORT = [name for name, run in PRESETS.items() if isinstance(run.task, BabiTask | SyntheticTask)]


@pytest.mark.parametrize("name", SHORT)
def test_every_preset_takes_two_steps_on_a_tiny_twin_of_its_data(
    name: str, twin: Path, tiny_run: Run, shrink: Callable[[ModelSettings], ModelSettings], tmp_path: Path
) -> None:
    preset = PRESETS[name]
    task = replace(preset.task, data=twin, tasks=(1, 6)) if isinstance(preset.task, BabiTask) else tiny_run.task
    short = TrainSettings(steps=2, batch_size=4, eval_every=2)
    lead = ("qa6",) if preset.train.lead else ()
    train = replace(preset.train, steps=2, batch_size=4, eval_every=2, lead=lead)  # with the preset's own optimiser
    run = replace(preset, task=task, model=shrink(preset.model), train=train, sampler_train=short)
    if preset.model.weights_from is not None:  # another preset's
        before = replace(run, model=replace(run.model, weights_from=None), train=short)
        Trainer(before, tmp_path / "before", device=CPU, quiet=True).train()
        run = replace(run, model=replace(run.model, weights_from=tmp_path / "before"))
    _, record = Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    assert record["cost"] | {"steps": 2, "skipped_steps": 0} == record["cost"]
    assert record["metrics"]["test"]


def test_what_a_run_leaves_to_its_device_is_decided_there_and_recorded(
    tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(tiny_run, train=replace(tiny_run.train, precision="auto", compile=None, steps=2))
    long = replace(run, train=replace(run.train, steps=2000))
    _, record = Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    for config in (record["config"], written):
        assert (config["train"]["precision"], config["train"]["compile"]) == ("float32", False)
    for has_bf16, precision in ((True, "bf16"), (False, "float32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda emulated, has=has_bf16: has)
        trainer = Trainer(long, tmp_path / "gpu", device=torch.device("cuda"), quiet=True)
        assert (trainer.run.train.precision, trainer.run.train.compile) == (precision, True)
        assert trainer.run.sampler_train.precision == "float32"
    # a short run is not compiled, unless its memory reads item by item
    rival = replace(run, model=PRESETS["synthetic/dnc"].model)
    short = [settled(each, torch.device("cuda")).train.compile for each in (run, rival)]
    assert short == [False, True]
    # on a CPU what reads item by item is, where there is a compiler and the run is not over before it is done
    on_a_cpu = [replace(each, train=replace(each.train, steps=steps)) for each in (run, rival) for steps in (299, 2000)]
    for compiler, compiled in (("true", [False, False, False, True]), ("no-such-compiler", [False] * 4)):
        monkeypatch.setenv("CXX", compiler)
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
        (tmp_path / "Python.h").touch()
        assert [settled(each, CPU).train.compile for each in on_a_cpu] == compiled
    monkeypatch.setenv("CXX", "true")
    (tmp_path / "Python.h").unlink()
    assert not settled(on_a_cpu[-1], CPU).train.compile
    # what was asked for is kept
    asked = replace(run, train=replace(run.train, precision="float32", compile=False))
    trainer = Trainer(asked, tmp_path / "asked", device=torch.device("cuda"), quiet=True)
    assert (trainer.run.train.precision, trainer.run.train.compile) == ("float32", False)


@pytest.mark.parametrize("focus_streams", [0.0, 5.0])
def test_a_focused_run_resumes_bit_equal(
    focus_streams: float,
    twin: Path,
    tiny_run: Run,
    shrink: Callable[[ModelSettings], ModelSettings],
    tmp_path: Path,
) -> None:
    task = BabiTask(data=twin, tasks=(1, 6))
    train = replace(
        tiny_run.train,
        steps=11,
        batch_size=4,
        eval_every=3,
        checkpoint_every=2,
        focus=10.0,
        focus_streams=focus_streams,
    )
    run = replace(tiny_run, task=task, model=without_rehearsal(shrink(ModelSettings())), train=train)
    Trainer(run, tmp_path / "whole", device=CPU, quiet=True).train()
    Trainer(replace(run, train=replace(train, steps=7)), tmp_path / "cut", device=CPU, quiet=True).train()
    Trainer(run, tmp_path / "cut", device=CPU, quiet=True).train(resume=True)
    whole, cut = (load_tensors(tmp_path / name / "checkpoint.safetensors")[0] for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole if name.startswith(("model.", "streams.")))
    assert ("streams.missed" in whole) == bool(focus_streams)


def test_a_history_sampler_can_be_trained_with_a_focus(twin: Path, tiny_run: Run, tmp_path: Path) -> None:
    sampler_train = replace(tiny_run.sampler_train, steps=2, batch_size=4, focus=10.0, lead=("qa6",), lead_steps=1)
    run = replace(tiny_run, task=BabiTask(data=twin, tasks=(1, 6)), sampler_train=sampler_train)
    trainer = Trainer(run, tmp_path, device=CPU, quiet=True)
    assert trainer._train_sampler(resume=False)[1]["steps"] == 2


def test_a_folder_is_trained_in_by_one_process_at_a_time(tiny_run: Run, tmp_path: Path) -> None:
    run = replace(tiny_run, model=without_rehearsal(tiny_run.model), train=replace(tiny_run.train, steps=1))
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(BadInput, match="Another process trains in"):
        Trainer(run, tmp_path, device=CPU, quiet=True).train(resume=True)
    assert not list(tmp_path.iterdir())
    os.close(other)
    Trainer(run, tmp_path, device=CPU, quiet=True).train(resume=True)
    assert (tmp_path / "record.json").exists()


@pytest.mark.parametrize("damage", ["no json", "[1]", '{"cost": 3}'])
def test_a_record_that_is_none_beside_the_weights_to_go_on_from_is_refused(
    tiny_run: Run, tiny_model: Path, tmp_path: Path, damage: str
) -> None:
    before = shutil.copytree(tiny_model, tmp_path / "before")
    (before / RECORD_FILE).write_text(damage)
    run = replace(tiny_run, model=replace(tiny_run.model, weights_from=before))
    with pytest.raises(BadInput, match="is not the record of a run"):
        Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    assert not (tmp_path / "run").exists()


def test_a_model_goes_on_from_another_ones_weights(tiny_model: Path, tiny_run: Run, tmp_path: Path) -> None:
    still = replace(tiny_run.train, steps=1, learning_rate=0.0)
    model = replace(tiny_run.model, weights_from=tiny_model)
    run = replace(tiny_run, seed=5, model=model, train=still, sampler_train=replace(still, eval_every=1))
    trained, record = Trainer(run, tmp_path / "next", device=CPU, quiet=True).train()
    before = load_bundle(tiny_model)
    assert fingerprint_of(trained) == before.fingerprint == record["began_from"]["fingerprint"]
    assert record["began_from"]["steps"] == tiny_run.train.steps
    other = replace(run, task=replace(tiny_run.task, num_facts=24))
    with pytest.raises(BadInput, match="other items or answers"):
        Trainer(other, tmp_path / "other", device=CPU, quiet=True).train()


def test_some_parts_start_anew_and_they_alone_are_trained(tiny_model: Path, tiny_run: Run, tmp_path: Path) -> None:
    bundle = load_bundle(tiny_model)
    before = weights_of(bundle.model)
    model = replace(without_rehearsal(tiny_run.model), weights_from=tiny_model, fresh=("reasoner",))
    run = replace(tiny_run, seed=5, model=model, train=replace(tiny_run.train, steps=2, only=("reasoner", "head")))
    trained, _ = Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    after = weights_of(trained)
    same = {name.partition(".")[0] for name, value in after.items() if torch.equal(value, before[name])}
    changed = {name.partition(".")[0] for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {"reasoner", "head"}
    assert {"embed", "memorizer"} <= same
    assert {name.partition(".")[0] for name in before.keys() - after.keys()} == {"decoder"}
    still = replace(run, train=replace(run.train, steps=1, learning_rate=0.0))
    anew, _ = Trainer(still, tmp_path / "still", device=CPU, quiet=True).train()
    torch.manual_seed(run.seed)
    started = build_model(run.model, bundle.codec)
    for name, value in weights_of(anew).items():
        assert torch.equal(value, weights_of(started)[name] if name.startswith("reasoner.") else before[name]), name
    for wrong in (replace(run, model=replace(model, fresh=("reader",))),
                  replace(run, train=replace(run.train, only=("reader",)))):  # fmt: skip
        with pytest.raises(BadInput, match="no part 'reader'; its parts are embed, "):
            Trainer(wrong, tmp_path / "wrong", device=CPU, quiet=True).train()


def test_a_part_can_start_anew_only_where_others_do_not(tiny_run: Run, tmp_path: Path) -> None:
    run = replace(tiny_run, model=replace(tiny_run.model, fresh=("reasoner",)))
    with pytest.raises(BadInput, match=r"--model\.weights-from"):
        Trainer(run, tmp_path, device=CPU, quiet=True).train()


def test_a_task_without_parts_has_nothing_to_focus_on(tiny_run: Run, tmp_path: Path) -> None:
    run = replace(tiny_run, train=replace(tiny_run.train, focus=1.0))
    with pytest.raises(BadInput, match="nothing to focus on"):
        Trainer(run, tmp_path, device=CPU, quiet=True).train()


def test_a_model_that_cannot_be_built_is_refused_before_the_sampler_is_trained(tiny_run: Run, tmp_path: Path) -> None:
    run = replace(tiny_run, model=with_machine(tiny_run.model, num_heads=7))
    with pytest.raises(BadInput, match="7 heads"):
        Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_rehearsal_memory_learns_where_chance_would_stay(tiny_run: Run, tmp_path: Path) -> None:
    """Three answers: chance is 33 %. The memory must do far better, early and later."""
    train = replace(tiny_run.train, steps=350, batch_size=32, eval_every=50, patience=0)
    stage_one = replace(tiny_run.sampler_train, steps=150, batch_size=64, eval_every=50, learning_rate=3e-3)
    run = replace(tiny_run, train=train, sampler_train=stage_one)
    _, record = Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    test = record["metrics"]["test"]
    assert test["early"] > 70, test
    assert test["later"] > 70, test


def test_code_is_named_by_its_commit_or_by_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMEM_COMMIT", raising=False)
    assert len(code_version()["commit"]) == 40 or code_version()["commit"].startswith("v0.")
    monkeypatch.setattr("remem.training.record._git", lambda *_: "")
    assert code_version()["commit"].startswith("v0.")
    monkeypatch.undo()
    monkeypatch.setenv("REMEM_COMMIT", "abc")
    told = code_version()
    assert told["commit"] == "abc", "what it is told comes before what git says"
    assert (told["commit_from"], told["dirty"]) == ("environment", None), "nobody checked it"


def test_auto_picks_a_device_that_exists() -> None:
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(BadInput, match="'abacus' is no device"):
        pick_device("abacus")
    with pytest.raises(BadInput, match="can be trained on 'meta'"):
        pick_device("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to be had")
def test_a_gpu_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(BadInput, match="no CUDA device"):
        pick_device("cuda")


@pytest.mark.parametrize(
    ("facts", "fresh", "train", "said"),
    [
        (24, (), {}, "other items or answers"),
        (12, ("nose",), {}, "no part 'nose'"),
        (12, (), {"only": ("nose",)}, "no part 'nose'"),
        (12, (), {"optimizer": "rmsprop", "weight_decay": 0.1}, "no decoupled weight decay"),
        (12, (), {"focus": 10.0}, "nothing to focus on"),
        (12, (), {"lead": ("early",)}, "need a focus above 0"),
    ],
)
def test_what_the_second_stage_can_not_do_is_refused_before_the_first(
    facts: int,
    fresh: tuple[str, ...],
    train: dict[str, Any],
    said: str,
    tiny_model: Path,
    tiny_run: Run,
    tmp_path: Path,
) -> None:
    run = replace(
        tiny_run,
        task=replace(tiny_run.task, num_facts=facts),
        model=replace(tiny_run.model, weights_from=tiny_model, fresh=fresh),
        train=replace(tiny_run.train, **train),
    )
    with pytest.raises(BadInput, match=said):
        Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    # no sampler was trained, and the folder is free for another try
    assert not (tmp_path / "run").exists()


def test_what_can_not_be_rehearsed_alone_is_refused_before_the_first_stage(tiny_run: Run, tmp_path: Path) -> None:
    run = replace(tiny_run, pretrain=replace(tiny_run.train, steps=2))
    with pytest.raises(BadInput, match="can't be trained before it answers"):
        Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    assert not (tmp_path / "run").exists()
