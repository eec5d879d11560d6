"""The ablation of each change from `rm-paper` to `rm`: complete, and one change at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from remem.build import build_sampler
from remem.bundle import fingerprint_of
from remem.data.codec import Codec, IdCodec, TextCodec
from remem.errors import BadInput
from remem.experiments.ablations import ABLATIONS, find_ablation, make_rows
from remem.experiments.presets import PRESETS
from remem.experiments.tables import format_lines
from remem.experiments.variation import leaves
from remem.settings.codec import to_json
from remem.settings.model import ModelSettings, rm_improvements
from remem.settings.run import Run

SIZES = {
    "item_dim", "model_dim", "machine.num_slots", "machine.encoder_layers", "rehearsal.num_fragments",
    "rehearsal.decoder_layers",
}  # fmt: skip
CODECS: dict[str, Codec] = {
    "synthetic-small": IdCodec(segment_len=4, num_items=6, num_queries=3, num_answers=2),
    "babi-small": TextCodec(segment_len=4, words=["a", "b", "c"], answers=["x", "y"]),
}
both_tasks = pytest.mark.parametrize("task", ABLATIONS)


def differing(one: Any, other: Any) -> set[str]:
    before, after = leaves(one), leaves(other)
    return {name for name in before | after if before.get(name) != after.get(name)}


def record(run: Run, seed: int, early: float, valid: dict[int, float]) -> dict[str, Any]:
    figures = {"slot_spread": 1.0, "write_entropy": 0.5, "read_entropy": 0.25}
    return {
        "method": run.method,
        "seed": seed,
        "metrics": {"test": {"early": early, "later": 50.0}},
        "history": [{"step": step, "accuracy": value, **figures} for step, value in valid.items()],
        "config": to_json(replace(run, seed=seed)),
    }


@both_tasks
def test_each_row_undoes_or_adds_one_thing_and_nothing_else(task: str) -> None:
    ablation = ABLATIONS[task]
    runs = ablation.runs()
    for change in ablation.changes:
        assert differing(ablation.rm, runs[change.method]) == {"method", *change.fields}
    for addition in ablation.additions:
        assert differing(ablation.rm, runs[addition.method]) == {"method", addition.field}
    assert len(runs) == len(ablation.changes) + len(ablation.additions) + 8


@both_tasks
def test_the_papers_own_ablations_change_here_what_they_change_at_full_size(task: str) -> None:
    ablation = ABLATIONS[task]
    runs = ablation.runs()
    assert list(runs)[:2] == ["rm", "rm-paper"]
    for method in list(runs)[2:8]:
        assert differing(ablation.rm, runs[method]) == differing(
            PRESETS["synthetic/rm"], PRESETS[f"synthetic/{method}"]
        )


@both_tasks
def test_no_change_from_the_paper_is_without_a_row(task: str) -> None:
    ablation = ABLATIONS[task]
    undone = {field for change in ablation.changes for field in change.fields}
    improved = {f"model.{name}" for name in differing(ModelSettings(), rm_improvements(ModelSettings()))}
    assert improved <= undone
    # the warm-up is part of the recipe that both share
    assert differing(ablation.paper, ablation.rm) == undone - {"train.warmup_steps"} | {"method"}


@both_tasks
def test_rm_paper_is_the_papers_model_at_reduced_sizes(task: str) -> None:
    assert differing(ModelSettings(), ABLATIONS[task].runs()["rm-paper"].model) == SIZES


@both_tasks
def test_the_history_sampler_is_the_same_for_every_row(task: str) -> None:
    prints = set()
    for run in ABLATIONS[task].runs().values():
        torch.manual_seed(0)
        prints.add(fingerprint_of(build_sampler(run.model, CODECS[task])))
    assert len(prints) == 1


def test_other_steps_show_in_the_name() -> None:
    runs = ABLATIONS["synthetic-small"].runs(steps=7)
    assert runs["rm-without-anytime"].method == "rm-without-anytime[train.steps=7]"
    assert {run.train.steps for run in runs.values()} == {7}


def test_rows_hold_means_over_seeds_and_a_few_points_of_the_curve() -> None:
    ablation = ABLATIONS["synthetic-small"]
    runs = ablation.runs()
    curve = {step: float(step) for step in (10, 20, 30, 40, 50, 60, 70, 80)}
    records = [
        record(runs["rm-paper"], 0, 20.0, {80: 21.0}),
        record(runs["rm"], 0, 60.0, curve),
        record(runs["rm"], 1, 70.0, curve),
    ]
    text = format_lines(*make_rows(ablation, list(runs.values()), records), "md")
    lines = text.splitlines()
    assert len(lines) == 4
    assert "| valid accuracy at 20 | valid accuracy at 40 | valid accuracy at 60 | valid accuracy at 80 |" in lines[0]
    assert lines[2].startswith("| rm | 65.0 ± 7.1 | 50.0 ± 0.0 | 20.0 ± 0.0 | 40.0 ± 0.0 |")
    assert lines[3] == "| rm-paper | 20.0 | 50.0 | – | – | – | 21.0 | 1.00 | 0.50 | 0.25 | 1 |"


def test_a_record_of_other_settings_is_refused() -> None:
    ablation = ABLATIONS["synthetic-small"]
    other = replace(ablation.rm, train=replace(ablation.rm.train, learning_rate=0.5))
    with pytest.raises(BadInput, match=r"other settings.*learning_rate=0\.5"):
        make_rows(ablation, [ablation.rm], [record(other, 0, 1.0, {1: 1.0})])


def test_an_unknown_task_is_answered_with_those_there_are() -> None:
    with pytest.raises(BadInput, match="synthetic-small, babi-small"):
        find_ablation("chess")
