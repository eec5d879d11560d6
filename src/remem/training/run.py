"""A whole run: train the history sampler, train the model with it, test once, write the record."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from remem.build import Model, build_model, build_sampler
from remem.bundle import (
    SAMPLER_FILE,
    fingerprint_of,
    load_bundle,
    load_sampler,
    load_weights,
    save_bundle,
    save_sampler,
    weights_of,
)
from remem.data.dataset import Split, evaluation_batches
from remem.errors import BadInput
from remem.files import write_file
from remem.model.assembly import FOR_TRAINING, MemoryModel
from remem.model.sampler import HistorySampler, RandomSampler, Sampler
from remem.settings.baselines import DMSDNCSettings, DNCSettings, MIMNSettings, NativeWordSettings, NUTMSettings
from remem.settings.bounds import refuse_nonsense
from remem.settings.codec import to_json
from remem.settings.model import DeltaSettings, MachineSettings
from remem.settings.run import Run, TrainSettings
from remem.tasks.base import Metrics, Task
from remem.tasks.load import load_task
from remem.training.evaluate import evaluate
from remem.training.log import StageLog
from remem.training.loop import Clock, fit, refuse_focus
from remem.training.objective import DirectObjective, MemoryObjective, RehearsalObjective, make_objective
from remem.training.optimizer import make_optimizer
from remem.training.record import code_version, make_record

Precision = Literal["float32", "bf16"]
CONFIG_FILE = "config.json"
RECORD_FILE = "record.json"
_LONG = 2000  # steps from which on compiling, about a minute, pays for itself on a GPU
_LONG_BY_ITEM = 300  # and on a CPU, half a minute, where a step goes through a stream item by item
_ITEM_BY_ITEM = (DNCSettings, NUTMSettings, DMSDNCSettings, MIMNSettings, NativeWordSettings)


def pick_device(name: str) -> torch.device:
    """The device of a name; "auto" takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"{name!r} is no device; expected auto, cpu or cuda.") from None
    if device.type == "meta":  # which computes shapes alone
        raise BadInput(f"Nothing can be trained on {name!r}; expected auto, cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"{name!r} was asked for, but this machine has no CUDA device; take auto or cpu.")
    return device


def _compiles_for_cpu() -> bool:
    """Whether this machine has what `torch.compile` needs for a CPU: a C++ compiler, and Python's headers."""
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    return shutil.which(os.environ.get("CXX", "g++")) is not None and headers.exists()


def settled(run: Run, device: torch.device) -> Run:
    """What a run leaves to its device, decided: its record says so, and a run that is resumed keeps to it."""
    gpu = device.type == "cuda"
    # a rival reads item by item, or has little to compile
    rival = not isinstance(run.model.machine, MachineSettings | DeltaSettings)
    by_item = isinstance(run.model.machine, _ITEM_BY_ITEM) and not gpu and _compiles_for_cpu()
    fast: Precision = "bf16" if gpu and torch.cuda.is_bf16_supported(False) else "float32"

    def stage(settings: TrainSettings, best: Precision) -> TrainSettings:
        precision = best if settings.precision == "auto" else settings.precision
        pays = (gpu and (rival or settings.steps >= _LONG)) or (by_item and settings.steps >= _LONG_BY_ITEM)
        return replace(settings, precision=precision, compile=pays if settings.compile is None else settings.compile)

    return replace(
        run,
        train=stage(run.train, fast),
        sampler_train=stage(run.sampler_train, "float32"),  # too small for 16 bits to pay
        pretrain=stage(run.pretrain, fast),
    )


class Trainer:
    """One run in its folder: `config.json`, checkpoints, `model.safetensors`, `record.json`."""

    def __init__(
        self, run: Run, folder: Path, *, device: torch.device, quiet: bool = False, task: Task | None = None
    ) -> None:
        refuse_nonsense(run)
        self.clock = Clock()
        self.code = code_version()  # now, not at the end: the checkout may have moved on by then
        self.run, self.folder, self.device, self.quiet = settled(run, device), folder, device, quiet
        # who goes on from a model speaks its words
        trained = load_bundle(run.model.weights_from) if run.model.weights_from and task is None else None
        self.task = task or load_task(run.task, trained.codec if trained else None)
        self.splits: dict[str, Split] = {}

    def split(self, name: str) -> Split:
        """A split on the run's device, loaded once."""
        if name not in self.splits:
            self.splits[name] = self.task.load(name).to(self.device)
        return self.splits[name]

    def train(self, *, resume: bool = False) -> tuple[Model, dict[str, Any]]:
        """Both stages, the test, and the record."""
        if self.run.train.lead_tries > 1 and self.run.model.weights_from is not None:
            raise BadInput(
                f"A lead of {self.run.train.lead_tries} tries begins anew with other weights, but these are those of "
                f"{self.run.model.weights_from}; give --train.lead-tries 1 or --model.weights-from None."
            )
        if self.run.train.lead_tries > 1 and not (self.run.train.lead and self.run.train.lead_steps):
            raise BadInput(
                f"A lead of {self.run.train.lead_tries} tries needs a part that leads and its steps; give --train.lead "
                "and --train.lead-steps, or --train.lead-tries 1."
            )
        if self.run.model.fresh and self.run.model.weights_from is None:
            raise BadInput(
                f"All of the model is new, not {', '.join(self.run.model.fresh)} alone; name a model whose other parts "
                "are taken over with --model.weights-from, or leave --model.fresh empty."
            )
        if self.run.train.rehearse_for is not None and not self.run.model.rehearsal.beside_answers:
            raise BadInput(
                f"Rehearsal can't end after {self.run.train.rehearse_for} steps where nothing is rehearsed; give "
                "--train.rehearse-for None, or rehearsal a weight above 0."
            )
        only = self.run.train.only
        if self.run.train.rehearse_for is not None and only and all(f"{part}." in FOR_TRAINING for part in only):
            raise BadInput(
                f"--train.only {' '.join(only)} names what rehearsal alone uses, so that nothing would be trained once "
                f"it ends after {self.run.train.rehearse_for} steps; give --train.rehearse-for None, or another "
                "--train.only."
            )
        self._refuse_before_stage_one()
        self.folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(self.folder):
            return self._train(resume)

    def _refuse_before_stage_one(self) -> None:
        """What the later stages can't do with this model and this data: stage one takes long."""
        settings = self.run.train
        with torch.random.fork_rng(devices=[]):
            model = build_model(self.run.model, self.task.codec)
        self._take_weights(model)
        _train_only(model, settings.only)
        make_optimizer(list(model.parameters()), settings)
        self._refuse_pretraining(model)
        refuse_focus(self.split("train"), settings, self.task.part_errors, self.task.part_names)
        for name in ("valid", "test"):  # without them there would be nothing to choose by, or to report
            self.split(name)

    def _train(self, resume: bool) -> tuple[Model, dict[str, Any]]:
        write_file(self.folder / CONFIG_FILE, json.dumps(to_json(self.run), indent=1).encode())
        sampler, stage_one = self._sampler(resume)
        torch.manual_seed(self.run.seed)
        model = build_model(self.run.model, self.task.codec).to(self.device)
        began = self._take_weights(model)
        _train_only(model, self.run.train.only)
        before = self._pretrain(model, resume)
        objective = make_objective(model, self.run.model.rehearsal, sampler)
        if self.run.train.compile:
            objective.compile()
        settings = self.run.train
        with self._log(self.run.method, "model", settings.steps) as log:
            progress = fit(
                model, objective, self.split("train"), self._validator(model, settings.precision), settings,
                seed=self.run.seed, log=log, checkpoint=self.folder / "checkpoint.safetensors", resume=resume,
                clock=self.clock, part_errors=self.task.part_errors, part_names=self.task.part_names,
                redraw=self._redraw if settings.lead_tries > 1 else None,
                stop_rehearsing=objective.stop_rehearsing if isinstance(objective, MemoryObjective) else None,
            )  # fmt: skip
        fingerprint = save_bundle(self.folder, model, self.run, self.task.codec)
        test = evaluate(model, self.split("test"), batch_size=settings.batch_size, precision=settings.precision)
        record = make_record(
            self.run, self.task, model, code=self.code,
            splits=self.splits, progress=progress, test=test, stage_one=stage_one, pretraining=before, began=began,
            fingerprint=fingerprint, device=self.device, wall_seconds=self.clock.seconds,
        )  # fmt: skip
        write_file(self.folder / RECORD_FILE, json.dumps(record, indent=1).encode())
        return model, record

    def _sampler(self, resume: bool) -> tuple[Sampler | None, dict[str, Any]]:
        rehearsal = self.run.model.rehearsal
        if not rehearsal.enabled:
            return None, {}
        if rehearsal.sampler == "random":
            return RandomSampler(), {}
        folder = rehearsal.sampler_from or self.folder
        if rehearsal.sampler_from:
            sampler, facts = load_sampler(folder, self.task.codec)
            # what it took belongs to the run it came from, and is told here, since this one could not do without
            told = {name: value for name, value in facts.items() if name not in ("history", "wall_seconds")}
            return sampler.to(self.device), {"from": folder.name, **told}
        if resume and (folder / SAMPLER_FILE).exists():
            sampler, facts = load_sampler(folder, self.task.codec)
            self.clock.go_on_from(facts.get("wall_seconds", 0.0))
            return sampler.to(self.device), facts
        return self._train_sampler(resume)

    def _train_sampler(self, resume: bool) -> tuple[HistorySampler, dict[str, Any]]:
        torch.manual_seed(self.run.seed)
        sampler = build_sampler(self.run.model, self.task.codec).to(self.device)
        settings = self.run.sampler_train
        with self._log("history sampler", "sampler", settings.steps) as log:
            progress = fit(
                sampler, DirectObjective(sampler), self.split("train"), self._validator(sampler, settings.precision),
                settings, seed=self.run.seed, log=log, checkpoint=self.folder / "sampler-checkpoint.safetensors",
                resume=resume, clock=self.clock, part_errors=self.task.part_errors, part_names=self.task.part_names,
            )  # fmt: skip
        facts = {
            "steps": progress.step,
            "best_step": progress.best_step,
            "score": round(progress.best_score, 4),
            "seconds": round(progress.seconds, 1),
            "wall_seconds": round(self.clock.seconds, 1),
            "seed": self.run.seed,
            "fingerprint": fingerprint_of(sampler),
            "code": self.code,
            "history": progress.history,
        }
        save_sampler(self.folder, sampler, self.run, self.task.codec, facts)
        return sampler.eval().requires_grad_(False), facts

    def _redraw(self, attempt: int) -> dict[str, Tensor]:
        """Initial weights as another seed would have drawn them; the stream of random numbers goes on as it was."""
        with torch.random.fork_rng():
            torch.manual_seed(self.run.seed + 1_000_003 * (attempt - 1))
            return weights_of(build_model(self.run.model, self.task.codec).to(self.device))

    def _take_weights(self, model: Model) -> dict[str, Any]:
        """Start from a trained model's weights where one is named; returns what is known of its training."""
        folder = self.run.model.weights_from
        if folder is None:
            return {}
        trained = load_bundle(folder)
        if trained.codec != self.task.codec:
            raise BadInput(f"The model in {folder} was trained on other items or answers than this task has.")
        own, others = weights_of(model), _without_parts(model, self.run.model.fresh)
        given = weights_of(trained.model) | {name: value for name, value in own.items() if name not in others}
        # a model that does not rehearse has no decoder
        load_weights(model, {n: value for n, value in given.items() if n in own or not n.startswith(FOR_TRAINING)})
        record = folder / RECORD_FILE
        try:
            cost = json.loads(record.read_text())["cost"] if record.exists() else {}
            took = {"steps": cost.get("steps"), "seconds": cost.get("train_seconds")}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{record} is not the record of a run ({error!r}); move it away.") from None
        return {
            "fingerprint": trained.fingerprint, "method": trained.run.method, "seed": trained.run.seed, **took,
        }  # fmt: skip

    def _refuse_pretraining(self, model: Model) -> None:
        able = isinstance(model, MemoryModel) and self.run.model.rehearsal.enabled
        if self.run.pretrain.steps and not (able and self.task.unlabelled):
            raise BadInput(
                f"{self.task.name}/{self.run.method} can't be trained before it answers: that takes streams without "
                "questions and a memory that rehearses; give --pretrain.steps 0."
            )

    def _pretrain(self, model: Model, resume: bool) -> dict[str, Any]:
        """Rehearse the task's streams without questions; chosen by the loss on the validation streams."""
        settings, rehearsal = self.run.pretrain, self.run.model.rehearsal
        if not settings.steps:
            return {}
        assert isinstance(model, MemoryModel)  # or it would have been refused
        assert self.task.unlabelled
        objective = RehearsalObjective(model, rehearsal)

        def validate() -> tuple[float, Metrics]:
            model.eval()
            with torch.no_grad(), torch.random.fork_rng():
                torch.manual_seed(0)
                batches = evaluation_batches(self.split("valid"), settings.batch_size)
                # a stream alone has no other to take replacement items from
                losses = [float(objective(batch)[0]) for batch in batches if len(batch.ids) > 1]
            model.train()
            loss = sum(losses) / len(losses)
            return -loss, {"rehearsal_loss": loss}

        with self._log("rehearsal alone", "pretrain", settings.steps) as log:
            progress = fit(
                model, objective, self.task.unlabelled().to(self.device), validate, settings, seed=self.run.seed,
                log=log, checkpoint=self.folder / "pretrain-checkpoint.safetensors", resume=resume, clock=self.clock,
            )  # fmt: skip
        return {"steps": progress.step, "seconds": round(progress.seconds, 1), "history": progress.history}

    def _validator(self, model: nn.Module, precision: str) -> Callable[[], tuple[float, Metrics]]:
        def validate() -> tuple[float, Metrics]:
            tally = evaluate(model, self.split("valid"), batch_size=self.run.train.batch_size, precision=precision)
            metrics = self.task.metrics(tally)
            return self.task.score(metrics), metrics

        return validate

    def _log(self, title: str, stage: str, steps: int) -> StageLog:
        return StageLog(title, total=steps, folder=self.folder / "tensorboard" / stage, quiet=self.quiet)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two processes would write the same checkpoints; the system lets go when a process ends, however it ends."""
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise BadInput(f"Another process trains in {folder}; wait for it or stop it, or take another folder.") from None
    except OSError:
        pass  # some file systems over a network can't tell
    try:
        yield
    finally:
        os.close(held)


def _without_parts(model: nn.Module, parts: tuple[str, ...]) -> set[str]:
    """Names of all weights but those of some parts of the model."""
    known = [name for name, _ in model.named_children()]
    if strange := [part for part in parts if part not in known]:
        raise BadInput(f"The model has no part {strange[0]!r}; its parts are {', '.join(known)}.")
    return {name for name in weights_of(model) if name.partition(".")[0] not in parts}


def _train_only(model: nn.Module, parts: tuple[str, ...]) -> None:
    """Hold all other parts as they are; without a name, none."""
    others = _without_parts(model, parts) if parts else set()
    for name, parameter in weights_of(model).items():
        parameter.requires_grad_(parameter.requires_grad and name not in others)
