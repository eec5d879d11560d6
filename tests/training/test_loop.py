"""The loop: schedule, early stopping, best weights, guards, and runs that resume bit-equal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from remem.build import build_model
from remem.bundle import load_tensors, save_tensors, weights_of
from remem.data.batch import Batch
from remem.errors import BadInput
from remem.settings.model import DeltaSettings
from remem.settings.run import Run, TrainSettings
from remem.tasks.load import load_task
from remem.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from remem.training.log import StageLog
from remem.training.loop import TrainingDiverged, fit, learning_rate
from remem.training.objective import MISSED, MemoryObjective
from remem.training.run import Trainer
from remem.training.step import EagerStep, GraphedStep, make_step

CPU = torch.device("cpu")


def test_the_learning_rate_warms_up_and_then_holds() -> None:
    settings = TrainSettings(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate(settings, step) for step in (0, 1, 3, 100)] == [0.25, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("last", [0.0, 0.1, 0.5])
def test_the_cosine_ends_at_the_given_share(last: float) -> None:
    settings = TrainSettings(learning_rate=1.0, schedule="cosine", last_rate=last, steps=10)
    rates = [learning_rate(settings, step) for step in range(11)]
    assert rates[0] == pytest.approx(1.0)
    assert rates[5] == pytest.approx((1 + last) / 2)
    assert rates[10] == pytest.approx(last)
    assert rates == sorted(rates, reverse=True)


class Stopped(Exception):
    """Stands for a kill."""


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "checkpoint.safetensors")[0]


@pytest.mark.parametrize("stop_at", [5, 8, 11])
def test_a_resumed_run_ends_bit_equal_to_an_uninterrupted_one(
    tiny_run: Run, tmp_path: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropout = replace(tiny_run.model.machine, dropout=0.1)
    run = replace(tiny_run, model=replace(tiny_run.model, machine=dropout))
    Trainer(run, tmp_path / "whole", device=CPU, quiet=True).train()
    steps = EagerStep.__call__

    def stopping(self: EagerStep, *arguments: object) -> None:
        # only the model's stage goes on for so long
        calls[self] = calls.get(self, 0) + 1
        if calls[self] > stop_at:
            raise Stopped
        steps(self, *arguments)  # type: ignore[arg-type]

    calls: dict[EagerStep, int] = {}
    with monkeypatch.context() as patch:
        patch.setattr(EagerStep, "__call__", stopping)
        with pytest.raises(Stopped):
            Trainer(run, tmp_path / "cut", device=CPU, quiet=True).train(resume=True)
        if stop_at == 5:  # the sampler's six steps were cut, too
            calls.clear()
            with pytest.raises(Stopped):
                Trainer(run, tmp_path / "cut", device=CPU, quiet=True).train(resume=True)
    Trainer(run, tmp_path / "cut", device=CPU, quiet=True).train(resume=True)
    whole, cut = _weights(tmp_path / "whole"), _weights(tmp_path / "cut")
    assert whole.keys() == cut.keys()
    for name in whole:
        assert torch.equal(whole[name], cut[name]), name


def test_kill_9_leaves_a_usable_checkpoint(tiny_run: Run, tmp_path: Path) -> None:
    """A process that does nothing but save checkpoints is killed at random moments; each time the file is whole."""
    code = (
        "import sys, torch; from pathlib import Path\n"
        "from remem.training.checkpoint import Progress, save_checkpoint\n"
        "model = torch.nn.Linear(300, 300); optimizer = torch.optim.Adam(model.parameters())\n"
        "step = 0\n"
        "while True:\n"
        "    step += 1\n"
        "    save_checkpoint(Path(sys.argv[1]), model, {}, optimizer, Progress(step=step, best_step=step))\n"
        "    print(step, flush=True)\n"
    )
    path = tmp_path / "checkpoint.safetensors"
    seen = 0
    for wait in (0.0, 0.003, 0.011):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        done = 0
        for line in process.stdout:
            done = int(line)
            if done >= 5:
                break
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        model = nn.Linear(300, 300)
        progress, *_ = load_checkpoint(path, model, torch.optim.Adam(model.parameters()))
        assert progress.step >= done
        seen += 1
    assert seen == 3


def test_a_checkpoint_before_the_first_validation_round_trips(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    best = {name: value.clone() for name, value in weights_of(model).items()}
    save_checkpoint(tmp_path / "c.safetensors", model, best, optimizer, Progress(step=3))
    progress, best, _ = load_checkpoint(tmp_path / "c.safetensors", model, optimizer)
    assert progress == Progress(step=3)
    assert best.keys() == weights_of(model).keys()


def _fit(
    run: Run, settings: TrainSettings, scores: list[float], folder: Path | None = None
) -> tuple[nn.Module, Progress]:
    """Train with made-up validation scores."""
    torch.manual_seed(0)
    task = load_task(run.task)
    model = build_model(run.model, task.codec)
    objective = MemoryObjective(model, replace(run.model.rehearsal, recollection_weight=0, familiarity_weight=0), None)
    given = iter(scores)

    def validate() -> tuple[float, dict[str, float]]:
        score = next(given)
        return score, {"accuracy": score}

    with StageLog("test", total=settings.steps, quiet=True) as log:
        progress = fit(
            model,
            objective,
            task.load("train"),
            validate,
            settings,
            seed=0,
            log=log,
            checkpoint=None if folder is None else folder / "c.safetensors",
        )
    return model, progress


def test_a_run_that_is_out_of_time_ends_with_its_test_and_record(tiny_run: Run, tmp_path: Path) -> None:
    train = replace(tiny_run.train, steps=1000, eval_every=500, max_seconds=1e-9)
    _, record = Trainer(replace(tiny_run, train=train), tmp_path / "run", device=CPU, quiet=True).train()
    assert record["cost"]["steps"] == record["cost"]["best_step"] == 2  # the first step sets the clock
    assert [validation["step"] for validation in record["history"]] == [2]
    assert record["metrics"]["test"]
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_stopped_before_its_test_makes_no_more_steps_when_it_is_resumed(tiny_run: Run, tmp_path: Path) -> None:
    run = replace(tiny_run, train=replace(tiny_run.train, steps=1000, eval_every=500, max_seconds=1e-9))
    _, whole = Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    (tmp_path / "run" / "record.json").unlink()
    _, again = Trainer(run, tmp_path / "run", device=CPU, quiet=True).train(resume=True)
    for part in ("history", "metrics", "device", "versions"):
        assert again[part] == whole[part]
    assert again["cost"]["steps"] == whole["cost"]["steps"] == 2
    assert again["model"]["fingerprint"] == whole["model"]["fingerprint"]
    assert "tested_on" not in again
    longer = replace(run, train=replace(run.train, steps=4, max_seconds=0.0))
    _, further = Trainer(longer, tmp_path / "run", device=CPU, quiet=True).train(resume=True)
    assert further["cost"]["steps"] == 4


def test_a_record_says_where_it_was_trained_and_where_it_was_tested(tiny_run: Run, tmp_path: Path) -> None:
    run = replace(tiny_run, train=replace(tiny_run.train, steps=1000, eval_every=500, max_seconds=1e-9))
    _, whole = Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    tensors, info = load_tensors(tmp_path / "run" / "checkpoint.safetensors", "made_on")
    info["made_on"] = {"device": "another", "versions": {"torch": "1.0"}, "peak_memory_mb": 7}
    save_tensors(tmp_path / "run" / "checkpoint.safetensors", tensors, info)
    _, record = Trainer(run, tmp_path / "run", device=CPU, quiet=True).train(resume=True)
    assert (record["device"], record["versions"], record["cost"]["peak_memory_mb"]) == ("another", {"torch": "1.0"}, 7)
    assert record["tested_on"]["device"] == whole["device"]
    assert record["tested_on"]["versions"] == whole["versions"]


def test_early_stopping_waits_for_its_patience(tiny_run: Run) -> None:
    settings = replace(tiny_run.train, steps=100, eval_every=1, patience=2)
    _, progress = _fit(tiny_run, settings, [1.0, 3.0, 2.0, 2.5, 9.0])
    assert (progress.step, progress.best_step, progress.best_score) == (4, 2, 3.0)


def test_the_model_is_left_with_its_best_weights(tiny_run: Run) -> None:
    settings = replace(tiny_run.train, steps=3, eval_every=1)
    best, _ = _fit(tiny_run, settings, [5.0, 1.0, 1.0])
    once, _ = _fit(tiny_run, replace(settings, steps=1), [5.0])
    later, _ = _fit(tiny_run, settings, [1.0, 1.0, 5.0])
    assert all(torch.equal(a, b) for a, b in zip(best.parameters(), once.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(best.parameters(), later.parameters(), strict=True))


class Poisoned:
    """An objective whose loss is NaN from a given call on."""

    def __init__(self, model: nn.Module, start: int) -> None:
        self.model, self.start, self.calls = model, start, 0

    def __call__(self, batch: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        self.calls += 1
        loss = sum(p.square().sum() for p in self.model.parameters()) * (
            float("nan") if self.calls >= self.start else 1.0
        )
        assert isinstance(loss, torch.Tensor)
        return loss, {"loss": loss.detach()}


def _poison(
    run: Run, folder: Path, start: int, budget: int, optimizer: Literal["adam", "rmsprop"] = "adam"
) -> tuple[nn.Module, Progress]:
    task = load_task(run.task)
    model = nn.Linear(2, 2)
    settings = replace(run.train, steps=8, eval_every=1, log_every=50, checkpoint_every=1, nan_budget=budget)
    settings = replace(settings, optimizer=optimizer)
    with StageLog("test", total=8, quiet=True) as log:
        progress = fit(
            model,
            Poisoned(model, start),
            task.load("train"),
            lambda: (0.0, {"accuracy": 0.0}),
            settings,
            seed=0,
            log=log,
            checkpoint=folder / "c.safetensors",
        )
    return model, progress


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_few_steps_that_are_not_finite_are_left_out(
    optimizer: Literal["adam", "rmsprop"], tiny_run: Run, tmp_path: Path
) -> None:
    model, progress = _poison(tiny_run, tmp_path, start=7, budget=2, optimizer=optimizer)
    assert progress.skipped == 2
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_too_many_steps_that_are_not_finite_stop_the_run_and_say_where(tiny_run: Run, tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"Step 6: loss nan.*Streams of the batch: \[\d+"):
        _poison(tiny_run, tmp_path, start=4, budget=2)
    model = nn.Linear(2, 2)
    progress, *_ = load_checkpoint(tmp_path / "c.safetensors", model, torch.optim.Adam(model.parameters()))
    assert progress.step == 5
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_mixed_precision_trains_with_slots_in_float32(tiny_run: Run, tmp_path: Path) -> None:
    run = replace(tiny_run, train=replace(tiny_run.train, precision="bf16"))
    model, record = Trainer(run, tmp_path / "bf16", device=CPU, quiet=True).train()
    assert record["cost"]["skipped_steps"] == 0
    assert all(p.dtype == torch.float32 for p in model.parameters())
    batch = load_task(run.task).load("test").batch(0, torch.arange(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.memorize(batch.stream).memories.dtype == torch.float32


def test_a_cpu_takes_the_eager_step_even_if_capture_is_asked_for(tiny_run: Run) -> None:
    task = load_task(tiny_run.task)
    model = build_model(tiny_run.model, task.codec)
    step = make_step(
        model, lambda batch: (torch.zeros(()), {}), task.load("train"), replace(tiny_run.train, capture=True)
    )
    assert isinstance(step, EagerStep)


def test_a_step_notes_the_streams_that_it_missed_by_their_place(tiny_run: Run) -> None:
    split = load_task(tiny_run.task).load("train")
    one = split.buckets[0]
    numbered = replace(one, ids=one.ids + 1000)  # numbers of streams may have gaps
    twice = replace(split, buckets=(one, numbered))
    model = nn.Linear(1, 1)

    def objective(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return model(torch.ones(1)).sum(), {MISSED: batch.ids % 2 == 1}

    step = EagerStep(model, objective, twice, replace(tiny_run.train, focus_streams=1.0))
    for _ in range(2):
        step(1, torch.tensor([3, 0, 1]), 1e-3)
    noted = dict(enumerate(step.missed.tolist()))
    assert {place: wrong for place, wrong in noted.items() if wrong} == {len(one) + 3: 0.75, len(one) + 1: 0.75}
    assert MISSED not in step.logs
    assert len(EagerStep(model, objective, twice, tiny_run.train).missed) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("optimizer", "delta"), [("adam", False), ("rmsprop", False), ("adam", True)])
def test_the_captured_step_equals_the_eager_one(
    optimizer: Literal["adam", "rmsprop"], delta: bool, tiny_run: Run
) -> None:
    if delta:
        tiny_run = replace(tiny_run, model=replace(tiny_run.model, machine=DeltaSettings()))
    device = torch.device("cuda")
    task = load_task(tiny_run.task)
    split = task.load("train").to(device)
    settings = replace(tiny_run.model.rehearsal, recollection_weight=0, familiarity_weight=0)
    weights, missed = [], []
    for kind in (EagerStep, GraphedStep):
        torch.manual_seed(0)
        model = build_model(tiny_run.model, task.codec).to(device)
        train = replace(tiny_run.train, optimizer=optimizer, momentum=0.9, focus_streams=1.0)
        step = kind(model, MemoryObjective(model, settings, None), split, train)
        for start in range(0, 48, 16):
            step(0, torch.arange(start, start + 16), 1e-3)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        missed.append(step.missed)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)
    assert torch.equal(*missed)


def test_rehearsal_without_a_sampler_is_refused(tiny_run: Run) -> None:
    model = build_model(tiny_run.model, load_task(tiny_run.task).codec)
    with pytest.raises(BadInput, match="sampler"):
        MemoryObjective(model, tiny_run.model.rehearsal, None)


@pytest.mark.parametrize(
    ("added", "left_out", "said"),
    [
        ({"newer": 1}, "", "does not know \\('newer'\\)"),
        ({}, "best_score", "no 'best_score'"),
        ({}, "random.cpu", "no state of the random numbers"),
    ],
)
def test_a_checkpoint_that_is_newer_or_not_whole_is_refused_with_a_sentence(
    added: dict[str, int], left_out: str, said: str, tmp_path: Path
) -> None:
    model, path = nn.Linear(2, 2), tmp_path / "checkpoint.safetensors"
    optimizer = torch.optim.AdamW(model.parameters())
    best = {name: value.detach().clone() for name, value in weights_of(model).items()}
    save_checkpoint(path, model, best, optimizer, Progress())
    tensors, info = load_tensors(path)
    kept = {name: value for name, value in tensors.items() if name != left_out}
    save_tensors(path, kept, {name: value for name, value in (info | added).items() if name != left_out})
    with pytest.raises(BadInput, match=said):
        load_checkpoint(path, model, optimizer)
