"""Which change from `rm-paper` to `rm` does what: each undone alone, on two tasks small enough for one CPU core; and
what some tasks have on top of `rm`, each added alone.

The runs are short and the models small: a wide gap is a lead, a narrow one is noise. On `babi-small` even a wide gap
says little for one seed: it may only be how long that run stayed on its first plateau.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from remem.errors import BadInput
from remem.experiments.models import PAPER, RM, RM_TEXT, small
from remem.experiments.presets import family
from remem.experiments.records import Record
from remem.experiments.rivals import reduced, rivals
from remem.experiments.tables import spread
from remem.experiments.variation import check_same, leaves, name_variation, with_field
from remem.settings.run import Run, TrainSettings
from remem.settings.tasks import BabiTask, SyntheticTask

FIGURES = ("slot_spread", "write_entropy", "read_entropy")
CURVE_POINTS = 4


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that `rm` has and this row lacks."""

    name: str
    """Row of the table: `rm-without-NAME`."""
    fields: tuple[str, ...]
    """What it sets, by the dotted names of a run's settings."""

    @property
    def method(self) -> str:
        """The row's name."""
        return f"rm-without-{self.name}"


@dataclass(frozen=True, kw_only=True)
class Addition:
    """One thing that `rm` lacks and this row has."""

    name: str
    """Row of the table: `rm-with-NAME`."""
    field: str
    """What it sets, by the dotted name of a run's setting."""
    value: Any

    @property
    def method(self) -> str:
        """The row's name."""
        return f"rm-with-{self.name}"


CHANGES = (
    Change(name="pre-norm", fields=("model.pre_norm",)),
    Change(name="learned-positions", fields=("model.embedding.position",)),
    Change(name="aligned-gain", fields=("model.machine.aligned_gain",)),
    Change(name="write-score-gain", fields=("model.machine.write_score_gain",)),
    Change(name="slot-identity", fields=("model.machine.slot_identity",)),
    Change(name="read-score-gain", fields=("model.reasoner.read_score_gain",)),
    Change(name="reasoner-read-norm", fields=("model.reasoner.read_norm",)),
    Change(name="scaled-recall", fields=("model.rehearsal.scaled_recall",)),
    Change(name="decoder-read-norm", fields=("model.rehearsal.read_norm",)),
    Change(name="anytime", fields=("model.rehearsal.anytime",)),
    Change(name="warm-up", fields=("train.warmup_steps",)),
)
# what the short stories need on top (see RM_TEXT)
TEXT_CHANGES = (
    Change(name="tied-words", fields=("model.reasoner.tie_query_words",)),
    Change(name="dropout", fields=("model.machine.dropout",)),
    Change(
        name="light-rehearsal",
        fields=("model.rehearsal.recollection_weight", "model.rehearsal.familiarity_weight"),
    ),
)


ADDITIONS = (Addition(name="recent", field="model.machine.recent", value=4),)
TEXT_ADDITIONS = (Addition(name="asks", field="model.rehearsal.ask_weight", value=1.0),)


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """A reduced task with its `rm` and `rm-paper`, the changes between them, and what else `rm` may have."""

    rm: Run
    paper: Run
    changes: tuple[Change, ...]
    additions: tuple[Addition, ...] = ()
    test: tuple[str, ...]
    """Test metrics of the table, in percent."""
    curve: str
    """Validation metric of the table's learning curve."""

    def runs(self, steps: int | None = None) -> dict[str, Run]:
        """Every row by its own name, in the order of the table; other steps show in a run's method."""
        others = [row for row in family(self.paper, self.rm.model) if row.method != self.rm.method]
        rows = [self.rm, *others, *(undo(self.rm, change) for change in self.changes)]
        rows += [replace(with_field(self.rm, a.field, a.value), method=a.method) for a in self.additions]
        if steps is None:
            return {row.method: row for row in rows}
        return {row.method: name_variation(row, replace(row, train=replace(row.train, steps=steps))) for row in rows}

    def rivals(self) -> dict[str, Run]:
        """The methods the paper compares with, at sizes as reduced as those of `rm`, for `remem sweep`."""
        sized = reduced(leaves(self.rm)["model.machine.num_slots"], self.rm.model.item_dim)
        return {run.method: run for run in rivals(self.rm, self.rm.model, sized)}


def undo(rm: Run, change: Change) -> Run:
    """`rm` without one change: its fields get their defaults, which are the paper's plain form and no warm-up."""
    plain = leaves(Run(task=rm.task))
    for field in change.fields:
        rm = with_field(rm, field, plain[field])
    return replace(rm, method=change.method)


# Sizes were chosen by the validation score of `rm` alone, on seed 0: well above chance, and not yet at its best.
_SYNTHETIC = Run(
    method="rm-paper",
    task=SyntheticTask(
        name="synthetic-small",
        num_groups=5,
        num_facts=100,
        stream_len=50,
        num_queries=5,
        num_answers=5,
        evidence_len=3,
        samples_per_chain=400,
        eval_samples_per_chain=20,
        segment_len=10,
    ),
    model=small(PAPER, 48),
    train=TrainSettings(
        steps=600,
        batch_size=32,
        learning_rate=2e-3,
        schedule="cosine",
        warmup_steps=75,
        eval_every=150,
        checkpoint_every=150,
    ),
    sampler_train=TrainSettings(steps=300, batch_size=256, learning_rate=2e-3, eval_every=300),
)
_BABI = Run(
    method="rm-paper",
    task=BabiTask(name="babi-small", tasks=(1, 11)),
    model=small(PAPER, 64),
    train=TrainSettings(
        steps=1440,
        batch_size=32,
        learning_rate=2e-3,
        schedule="cosine",
        warmup_steps=30,
        eval_every=180,
        checkpoint_every=180,
    ),
    sampler_train=TrainSettings(steps=100, batch_size=64, learning_rate=2e-3, eval_every=100),
)
ABLATIONS: dict[str, Ablation] = {
    "synthetic-small": Ablation(
        rm=replace(_SYNTHETIC, method="rm", model=small(RM, 48)),
        paper=_SYNTHETIC,
        changes=CHANGES,
        additions=ADDITIONS,
        test=("early", "later"),
        curve="accuracy",
    ),
    "babi-small": Ablation(
        rm=replace(_BABI, method="rm", model=small(RM_TEXT, 64)),
        paper=_BABI,
        changes=CHANGES + TEXT_CHANGES,
        additions=ADDITIONS + TEXT_ADDITIONS,
        test=("error", "qa1", "qa11"),
        curve="error",
    ),
}


def find_ablation(task: str) -> Ablation:
    """The ablation of a task; an unknown one is answered with those there are."""
    if task not in ABLATIONS:
        raise BadInput(f"There is no ablation of {task!r}. There are: {', '.join(ABLATIONS)}.")
    return ABLATIONS[task]


def make_rows(ablation: Ablation, runs: list[Run], records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Header and cells, a row for each method with a record: test, validation curve, and the use of the slots."""
    groups: dict[str, list[Record]] = {}
    for run in runs:
        for record in records:
            if record["method"] == run.method:
                check_same(run, record["config"], f"The record of {run.method}, seed {record['seed']},")
                groups.setdefault(run.method, []).append(record)
    steps = _curve_steps([point["step"] for group in groups.values() for r in group for point in r["history"]])
    header = ["method", *(f"test {metric}" for metric in ablation.test)]
    header += [f"valid {ablation.curve} at {step}" for step in steps]
    header += [*(name.replace("_", " ") for name in FIGURES), "seeds"]
    return header, [[method, *_cells(ablation, group, steps), str(len(group))] for method, group in groups.items()]


def _cells(ablation: Ablation, group: list[Record], steps: list[int]) -> list[str]:
    cells = [_number([r["metrics"]["test"][metric] for r in group]) for metric in ablation.test]
    for step in steps:
        points = [point for r in group for point in r["history"] if point["step"] == step]
        cells.append(_number([point[ablation.curve] for point in points]))
    return cells + [_number([r["history"][-1][name] for r in group], places=2) for name in FIGURES]


def _curve_steps(steps: list[int]) -> list[int]:
    """A few of the steps, evenly spaced, the last among them."""
    every = sorted(set(steps))
    count = min(CURVE_POINTS, len(every))
    return [every[(i + 1) * len(every) // count - 1] for i in range(count)]


def _number(values: list[float], places: int = 1) -> str:
    both = spread(values)
    if both["mean"] is None:
        return "–"
    return f"{both['mean']:.{places}f}" + ("" if both["std"] is None else f" ± {both['std']:.{places}f}")
