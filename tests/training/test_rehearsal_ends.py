"""Rehearsal that ends before training does: when it does, what is trained from then on, and that it resumes so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from remem.bundle import load_tensors
from remem.errors import BadInput
from remem.model.assembly import FOR_TRAINING
from remem.settings.model import ModelSettings, without_rehearsal
from remem.settings.run import Run
from remem.settings.tasks import BabiTask
from remem.training.run import Trainer

CPU = torch.device("cpu")


@pytest.fixture
def run(twin: Path, tiny_run: Run, shrink: Callable[[ModelSettings], ModelSettings]) -> Run:
    """Nine steps on two tasks, validated after every third, with fragments drawn by chance."""
    model = shrink(ModelSettings())
    model = replace(model, rehearsal=replace(model.rehearsal, sampler="random"))
    train = replace(tiny_run.train, steps=9, batch_size=4, eval_every=3, checkpoint_every=2, focus=10.0)
    return replace(tiny_run, task=BabiTask(data=twin, tasks=(1, 6)), model=model, train=train)


def _trained(run: Run, folder: Path, *, resume: bool = False, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record of a run, and what its last checkpoint holds."""
    changed = replace(run, train=replace(run.train, **changes))
    _, record = Trainer(changed, folder, device=CPU, quiet=True).train(resume=resume)
    return record, load_tensors(folder / "checkpoint.safetensors")[0]


def _steps_of(tensors: dict[str, Any]) -> dict[bool, set[int]]:
    """How many updates weights have seen: those that no answer needs (True), and all others."""
    steps = {name.removeprefix("adam.step."): int(value) for name, value in tensors.items() if "adam.step." in name}
    return {own: {n for name, n in steps.items() if name.startswith(FOR_TRAINING) == own} for own in (False, True)}


def _asking(run: Run) -> Run:
    """The same run with questions of a story's own in place of the decoder."""
    silent = without_rehearsal(run.model)
    return replace(run, model=replace(silent, rehearsal=replace(silent.rehearsal, ask_weight=1.0)))


def _asked(record: dict[str, Any]) -> list[bool]:
    """At which validations stories asked by themselves."""
    return ["loss_asked" in entry for entry in record["history"]]


def _recalled(record: dict[str, Any]) -> list[bool]:
    """At which validations something was being recalled."""
    return [entry["loss_recollection"] > 0 for entry in record["history"]]


def test_the_decoder_is_trained_for_as_many_steps_and_all_else_to_the_end(run: Run, tmp_path: Path) -> None:
    record, tensors = _trained(run, tmp_path / "four", rehearse_for=4)
    assert _steps_of(tensors) == {False: {9}, True: {4}}
    assert _recalled(record) == [True, False, False]
    assert record["history"][-1]["loss"] == pytest.approx(record["history"][-1]["loss_reason"])
    record, tensors = _trained(run, tmp_path / "all")
    assert _steps_of(tensors) == {False: {9}, True: {9}}
    assert _recalled(record) == [True, True, True]


def test_a_story_stops_asking_by_itself_as_a_memory_stops_rehearsing(run: Run, tmp_path: Path) -> None:
    asking = _asking(run)
    record, tensors = _trained(asking, tmp_path / "asking", rehearse_for=4)
    assert _steps_of(tensors) == {False: {9}, True: {4}}
    assert _asked(record) == [True, False, False]
    assert record["model"]["params_to_answer"] < record["model"]["params"]
    with pytest.raises(BadInput, match=r"nothing would be trained once it ends after 4 steps"):
        _trained(asking, tmp_path / "asker", rehearse_for=4, only=("asker",))


def test_steps_are_counted_from_the_end_of_the_lead(run: Run, tmp_path: Path) -> None:
    led = replace(run, train=replace(run.train, lead=("qa6",), lead_steps=6))
    assert _steps_of(_trained(led, tmp_path / "late", rehearse_for=1)[1])[True] == {7}
    # learned well enough at the first validation
    assert _steps_of(_trained(led, tmp_path / "soon", rehearse_for=1, lead_until=100.0)[1])[True] == {4}


@pytest.mark.parametrize("cut", [2, 4, 6])  # before rehearsal ends, just then, and afterwards
def test_a_run_that_was_stopped_ends_as_one_that_was_not(run: Run, tmp_path: Path, cut: int) -> None:
    _, whole = _trained(run, tmp_path / "whole", rehearse_for=4)
    _trained(run, tmp_path / "cut", rehearse_for=4, steps=cut)
    _, tensors = _trained(run, tmp_path / "cut", resume=True, rehearse_for=4)
    assert all(torch.equal(whole[name], tensors[name]) for name in whole if name.startswith("model."))


def test_what_can_not_end_is_refused_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--train.rehearse-for is -1; expected at least 0"):
        _trained(run, tmp_path / "negative", rehearse_for=-1)
    silent = replace(run, model=without_rehearsal(run.model))
    with pytest.raises(
        BadInput, match=r"can't end after 4 steps where nothing is rehearsed.*--train.rehearse-for None"
    ):
        _trained(silent, tmp_path / "silent", rehearse_for=4)
    with pytest.raises(BadInput, match=r"nothing would be trained once it ends after 4 steps.*another --train.only"):
        _trained(run, tmp_path / "silent", rehearse_for=4, only=("decoder",))
    assert not (tmp_path / "silent").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("told", [_recalled, _asked])
def test_a_captured_step_stops_rehearsing_where_a_plain_one_does(
    run: Run, tmp_path: Path, told: Callable[[dict[str, Any]], list[bool]]
) -> None:
    ends, started = [], run if told is _recalled else _asking(run)
    for capture in (False, True):
        train = replace(started.train, rehearse_for=4, capture=capture, precision="float32")
        changed = replace(started, train=train)
        folder = tmp_path / str(capture)
        _, record = Trainer(changed, folder, device=torch.device("cuda"), quiet=True).train()
        ends.append((told(record), _steps_of(load_tensors(folder / "checkpoint.safetensors")[0])))
    assert ends[0] == ends[1] == ([True, False, False], {False: {9}, True: {4}})
