"""Adam and RMSprop: their equations, steps left out on the device, and runs that resume bit-equal."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from remem.bundle import load_tensors
from remem.data.batch import Batch
from remem.errors import BadInput
from remem.settings.run import Run, TrainSettings
from remem.tasks.load import load_task
from remem.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from remem.training.log import StageLog
from remem.training.loop import fit
from remem.training.optimizer import GuardedRMSprop, make_optimizer
from remem.training.step import GraphedStep

RMSPROP = TrainSettings(optimizer="rmsprop", learning_rate=0.01, momentum=0.9, beta2=0.9, epsilon=1e-5)


def weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(2))]


def gradients(step: int) -> list[Tensor | None]:
    """Of all weights but the last, which has none."""
    torch.manual_seed(100 + step)
    return [torch.randn(3, 4), torch.randn(5), None]


def guarded(parameters: list[nn.Parameter]) -> GuardedRMSprop:
    optimizer = make_optimizer(parameters, RMSPROP)
    assert isinstance(optimizer, GuardedRMSprop)
    return optimizer


def take(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], step: int, poison: float = 1.0) -> None:
    for parameter, gradient in zip(parameters, gradients(step), strict=True):
        parameter.grad = None if gradient is None else gradient * poison
    optimizer.step()


@pytest.mark.parametrize("watched", [False, True])
def test_rmsprop_equals_torchs_own_to_the_bit(watched: bool) -> None:
    ours, theirs = weights(), weights()
    optimizer = guarded(ours)
    if watched:
        optimizer.found_inf = torch.zeros(())
    reference = torch.optim.RMSprop(theirs, lr=0.01, alpha=0.9, eps=1e-5, momentum=0.9)
    for step in range(4):
        take(optimizer, ours, step)
        take(reference, theirs, step)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_rmsprop_divides_by_the_root_of_the_mean_square_and_has_momentum() -> None:
    ours = weights()
    optimizer = guarded(ours)
    expected, square, moved = ours[0].detach().clone(), torch.zeros(3, 4), torch.zeros(3, 4)
    for step in range(3):
        take(optimizer, ours, step)
        gradient = gradients(step)[0]
        assert gradient is not None
        square = 0.9 * square + 0.1 * gradient**2
        moved = 0.9 * moved + gradient / (square.sqrt() + 1e-5)
        expected = expected - 0.01 * moved
    torch.testing.assert_close(ours[0].detach(), expected)


@pytest.mark.parametrize("bad", [0, 2])
def test_a_step_left_out_on_the_device_changes_neither_weights_nor_state(bad: int) -> None:
    """Not even if it is the first one, which makes the state."""
    ours, theirs = weights(), weights()
    optimizer, reference = guarded(ours), guarded(theirs)
    optimizer.found_inf = torch.zeros(())
    for step in range(4):
        optimizer.found_inf.fill_(float(step == bad))
        take(optimizer, ours, step, poison=float("nan") if step == bad else 1.0)
        if step != bad:
            take(reference, theirs, step)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
        assert optimizer.state[one].keys() == reference.state[other].keys()
        for name, value in optimizer.state[one].items():
            assert torch.equal(value, reference.state[other][name]), name


def test_with_its_learning_rate_on_the_device_rmsprop_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic that is captured on a GPU; torch has it for GPUs alone, though nothing in it needs one."""
    monkeypatch.setattr(import_module("torch.optim.rmsprop"), "_get_capturable_supported_devices", lambda: ["cpu"])
    ours, theirs, rate = weights(), weights(), torch.tensor(1.0)
    optimizer, reference = make_optimizer(ours, RMSPROP, rate=rate), guarded(theirs)
    assert isinstance(optimizer, GuardedRMSprop)
    optimizer.found_inf = torch.zeros(())
    for step, (learning_rate, bad) in enumerate([(0.01, False), (0.02, True), (0.03, False)]):
        rate.fill_(learning_rate)
        optimizer.found_inf.fill_(float(bad))
        take(optimizer, ours, step, poison=float("inf") if bad else 1.0)
        reference.param_groups[0]["lr"] = learning_rate
        if not bad:
            take(reference, theirs, step)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_adam_is_as_it_was_unless_told_otherwise() -> None:
    ours, theirs = weights(), weights()
    optimizer, reference = make_optimizer(ours, TrainSettings()), torch.optim.AdamW(theirs, lr=1e-3, weight_decay=0.0)
    for step in range(3):
        take(optimizer, ours, step)
        take(reference, theirs, step)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    told = make_optimizer(weights(), TrainSettings(beta2=0.99, epsilon=1e-6))
    assert (told.defaults["betas"], told.defaults["eps"]) == ((0.9, 0.99), 1e-6)


def test_rmsprop_takes_no_weight_decay() -> None:
    with pytest.raises(BadInput, match="no decoupled weight decay"):
        make_optimizer(weights(), replace(RMSPROP, weight_decay=0.1))


def test_a_resumed_rmsprop_run_ends_bit_equal(tiny_run: Run, tmp_path: Path) -> None:
    split = load_task(tiny_run.task).load("train")

    def train(folder: Path, steps: int) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)

        def objective(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
            given = batch.stream.items[:4, :4].float() / 12
            loss = (model(given) - torch.rand(3)).square().sum()
            return loss, {"loss": loss.detach()}

        settings = replace(RMSPROP, steps=steps, batch_size=8, eval_every=2, checkpoint_every=3)
        with StageLog("test", total=steps, quiet=True) as log:
            fit(
                model, objective, split, lambda: (0.0, {"accuracy": 0.0}), settings,
                seed=0, log=log, checkpoint=folder / "c.safetensors", resume=True,
            )  # fmt: skip

    for folder, parts in ((tmp_path / "whole", (11,)), (tmp_path / "cut", (5, 8, 11))):
        folder.mkdir()
        for steps in parts:
            train(folder, steps)
    whole, cut = (load_tensors(tmp_path / name / "c.safetensors")[0] for name in ("whole", "cut"))
    assert whole.keys() == cut.keys()
    assert any(name.startswith("rmsprop.momentum_buffer.") for name in whole)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_a_checkpoint_of_another_optimiser_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    adam.step()
    best = {name: value.detach().clone() for name, value in model.named_parameters()}
    save_checkpoint(tmp_path / "c.safetensors", model, best, adam, Progress(step=1))
    with pytest.raises(BadInput, match="written with adam, but this run trains with rmsprop"):
        load_checkpoint(tmp_path / "c.safetensors", model, torch.optim.RMSprop(model.parameters()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_rmsprop_step_that_is_not_finite_is_left_out(tiny_run: Run) -> None:
    split = load_task(tiny_run.task).load("train").to(torch.device("cuda"))
    model = nn.Linear(2, 2).cuda()
    scale = torch.ones((), device="cuda")

    def objective(batch: object) -> tuple[Tensor, dict[str, Tensor]]:
        loss = torch.stack([p.square().sum() for p in model.parameters()]).sum() * scale
        return loss, {"loss": loss.detach()}

    step = GraphedStep(model, objective, split, replace(RMSPROP, batch_size=4))
    step(0, torch.arange(4), 1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    scale.fill_(float("nan"))
    step(0, torch.arange(4), 1e-3)
    assert step.skipped() == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    scale.fill_(1.0)
    step(0, torch.arange(4), 1e-3)
    assert step.skipped() == 1
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
