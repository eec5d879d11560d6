"""`remem train TASK/METHOD`: one run of a preset, its flags made from the preset's own settings."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import tyro

from remem.cli.outputs import require_writable
from remem.cli.side_by_side import train_side_by_side
from remem.data.manifest import check_prepared
from remem.errors import BadInput
from remem.experiments.presets import PRESETS, find_preset, list_presets
from remem.experiments.variation import name_variation
from remem.settings.bounds import refuse_nonsense
from remem.settings.codec import from_json
from remem.settings.model import ModelSettings
from remem.settings.run import Run, TrainSettings
from remem.settings.tasks import Task

HELP = """usage: remem train TASK/METHOD [TASK/METHOD ...] [--seed 0 1 2 [--at-once 3]] [OPTIONS]
       remem train --from FOLDER      repeat a run with the configuration in its folder
       remem train --resume FOLDER    go on with a run that was stopped

presets, METHOD by TASK:
{presets}

`remem train TASK/METHOD --help` lists every setting of that preset with its paper's symbol and value."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train a preset; each flag below changes one of its settings."""

    seed: tuple[int, ...]
    """Seeds, one run each."""
    method: str
    """Row of the table; a changed setting is added to it by itself."""
    out: Path | None = None
    """Folder of the run, or of several; by default runs/TASK-METHOD-sSEED."""
    results: Path = Path("results")
    """Where the record goes, for `remem table`."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    at_once: int = 1
    """Runs that are trained side by side, a process each; a GPU is shared by NVIDIA's MPS, where that is there."""
    task: Task
    model: ModelSettings
    train: TrainSettings
    sampler_train: TrainSettings
    """Stage one: the history sampler, trained by itself and then frozen."""
    pretrain: TrainSettings
    """Before the model learns to answer: rehearsal alone, on streams without questions; 0 steps leave it out."""

    def runs(self, preset: Run) -> list[Run]:
        """One run for each seed, named after what differs from the preset; no run goes by the name of another."""
        if self.task.name != preset.task.name:
            raise BadInput(
                f"--task.name {self.task.name}: a task's name stands in records and tables, and this one is "
                f"{preset.task.name}; take a preset of the other task instead."
            )
        if self.method != preset.method and f"{self.task.name}/{self.method}" in PRESETS:
            raise BadInput(
                f"--method {self.method} is the name of another preset; train that by `remem train "
                f"{self.task.name}/{self.method}`, or give this row a name of its own."
            )
        if not self.seed or len(set(self.seed)) < len(self.seed):
            raise BadInput(
                f"--seed {' '.join(map(str, self.seed)) or 'names none'}: give each seed once, at least one."
            )
        changed = Run(
            method=self.method,
            task=self.task,
            model=self.model,
            train=self.train,
            sampler_train=self.sampler_train,
            pretrain=self.pretrain,
        )
        return [name_variation(preset, replace(changed, seed=seed)) for seed in self.seed]


def main(argv: list[str]) -> None:
    """Parse, train, write the record."""
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP.format(presets=list_presets()))
        return
    if argv[0] in ("--from", "--resume"):
        if len(argv) < 2:
            raise BadInput(f"{argv[0]} needs the folder of a run.")
        _again(Path(argv[1]), argv[2:], resume=argv[0] == "--resume")
        return
    names = list(takewhile(lambda word: not word.startswith("-"), argv)) or argv[:1]
    presets = {name: find_preset(name) for name in names}
    given = [parse(preset, argv[len(names) :], f"remem train {name}") for name, preset in presets.items()]
    options = given[0]
    if len(presets) > 1 and options.method != presets[names[0]].method:
        raise BadInput(f"--method {options.method} names one row, but {len(presets)} presets are to be trained.")
    rows = [each.runs(preset) for each, preset in zip(given, presets.values(), strict=True)]
    # every method has its first seed before any has its second
    runs = [run for of_a_seed in zip(*rows, strict=True) for run in of_a_seed]
    folders = [_folder(options, run, alone=len(runs) == 1, several=len(presets) > 1) for run in runs]
    _refuse_used(folders)
    require_writable(options.results, folder=True)
    if options.at_once < 1:
        raise BadInput(f"--at-once {options.at_once}: give the number of runs that may go on side by side, 1 or more.")
    for run in runs:
        refuse_nonsense(run)
    for task in {run.task.name: run.task for run in runs}.values():
        check_prepared(task)  # before torch is loaded, which takes seconds
    if options.at_once > 1 and len(runs) > 1:
        train_side_by_side(runs, folders, at_once=options.at_once, device=options.device, results=options.results)
        return
    for run, folder in zip(runs, folders, strict=True):
        _train(run, folder, options, resume=False)


def parse(preset: Run, argv: list[str], prog: str) -> Options:
    """The preset's settings, with the flags applied."""
    default = Options(
        seed=(preset.seed,),
        method=preset.method,
        task=preset.task,
        model=preset.model,
        train=preset.train,
        sampler_train=preset.sampler_train,
        pretrain=preset.pretrain,
    )
    config = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)
    return tyro.cli(Options, args=argv, prog=prog, default=default, config=config)


def _folder(options: Options, run: Run, *, alone: bool, several: bool) -> Path:
    whole = f"{run.task.name}-{run.method}-s{run.seed}".replace("/", "_")
    if options.out is None:
        return Path("runs") / whole
    return options.out if alone else options.out / (whole if several else f"s{run.seed}")


def _refuse_used(folders: list[Path]) -> None:
    """Never train over an earlier run; said before anything is spent."""
    for folder in folders:
        require_writable(folder, folder=True)
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
        config = json.loads(path.read_text())
    except ValueError as error:  # no JSON, or no text at all
        raise BadInput(f"{path} is damaged ({error}).") from None
    run = from_json(Run, config)
    options = parse(run, argv, f"remem train {'--resume' if resume else '--from'} {folder}")
    if resume:
        if options != replace(parse(run, [], ""), device=options.device, results=options.results):
            raise BadInput(
                f"{' '.join(argv)}: a run goes on as it began, with no other option than --device and --results; for "
                f"other settings begin anew by `remem train --from {folder} --out FOLDER`."
            )
        _train(run, folder, options, resume=True)
        return
    if len(options.seed) > 1 or options.at_once != 1:
        raise BadInput(f"{' '.join(argv)}: --from repeats one run; give one seed, and no --at-once.")
    named = folder if folder.name not in ("", "..") else folder.resolve()  # `--from .`
    target = options.out or named.with_name(named.name + "-again")
    _refuse_used([target])
    _train(options.runs(run)[0], target, options, resume=False)


def _train(run: Run, folder: Path, options: Options, *, resume: bool) -> None:
    check_prepared(run.task)  # before torch is loaded, which takes seconds
    from remem.experiments.records import publish
    from remem.training.run import Trainer, pick_device

    _, record = Trainer(run, folder, device=pick_device(options.device)).train(resume=resume)
    path = publish(record, options.results)
    metrics = ", ".join(f"{k} {v:.2f}" for k, v in record["metrics"]["test"].items() if not k.startswith("qa"))
    print(f"{run.task.name}/{run.method} seed {run.seed}: test {metrics}")
    print(f"model {folder}, record {path}", file=sys.stderr)
