"""Names for runs that differ from their preset, so that no altered run hides in a preset's row."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from remem.errors import BadInput
from remem.settings.codec import from_json, to_json
from remem.settings.model import ModelSettings
from remem.settings.run import Run

MAX_LABEL = 80
# how a run is executed and watched, rather than what it trains
_NEUTRAL = {
    "method", "seed", "task.data", "model.rehearsal.sampler_from",
    *(f"{stage}.{field}" for stage in ("train", "sampler_train", "pretrain") for field in (
        "precision", "capture", "compile", "log_every", "eval_every", "checkpoint_every", "nan_budget",
        "max_seconds")),
}  # fmt: skip
_START = "model.weights_from"


def leaves(value: Any) -> dict[str, Any]:
    """All fields of settings by their dotted name."""
    return _flatten(to_json(value))


def _flatten(value: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, field in value.items():
        if isinstance(field, dict):
            flat |= {f"{name}.{inner}": v for inner, v in _flatten(field).items()}
        elif name != "type":
            flat[name] = field
    return flat


def differences(preset: Run, config: dict[str, Any]) -> dict[str, Any]:
    """What a run's configuration sets otherwise than its preset, but for how it is executed.

    Taken as written, so that an old record is read, too: a setting it does not know yet had its default then, and one
    that is gone since counts if it was switched on.
    """
    before, after = leaves(preset), _flatten(config)
    unknown = before.keys() - after.keys()
    if unknown:
        after |= {name: value for name, value in _defaults(preset).items() if name in unknown}
    if before.get(_START) and after.get(_START):  # that it goes on from trained weights counts, not from which folder
        before[_START] = after[_START]
    # with a focus, what comes next is chosen at every validation
    neutral = _NEUTRAL - {"train.eval_every"} if after.get("train.focus") else _NEUTRAL
    differing = {name: value for name, value in after.items() if name not in neutral and value != before.get(name)}
    return {name: value for name, value in differing.items() if name in before or value}


def _defaults(run: Run) -> dict[str, Any]:
    """All fields of a run of the same kinds of parts, as they are where nobody sets them."""
    return leaves(Run(task=type(run.task)(), model=ModelSettings(machine=type(run.model.machine)())))


def name_variation(preset: Run, run: Run) -> Run:
    """The run itself, its method followed by what differs from the preset: `rm[model.machine.num_slots=10]`.

    Many changes are counted and hashed instead, so that the name still fits a table and a file system.
    """
    if run.method != preset.method:
        return run
    changed = [f"{name}={value}" for name, value in differences(preset, to_json(run)).items()]
    if not changed:
        return run
    label = ",".join(changed).replace(" ", "")
    if len(label) > MAX_LABEL:
        label = f"{len(changed)} changes {hashlib.sha256(label.encode()).hexdigest()[:8]}"
    return replace(run, method=f"{run.method}[{label}]")


def check_same(run: Run, config: dict[str, Any], where: str) -> None:
    """Refuse what was made with other settings: it would be another run under the same name."""
    # the method is what we compare for; what differs is written behind it
    other = name_variation(run, replace(from_json(Run, config), method=run.method))
    if other.method != run.method:
        raise BadInput(
            f"{where} was made with other settings than are asked for now ({other.method}); "
            "move it away, or name another folder."
        )


def with_field(run: Run, name: str, value: Any) -> Run:
    """The run with one setting changed, found by its dotted name; the value is as in JSON."""
    config = to_json(run)
    *path, last = name.split(".")
    inner = config
    for part in path:
        inner = inner.get(part) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or last not in inner or isinstance(inner[last], dict) or last == "type":
        near = get_close_matches(name, leaves(run), n=3, cutoff=0.0)
        raise BadInput(f"{run.task.name}/{run.method} has no setting {name!r}. Nearest: {', '.join(near)}.")
    inner[last] = value
    return from_json(Run, config)
