"""`remem train TASK/METHOD`: one run of a preset, its flags made from the preset's own settings."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from remem.errors import BadInput
from remem.experiments.presets import PRESETS, find_preset
from remem.settings.codec import from_json
from remem.settings.run import Run

HELP = """usage: remem train TASK/METHOD [--seed 0 1 2] [OPTIONS]
       remem train --from FOLDER      repeat a run with the configuration in its folder
       remem train --resume FOLDER    go on with a run that was stopped

presets: {presets}

`remem train TASK/METHOD --help` lists every setting of that preset with its paper's symbol and value."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train a preset; each flag below changes one of its settings."""

    seed: tuple[int, ...] = (0,)
    """Seeds, one run each."""
    out: Path | None = None
    """Folder of the run; by default runs/TASK-METHOD-sSEED."""
    results: Path = Path("results")
    """Where the record goes, for `remem table`."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    run: Annotated[tyro.conf.OmitArgPrefixes[Run], tyro.conf.arg(name="")]


def main(argv: list[str]) -> None:
    """Parse, train, write the record."""
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP.format(presets=", ".join(PRESETS)))
        return
    if argv[0] in ("--from", "--resume"):
        if len(argv) < 2:
            raise BadInput(f"{argv[0]} needs the folder of a run.")
        _again(Path(argv[1]), argv[2:], resume=argv[0] == "--resume")
        return
    preset = find_preset(argv[0])
    options = _parse(preset, argv[1:], f"remem train {argv[0]}")
    _check_folders(preset, options)
    from remem.experiments.variation import name_variation

    for seed in options.seed:
        run = name_variation(preset, replace(options.run, seed=seed))
        _train(run, _folder(options, run), options, resume=False)


def _parse(preset: Run, argv: list[str], prog: str) -> Options:
    config = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff, tyro.conf.SuppressFixed)
    return tyro.cli(Options, args=argv, prog=prog, default=Options(run=preset, seed=(preset.seed,)), config=config)


def _folder(options: Options, run: Run) -> Path:
    name = f"{run.task.name}-{run.method}-s{run.seed}".replace("/", "_")
    if options.out is None:
        return Path("runs") / name
    return options.out if len(options.seed) == 1 else options.out / f"s{run.seed}"


def _check_folders(preset: Run, options: Options) -> None:
    """Refuse to train over an earlier run before anything is spent."""
    for seed in options.seed:
        folder = _folder(options, replace(options.run, seed=seed))
        if (folder / "config.json").exists():
            raise BadInput(
                f"{folder} already holds a run; go on with it by `remem train --resume {folder}`, "
                "or choose another folder with --out."
            )


def _again(folder: Path, argv: list[str], *, resume: bool) -> None:
    path = folder / "config.json"
    if not path.exists():
        raise BadInput(f"{folder} holds no run: there is no config.json in it.")
    try:
        run = from_json(Run, json.loads(path.read_text()))
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is damaged ({error}).") from None
    options = _parse(run, argv, "remem train")
    if resume:
        _train(run, options.out or folder, options, resume=True)
        return
    _check_folders(run, replace(options, out=options.out or folder.with_name(folder.name + "-again")))
    _train(options.run, options.out or folder.with_name(folder.name + "-again"), options, resume=False)


def _train(run: Run, folder: Path, options: Options, *, resume: bool) -> None:
    from remem.experiments.records import publish
    from remem.training.run import Trainer, pick_device

    _, record = Trainer(run, folder, device=pick_device(options.device)).train(resume=resume)
    path = publish(record, options.results)
    metrics = ", ".join(f"{k} {v:.2f}" for k, v in record["metrics"]["test"].items() if not k.startswith("qa"))
    print(f"{run.task.name}/{run.method} seed {run.seed}: test {metrics}")
    print(f"model {folder}, record {path}", file=sys.stderr)
