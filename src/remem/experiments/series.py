"""Runs one after the other, each made once: one with a record is left out, one that was stopped goes on.

`remem ablate` and `remem sweep` are such series.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remem.errors import BadInput
from remem.experiments.records import publish, read_records
from remem.experiments.variation import check_same, leaves
from remem.settings.bounds import refuse_nonsense
from remem.settings.run import Run

# what a history sampler is made of and trained on; all else may differ between runs that share one
_SAMPLER = ("seed", "task.", "sampler_train.", "model.item_dim", "model.model_dim", "model.embedding.item_std",
            "model.reasoner.match_candidates", "model.reasoner.compare")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Series:
    """Where the runs of a series keep their records and models, and what trains them."""

    results: Path
    """Folder of the records."""
    folder: Path
    """Folder of the models; a history sampler is trained in the first that needs it and shared by all it fits."""
    device: str = "auto"

    def train(self, runs: Sequence[Run], *, only: Sequence[Run] | None = None) -> None:
        """The runs that have no record yet, or those of them that are named; the others may lend a sampler."""
        records = {(r["method"], r["seed"]): r for task in _tasks(runs) for r in read_records(self.results, task)}
        waiting: list[Run] = []
        # all refusals come before anything is spent
        for run in runs:
            refuse_nonsense(run)
            self._check_folder(run)
            record = records.get((run.method, run.seed))
            if record is not None:
                check_same(run, record["config"], f"The record of {run.method}, seed {run.seed},")
            if only is not None and run not in only:
                continue
            if record is not None:
                print(f"{run.method} seed {run.seed}: recorded already, skipped", file=sys.stderr)
                continue
            waiting.append(run)
        started = time.monotonic()
        for number, run in enumerate(waiting):
            left = _left(time.monotonic() - started, number, len(waiting))
            print(f"{run.method} seed {run.seed}: run {number + 1} of {len(waiting)}{left}", file=sys.stderr)
            self._train(self._sharing_sampler(run, runs))

    def _folder(self, run: Run) -> Path:
        return self.folder / f"{run.task.name}-{run.method}-s{run.seed}".replace("/", "_")

    def _check_folder(self, run: Run) -> None:
        folder = self._folder(run)
        path = folder / "config.json"
        if not path.exists():
            return
        try:
            config = json.loads(path.read_text())
        except ValueError as error:  # no JSON, or no text at all
            raise BadInput(f"{path} is damaged ({error}).") from None
        check_same(run, config, str(folder))

    def _sharing_sampler(self, run: Run, runs: Sequence[Run]) -> Run:
        """The run with a history sampler that was trained for another one, if it would train the same."""
        rehearsal = run.model.rehearsal
        if not rehearsal.enabled or rehearsal.sampler != "history" or _has_sampler(self._folder(run)):
            return run
        folders = (self._folder(other) for other in runs if _sampler_of(other) == _sampler_of(run))
        trained = next((folder for folder in folders if _has_sampler(folder)), None)
        if trained is None:
            return run
        return replace(run, model=replace(run.model, rehearsal=replace(rehearsal, sampler_from=trained)))

    def _train(self, run: Run) -> None:
        from remem.training.run import Trainer, pick_device

        # a run that was stopped goes on from its checkpoint
        _, record = Trainer(run, self._folder(run), device=pick_device(self.device)).train(resume=True)
        path = publish(record, self.results)
        print(f"record {path}, {record['cost']['wall_seconds']:.0f} s", file=sys.stderr)


def _tasks(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.task.name for run in runs))


def _has_sampler(folder: Path) -> bool:
    return (folder / "sampler.safetensors").exists()


def _sampler_of(run: Run) -> dict[str, Any]:
    return {name: value for name, value in leaves(run).items() if name.startswith(_SAMPLER)}


def _left(seconds: float, done: int, total: int) -> str:
    """How long the rest will take if it goes on like this; nothing is known before the first run is done."""
    if not done:
        return ""
    left = seconds / done * (total - done)
    return f", about {left:.0f} s left" if left < 120 else f", about {left / 60:.0f} minutes left"
