"""The JSON record of a run: all that is needed to believe a number, or to make it again."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from remem.data.dataset import Split
from remem.header import RECORD_FORMAT
from remem.model.assembly import FOR_TRAINING, MemoryModel
from remem.settings.codec import to_json
from remem.settings.run import Run
from remem.tasks.base import Tally, Task, plain
from remem.training.checkpoint import Progress
from remem.training.query_cost import query_cost


def make_record(
    run: Run,
    task: Task,
    model: nn.Module,
    *,
    code: dict[str, Any],
    splits: dict[str, Split],
    progress: Progress,
    test: Tally,
    stage_one: dict[str, Any],
    pretraining: dict[str, Any],
    began: dict[str, Any],
    fingerprint: str,
    device: torch.device,
    wall_seconds: float,
) -> dict[str, Any]:
    """Configuration, code, data, results and cost of one run."""
    chosen = next((h for h in progress.history if h["step"] == progress.best_step), {})
    here = whereabouts(device)
    trained = progress.made_on or here
    moved = {"tested_on": here} if here["device"] != trained["device"] else {}
    return {
        "format": RECORD_FORMAT,
        "task": task.name,
        "method": run.method,
        "seed": run.seed,
        "made": now(),
        "code": code,
        "versions": trained["versions"],
        "device": trained["device"],
        **moved,
        "data": {
            "fingerprint": {name: split.fingerprint() for name, split in sorted(splits.items())},
            "streams": {name: len(split) for name, split in sorted(splits.items())},
            "sources": task.sources,
        },
        "model": {
            "fingerprint": fingerprint,
            "params": sum(p.numel() for p in model.parameters()),
            "params_to_answer": sum(p.numel() for n, p in model.named_parameters() if not n.startswith(FOR_TRAINING)),
            "state_floats": state_floats(model) if isinstance(model, MemoryModel) else None,
        },
        "metrics": {"valid": chosen, "test": rounded(task.metrics(test)), "beside": rounded(task.beside())},
        "test_by_age": _by_age(test.ages),
        "test_by_age_of": {task.part_names[part]: _by_age(ages) for part, ages in sorted(test.part_ages.items())},
        "history": progress.history,
        "sampler_stage": stage_one,
        **({"pretraining": pretraining} if pretraining else {}),
        **({"began_from": began} if began else {}),
        "cost": {
            "steps": progress.step,
            "best_step": progress.best_step,
            "skipped_steps": progress.skipped,
            **({"lead_tries": progress.tries} if run.train.lead_tries > 1 else {}),
            "train_seconds": round(progress.seconds, 1),
            "wall_seconds": round(wall_seconds, 1),
            "peak_memory_mb": trained["peak_memory_mb"],
            "query": query_cost(model, splits["test"], precision=run.train.precision)._asdict(),
        },
        "config": to_json(run),
    }


def _by_age(ages: dict[int, tuple[float, int]]) -> list[list[float]]:
    return [[age, plain(right), total] for age, (right, total) in sorted(ages.items())]


def state_floats(model: MemoryModel) -> int:
    """Numbers kept per stream."""
    return sum(value[0].numel() for value in model.initial_state(1))


def rounded(metrics: dict[str, float]) -> dict[str, float]:
    """Four places are more than any test set supports."""
    return {name: round(value, 4) for name, value in metrics.items()}


def now() -> str:
    """Date and time of a record."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """What the code ran on."""
    return {"python": platform.python_version(), "torch": torch.__version__}


def whereabouts(device: torch.device) -> dict[str, Any]:
    """The device by name, what the code runs on there, and the most memory it has held so far."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return {"device": name, "versions": versions(), "peak_memory_mb": peak_memory_mb(device)}


def code_version() -> dict[str, Any]:
    """The commit this code is at: $REMEM_COMMIT where it is set, else of the checkout it runs from, else the release.

    The variable comes first: a copy of a tree may carry a repository that stands at another commit. What it says can't
    be checked, so nothing is claimed of changes since.
    """
    version = importlib.metadata.version("remem") if _is_installed() else None
    if told := os.environ.get("REMEM_COMMIT"):
        return {"version": version, "commit": told, "commit_from": "environment", "dirty": None}
    source = Path(__file__).resolve().parents[3]
    commit = _git(source, "rev-parse", "HEAD") if (source / ".git").exists() else ""
    if commit:
        dirty = bool(_git(source, "status", "--porcelain", "--untracked-files=no"))
        return {"version": version, "commit": commit, "dirty": dirty}
    released = f"v{version}" if version else None
    return {"version": version, "commit": released, "dirty": False}


def _is_installed() -> bool:
    try:
        importlib.metadata.version("remem")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def peak_memory_mb(device: torch.device) -> int:
    """The most memory the run held: on the GPU if it ran there, else of the process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if platform.system() == "Darwin" else 2**10))
