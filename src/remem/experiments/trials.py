"""Runs that are no preset: what each changed, what came of it, and how far methods are after equal steps."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, multimode
from typing import Any

from remem.errors import BadInput
from remem.experiments.presets import PRESETS, find_preset
from remem.experiments.records import Record, read_record
from remem.experiments.sweeps import main_metric
from remem.experiments.tables import cut_short, format_lines, spread
from remem.experiments.variation import differences

TRIALS = "trials"  # folder in results/ of all runs that are no row of a table
WATCHED = "watched"  # and of those that have no test
_NO_REHEARSAL = {"model.rehearsal.recollection_weight", "model.rehearsal.familiarity_weight"}
_ASKS = {"model.rehearsal.ask_weight", "model.rehearsal.asks"}  # of the reasoner, not of the decoder
_IN_OTHER_COLUMNS = {"task.tasks", "train.steps"}
Group = list[Record]


def folder_of(task: str, method: str) -> Path:
    """Where in results/ the records of a method are, or of a trial, which is named `trials/NAME`."""
    return Path(TRIALS, task, Path(method).name) if method.startswith(f"{TRIALS}/") else Path(task, method)


def find_runs(results: Path, task: str) -> dict[str, Group]:
    """All runs of a task by folder: those of the tables as `TASK/METHOD`, the others as `trials/TASK/METHOD`."""
    found: dict[str, Group] = {}
    for path in [*sorted((results / task).rglob("*.json")), *sorted((results / TRIALS / task).rglob("*.json"))]:
        found.setdefault(path.parent.relative_to(results).as_posix(), []).append(read_record(path))
    return found


def format_rehearsed(results: Path, task: str) -> str:
    """Every memory that was trained to rehearse beside itself without it: the mean, and each run; best first."""
    metric = main_metric(task)
    found = {folder.removeprefix(f"{task}/"): group for folder, group in find_runs(results, task).items()}
    others = [name.removesuffix("-rehearsal") for name in found if name.endswith("-rehearsal")]
    pairs = {"rm": ("rm-no-rehearsal", "rm")} | {name: (name, f"{name}-rehearsal") for name in others}
    rows = []
    for memory, (without, rehearsing) in pairs.items():
        if without in found and rehearsing in found:
            values = [[r["metrics"]["test"][metric] for r in found[name]] for name in (without, rehearsing)]
            cells = [f"{fmean(each):.1f} ({', '.join(f'{value:.1f}' for value in each)})" for each in values]
            rows.append((-fmean(values[1]), [f"`{memory}`", *cells]))
    header = ["memory", f"nothing rehearsed: test {metric} (%)", "with rehearsal"]
    return format_lines(header, [cells for _, cells in sorted(rows)], "md")


def format_trials(results: Path, task: str, *, parts: tuple[int, ...] | None = None) -> str:
    """A row for every family of `rm` and every trial, best first: what it changed, its steps and what it reached.

    Args:
        parts: bAbI only. None takes the runs on all twenty tasks; else those on these tasks alone.
    """
    metric, best_first = ("error", 1) if task == "babi" else ("accuracy", -1)
    name = f"{task}/rm-plain" if f"{task}/rm-plain" in PRESETS else f"{task}/rm"
    base = PRESETS[name]
    chosen = {folder: group for folder, group in find_runs(results, task).items() if _is_asked(folder, group, parts)}
    usual = min(multimode(group[0]["data"]["streams"]["train"] for group in chosen.values()), default=0)
    rows = []
    for folder, group in chosen.items():
        values = [r["metrics"]["test"][metric] for r in group]
        changed = _told(differences(base, group[0]["config"]), group[0]["data"]["streams"]["train"], usual)
        cells = [f"`{folder}`", changed, _steps(group), ", ".join(f"{value:.2f}" for value in values)]
        if task == "babi" and parts is None:
            cells.append(", ".join(f"{r['metrics']['test']['failed_tasks']:.0f}" for r in group))
        rows.append((best_first * (spread(values)["mean"] or 0.0), folder, cells))
    header = ["run", f"differs from `{name}` by", "steps", f"test {metric} (%)"]
    if task == "babi" and parts is None:
        header.append("tasks above 5 %")
    return format_lines(header, [cells for *_, cells in sorted(rows, key=lambda row: row[:2])], "md", words=2)


def format_variants(results: Path, task: str) -> str:
    """A row for every trial of a task beside the preset it is named after: what it changed, and what both reached."""
    metric = main_metric(task)
    rows = []
    for folder, group in find_runs(results, task).items():
        if not folder.startswith(TRIALS):
            continue
        method = named_after(task, Path(folder).name)
        preset = [read_record(path) for path in sorted((results / task / method).glob("*.json"))]
        changed = differences(PRESETS[f"{task}/{method}"], group[0]["config"])
        changed = {name: value for name, value in changed.items() if not name.startswith("sampler_train.")}
        values, own = ([r["metrics"]["test"][metric] for r in each] for each in (group, preset))
        told = [", ".join(f"{value:.2f}" for value in each) or "–" for each in (values, own)]
        rows.append([f"`{folder}`", _told(changed, 0, 0), _steps(group), *told])
    header = ["run", "differs from the preset by", "steps", f"test {metric} (%)", "the preset's"]
    return format_lines(header, rows, "md", words=2)


def named_after(task: str, name: str) -> str:
    """The method with the longest name that a trial's begins with."""
    known = [m for preset in PRESETS for t, m in [preset.split("/")] if t == task and f"{name}-".startswith(f"{m}-")]
    if not known:
        raise BadInput(
            f"The trial {name!r} of {task} is named after no method; begin its name with one of its presets."
        )
    return max(known, key=len)


def _is_asked(folder: str, group: Group, parts: tuple[int, ...] | None) -> bool:
    tasks = group[0]["config"]["task"].get("tasks")
    if tasks is not None and (list(parts) != tasks if parts else len(tasks) < 20):
        return False
    return folder.startswith(TRIALS) or Path(folder).name.startswith("rm")


def _told(changed: dict[str, Any], streams: int, usual: int) -> str:
    """Changes as one cell: `name value`; rehearsal that weighs nothing and other training stories are said in words."""
    longer = "train.steps" in changed
    changed = {name: value for name, value in changed.items() if name not in _IN_OTHER_COLUMNS}
    words = []
    if all(changed.get(name) == 0 for name in _NO_REHEARSAL):
        words.append("no rehearsal")
        decoder = [name for name in changed if name.startswith("model.rehearsal.") and name not in _ASKS]
        changed = {name: value for name, value in changed.items() if name not in decoder}
    words += [f"{name.split('.', 1)[1]} {value}" for name, value in changed.items()]
    if streams != usual:
        words.append(f"{streams:,} training streams for {usual:,}")
    return ", ".join(words) or ("the number of steps" if longer else "nothing")


def _steps(group: Group) -> str:
    done = "–".join(f"{n:,}" for n in dict.fromkeys((min(_done(group)), max(_done(group)))))
    planned = group[0]["config"]["train"]["steps"]
    return f"{done} of {planned:,}" + (" †" if any(map(cut_short, group)) else "")


def _done(group: Group) -> list[int]:
    return [r["cost"]["steps"] for r in group]


def format_steps(results: Path, task: str, methods: list[str]) -> str:
    """Validation figures after equal steps, each run's own, and at the end: a column for each method or `trials/NAME`.

    The steps are those at which the first of them is validated.
    """
    runs: dict[str, Group] = {}
    for method in methods:
        folder, name = folder_of(task, method), Path(method).name
        if folder.parts[0] != TRIALS:
            find_preset(f"{task}/{method}")
        runs[name] = [read_record(path) for path in sorted((results / folder).glob("*.json"))]
        if not runs[name]:
            raise BadInput(f"There are no records of {folder} in {results}.")
    metric, every = main_metric(task), next(iter(runs.values()))[0]["config"]["train"]["eval_every"]
    curves = {m: [{h["step"]: h[metric] for h in r["history"]} for r in group] for m, group in runs.items()}
    most = max(step for group in curves.values() for curve in group for step in curve)
    rows = []
    for step in range(every, most + 1, every):
        cells = [", ".join(f"{c[step]:.1f}" for c in group if step in c) or "–" for group in curves.values()]
        rows.append([f"{step:,}", *cells])
    ends = [", ".join(f"{c[max(c)]:.1f} ({max(c):,})" for c in group) for group in curves.values()]
    return format_lines(["steps", *runs], [*rows, ["last (steps)", *ends]], "md")


def format_parts_after(results: Path, task: str, step: int, parts: tuple[int, ...]) -> str:
    """What each run on these tasks of bAbI alone had wrong after so many steps, task by task; best first."""
    rows = []
    for folder, group in find_runs(results, task).items():
        if not _is_asked(folder, group, parts):
            continue
        after = [h for record in group for h in record["history"] if h["step"] == step]
        if after:
            cells = [", ".join(f"{h[f'qa{part}']:.1f}" for h in after) for part in parts]
            rows.append((sum(h["error"] for h in after) / len(after), [f"`{folder}`", *cells]))
    if not rows:
        raise BadInput(f"No run on tasks {parts} of {task} in {results} was validated after {step} steps.")
    header = [f"after {step:,} steps", *(f"task {part}" for part in parts)]
    return format_lines(header, [cells for _, cells in sorted(rows)], "md")


def format_watched(results: Path, name: str, step: int, parts: tuple[int, ...]) -> str:
    """Runs that were stopped before their tests: validation errors after so many steps, and where each was left."""
    watched = json.loads((results / WATCHED / f"{name}.json").read_text())
    rows = []
    for run in watched["runs"]:
        curve = {point["step"]: point for point in run["history"]}
        shown = [f"{curve[step][metric]:.1f}" for metric in ("error", *(f"qa{part}" for part in parts))]
        left = f"{curve[run['steps']]['error']:.1f} ({run['steps']:,})"
        rows.append([run["name"], str(run["seed"]), *shown, left])
    header = [f"after {step:,} steps", "seed", "valid error", *(f"task {part}" for part in parts), "last (steps)"]
    return format_lines(header, rows, "md")
