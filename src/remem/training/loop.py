"""The training loop: every method, every task and both stages go through `fit`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from remem.bundle import load_weights, weights_of
from remem.data.dataset import Split, training_batches
from remem.data.focus import focused_batches
from remem.errors import BadInput, RememError
from remem.settings.run import TrainSettings
from remem.tasks.base import Metrics
from remem.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from remem.training.log import StageLog
from remem.training.objective import Logs
from remem.training.optimizer import forget
from remem.training.record import whereabouts
from remem.training.step import Objective, Step, make_step

Redraw = Callable[[int], dict[str, Tensor]]  # initial weights of a second, third, ... try
PartErrors = Callable[[Metrics], dict[int, float]]  # by the number of the part, in percent


class TrainingDiverged(RememError):
    """Too many steps had a non-finite loss or gradient; says where, and on which streams."""


class Clock:
    """Seconds of a whole run; one that was stopped goes on from what its last checkpoint says."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._before = 0.0

    @property
    def seconds(self) -> float:
        """Of this process and those before it."""
        return self._before + time.perf_counter() - self._started

    def go_on_from(self, seconds: float) -> None:
        """Take in what earlier processes took; each stage tells it, and the last one knows most."""
        self._before = max(self._before, seconds)


class Missed:
    """How wrong the answers about each training stream were of late, as steps note it, and as it was known when the
    batches of this turn were drawn: a run that was stopped within a turn draws them again."""

    def __init__(self, now: Tensor) -> None:
        self.now, self.at_turn, self.turn = now, now.clone(), -1

    def at(self, turn: int) -> Tensor:
        """What the batches of a turn are drawn by."""
        if turn != self.turn:
            self.at_turn, self.turn = self.now.clone(), turn
        return self.at_turn

    def tensors(self) -> dict[str, Tensor]:
        """All of it, for a checkpoint."""
        return {"missed": self.now, "missed_at_turn": self.at_turn, "turn": torch.tensor(self.turn)}

    def go_on_from(self, tensors: dict[str, Tensor]) -> None:
        """Put it back; the steps go on noting into the same tensor."""
        self.now.copy_(tensors["missed"])
        self.at_turn, self.turn = tensors["missed_at_turn"].to(self.now.device), int(tensors["turn"])


def learning_rate(settings: TrainSettings, step: int, began: int = 0) -> float:
    """Linear warm-up from where the weights were drawn, then constant, or a cosine down to its last share of it."""
    warm = min(1.0, (step - began + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0
    if settings.schedule == "constant":
        return settings.learning_rate * warm
    warmed_up = began + settings.warmup_steps
    done = max(0, step - warmed_up) / max(1, settings.steps - warmed_up)
    left = (1 + math.cos(math.pi * min(1.0, done))) / 2
    return settings.learning_rate * warm * (settings.last_rate + (1 - settings.last_rate) * left)


def fit(
    model: nn.Module,
    objective: Objective,
    train: Split,
    validate: Callable[[], tuple[float, Metrics]],
    settings: TrainSettings,
    *,
    seed: int,
    log: StageLog,
    checkpoint: Path | None = None,
    resume: bool = False,
    clock: Clock | None = None,
    part_errors: PartErrors | None = None,
    part_names: tuple[str, ...] = (),
    redraw: Redraw | None = None,
    stop_rehearsing: Callable[[], None] | None = None,
) -> Progress:
    """Train a model and leave it with the weights that were best on validation."""
    clock = clock or Clock()
    step = make_step(model, objective, train, settings)
    progress, best = Progress(), {name: value.detach().clone() for name, value in weights_of(model).items()}
    missed = Missed(step.missed) if settings.focus_streams else None
    if resume and checkpoint is not None and checkpoint.exists():
        progress, best, streams = load_checkpoint(checkpoint, model, step.optimizer)
        if missed is not None and streams:
            missed.go_on_from(streams)
        clock.go_on_from(progress.wall_seconds)
        log.note(f"{log.title}: going on from step {progress.step}")
    started = time.perf_counter() - progress.seconds
    skipped_before = progress.skipped
    batches = _batches(train, settings, seed, progress, part_errors, part_names, missed)
    model.train()
    stop = _has_ended(progress, settings)
    while progress.step < settings.steps and not stop:
        out_of_time = 0 < settings.max_seconds <= progress.seconds
        if stop_rehearsing and _has_rehearsed(progress.history, settings, progress.began, progress.step):
            stop_rehearsing()
            step.renew()
            log.note(f"{log.title}: nothing is rehearsed after step {progress.step}")
            stop_rehearsing = None
        step(*next(batches), learning_rate(settings, progress.step, progress.began))
        progress.step += 1
        log.step(progress.step)
        time_to_log = progress.step % settings.log_every == 0 or progress.step in (1, settings.steps)
        if time_to_log or not step.waits:
            progress.skipped = skipped_before + step.skipped()
            _check_finite(progress, step, settings)
        if time_to_log:
            log.scalars(progress.step, {name: float(value) for name, value in step.logs.items()})
        if progress.step % settings.eval_every == 0 or progress.step == settings.steps or out_of_time:
            score, metrics = validate()
            best = _take_score(progress, model, score, metrics, step.logs, best)
            log.validation(progress.step, metrics, best=progress.best_step == progress.step)
            stop = out_of_time or (settings.patience > 0 and progress.stale >= settings.patience)
            if not stop and redraw is not None and _lead_has_failed(progress, settings):
                progress.began, progress.tries = progress.step, progress.tries + 1
                load_weights(model, redraw(progress.tries))
                forget(step.optimizer)
                log.note(f"{log.title}: the lead begins anew at step {progress.step}, with other weights")
        progress.seconds, progress.wall_seconds = time.perf_counter() - started, clock.seconds
        if stop or progress.step == settings.steps or progress.step % settings.checkpoint_every == 0:
            progress.made_on = whereabouts(next(model.parameters()).device)
            if checkpoint is not None:
                save_checkpoint(checkpoint, model, best, step.optimizer, progress, missed.tensors() if missed else {})
    load_weights(model, best)
    return progress


def _has_ended(progress: Progress, settings: TrainSettings) -> bool:
    """Whether a run had made its last step when it was stopped: then only its test is missing."""
    out_of_time = 0 < settings.max_seconds <= progress.seconds
    validated = bool(progress.history) and progress.history[-1]["step"] == progress.step
    return (out_of_time and validated) or (settings.patience > 0 and progress.stale >= settings.patience)


def _leading(history: list[Metrics], settings: TrainSettings, began: int, step: int) -> list[str]:
    """Parts that are trained on alone at a step: those of the lead's stage and of those before; none once it is over.

    A stage is over at the first validation that finds all parts so far learned, or the first after `lead_steps`.
    """
    return next((parts for parts, end in _lead(history, settings, began) if step < end), [])


def _lead(history: list[Metrics], settings: TrainSettings, began: int) -> Iterator[tuple[list[str], int]]:
    """Each stage of the lead: what is trained on alone, and the step it ends at, or at the latest will."""
    start, parts = began, list[str]()
    for stage in _stages(settings):
        parts = parts + stage
        turns = math.ceil(settings.lead_steps / settings.eval_every)
        found = _found(history, parts, settings, start)
        start = min(start + turns * settings.eval_every, found or sys.maxsize)
        yield parts, start


def _has_rehearsed(history: list[Metrics], settings: TrainSettings, began: int, step: int) -> bool:
    """Whether the steps with rehearsal are over at a step."""
    if settings.rehearse_for is None:
        return False
    lead_ends = [end for _, end in _lead(history, settings, began)]
    return step >= (lead_ends[-1] if lead_ends else began) + settings.rehearse_for


def _stages(settings: TrainSettings) -> list[list[str]]:
    return [stage.split("+") for stage in settings.lead]


def _found(history: list[Metrics], parts: list[str], settings: TrainSettings, after: int) -> int | None:
    """The first validation after a step that finds all of some parts learned."""
    seen = (metrics for metrics in history if metrics["step"] > after)
    return next((int(m["step"]) for m in seen if all(m[name] <= settings.lead_until for name in parts)), None)


def _lead_has_failed(progress: Progress, settings: TrainSettings) -> bool:
    """Whether the steps of the first stage are used up before its parts are learned, and it may begin once more."""
    used_up = progress.step - progress.began >= settings.lead_steps > 0 and progress.step < settings.steps
    if not used_up or progress.tries >= settings.lead_tries:
        return False
    return _found(progress.history, _stages(settings)[0], settings, progress.began) is None


def refuse_focus(
    train: Split, settings: TrainSettings, part_errors: PartErrors | None, part_names: tuple[str, ...]
) -> None:
    """Say what of the focus, or of the lead, this task or these settings have no use for."""
    if settings.lead and not settings.focus:
        raise BadInput(
            f"Parts that come first ({', '.join(settings.lead)}) need a focus above 0, by which others follow."
        )
    if settings.focus_streams and not settings.focus:
        raise BadInput(
            f"Streams that were missed come more often ({settings.focus_streams:g}) only with a focus above 0; "
            "give --train.focus 10, or --train.focus-streams 0."
        )
    if not 0 < settings.lead_share <= 1:
        raise BadInput(
            f"Parts that come first can't have {settings.lead_share:g} of the streams; give a share above 0, up to 1."
        )
    if not settings.focus:
        return
    if part_errors is None:
        raise BadInput("This task has no parts whose errors are told apart, so nothing to focus on; give a focus of 0.")
    present = {part_names[part] for bucket in train.buckets for part in bucket.query.part[:, 0].unique().tolist()}
    strange = [name for stage in _stages(settings) for name in stage if name not in present]
    if strange:
        known = ", ".join(name for name in part_names if name in present)
        raise BadInput(f"There is no part {strange[0]!r} to begin with; what is trained on has {known}.")


def _batches(
    train: Split,
    settings: TrainSettings,
    seed: int,
    progress: Progress,
    part_errors: PartErrors | None,
    part_names: tuple[str, ...],
    missed: Missed | None,
) -> Iterator[tuple[int, Tensor]]:
    """Endless (bucket, rows) from where the run stands; what is focused on changes with every validation."""
    refuse_focus(train, settings, part_errors, part_names)
    if not settings.focus:
        yield from training_batches(train, settings.batch_size, seed, progress.step)
    assert part_errors is not None  # or it would have been refused
    while True:
        turn, skip = divmod(progress.step, settings.eval_every)
        start = turn * settings.eval_every
        # a run that was stopped may have been validated in the middle of a turn
        seen = [metrics for metrics in progress.history if metrics["step"] <= start]
        errors = part_errors(seen[-1]) if seen else {}
        leading = _leading(seen, settings, progress.began, start)
        stays = settings.lead_stays and not _has_rehearsed(seen, settings, progress.began, start)
        stay = _stages(settings)[0] if settings.lead and stays else []
        first, always = ([part_names.index(name) for name in names] for names in (leading, stay))
        yield from focused_batches(
            train, errors, settings.focus, settings.batch_size, settings.eval_every, seed, turn,
            first=first, share=settings.lead_share, always=always, brevity=settings.focus_brevity,
            missed=None if missed is None else missed.at(turn).cpu().numpy(), focus_streams=settings.focus_streams,
        )[skip:]  # fmt: skip


def _take_score(
    progress: Progress, model: nn.Module, score: float, metrics: Metrics, logs: Logs, best: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Note a validation, and keep the weights if it is the best so far."""
    figures = {name: round(float(value), 5) for name, value in logs.items()}
    progress.history.append({"step": progress.step, **{k: round(v, 4) for k, v in metrics.items()}, **figures})
    if score > progress.best_score:
        progress.best_score, progress.best_step, progress.stale = score, progress.step, 0
        return {name: value.detach().clone() for name, value in weights_of(model).items()}
    progress.stale += 1
    return best


def _check_finite(progress: Progress, step: Step, settings: TrainSettings) -> None:
    if progress.skipped > settings.nan_budget:
        raise TrainingDiverged(
            f"Step {progress.step}: loss {float(step.logs['loss']):g}, "
            f"gradient norm {float(step.logs['gradient_norm']):g}; "
            f"{progress.skipped} updates were not finite and left out, {settings.nan_budget} are allowed. "
            f"Streams of the batch: {step.batch_ids[:16].tolist()}. "
            "The last checkpoint is kept; begin anew with a lower learning rate, by "
            "`remem train --from FOLDER --train.learning-rate RATE`."
        )
