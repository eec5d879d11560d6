"""What no setting can be: a number out of its range is refused with a sentence before anything is spent on it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

from remem.errors import BadInput
from remem.settings.run import Run
from remem.settings.tasks import Task

# whole numbers are counts of at least one, but for those of which there may be none
_MAY_BE_ZERO = {
    "steps", "warmup_steps", "lead_steps", "patience", "nan_budget", "rehearse_for", "encoder_layers", "slot_layers",
    "turns", "recent", "exchanges", "questions", "stand_ins", "gaps", "fold", "least_count", "negatives", "along",
}  # fmt: skip
_NOT_NEGATIVE = re.compile(r"(_weight|_std)$|^(learning_rate|epsilon|weight_decay|focus|focus_streams|max_seconds)$")
_SHARES = re.compile(r"_ratio$|^(momentum|last_rate|time_noise|reproduced)$")
_SEEDS = 2**63  # torch takes no larger ones


def refuse_nonsense(settings: Run | Task, of: str = "") -> None:
    """Say which number of a run, or of a part of it, is out of its range, and what was expected."""
    for name, value in _numbers(of, settings):
        if expected := _refused(name.rpartition(".")[2], value):
            raise BadInput(f"--{name.replace('_', '-')} is {value}; expected {expected}.")


def _numbers(name: str, value: Any) -> Iterator[tuple[str, int | float]]:
    """Every number of some settings, by its dotted name."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            given = getattr(value, field.name)
            if field.type == "float" and type(given) is int:  # a dropout of 0 is no count
                given = float(given)
            yield from _numbers(f"{name}.{field.name}".lstrip("."), given)
    elif isinstance(value, tuple):
        for each in value:
            yield from _numbers(name, each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def _refused(field: str, value: int | float) -> str:
    """What was expected instead; nothing where the value will do."""
    if field in ("seed", "data_seed"):
        return "" if abs(value) < _SEEDS else "a whole number below 2^63"
    if isinstance(value, int):
        least = 0 if field in _MAY_BE_ZERO else 1
        return "" if value >= least else f"at least {least}"
    if field == "clip_norm":  # infinity clips nothing
        return "" if value > 0 else "a number above 0"
    if field == "beta2" or field.endswith("dropout"):  # who drops everything learns nothing
        return "" if 0 <= value < 1 else "a share from 0 to 1, but not 1"
    if _SHARES.search(field):
        return "" if 0 <= value <= 1 else "a share from 0 to 1"
    if _NOT_NEGATIVE.search(field):
        return "" if 0 <= value < math.inf else "a number from 0 up"
    return "" if math.isfinite(value) else "a finite number"
