"""Tables of trials and of equal steps: what a run changed, as its record says, old records among them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remem.errors import BadInput
from remem.experiments.presets import PRESETS
from remem.experiments.trials import (
    find_runs,
    format_parts_after,
    format_rehearsed,
    format_steps,
    format_trials,
    format_variants,
    named_after,
)
from remem.experiments.variation import differences
from remem.settings.codec import to_json
from remem.settings.model import without_rehearsal
from remem.settings.run import Run

RM = PRESETS["babi/rm-plain"]


def write(results: Path, folder: str, run: Run, error: float, *, steps: int = 35_000, **changes: Any) -> None:
    """A made-up record of a run on bAbI."""
    record = {
        "format": 1, "task": "babi", "method": Path(folder).name, "seed": run.seed, "code": {"commit": "abc"},
        "data": {"streams": {"train": 100}}, "model": {},
        "metrics": {"test": {"error": error, "failed_tasks": 2.0}},
        "cost": {"steps": steps, "train_seconds": 10.0}, "config": to_json(run), **changes,
    }  # fmt: skip
    path = results / folder / f"seed{run.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


def rows(table: str) -> list[str]:
    return table.splitlines()[2:]


def test_a_trials_row_says_what_it_changed_and_the_best_comes_first(tmp_path: Path) -> None:
    faster = replace(RM, method="fast", train=replace(RM.train, learning_rate=2e-3, max_seconds=9.0))
    write(tmp_path, "trials/babi/fast", faster, 4.0, steps=1000)
    write(tmp_path, "babi/rm", RM, 5.0)
    write(tmp_path, "babi/rm", replace(RM, seed=1), 7.0)
    write(tmp_path, "babi/dnc", replace(RM, method="dnc"), 1.0)
    write(tmp_path, "trials/babi/plain", replace(RM, model=without_rehearsal(RM.model)), 9.0)
    assert rows(format_trials(tmp_path, "babi")) == [
        "| `trials/babi/fast` | learning_rate 0.002 | 1,000 of 35,000 † | 4.00 | 2 |",
        "| `babi/rm` | nothing | 35,000 of 35,000 | 5.00, 7.00 | 2, 2 |",
        "| `trials/babi/plain` | no rehearsal | 35,000 of 35,000 | 9.00 | 2 |",
    ]


def test_runs_on_some_tasks_have_a_table_of_their_own_with_the_streams_they_add(tmp_path: Path) -> None:
    alone = replace(RM, task=replace(RM.task, tasks=(16,)))  # type: ignore[call-arg]
    write(tmp_path, "trials/babi/task16", replace(alone, train=replace(RM.train, steps=9)), 50.0, steps=9)
    write(tmp_path, "trials/babi/task16-more", alone, 40.0, data={"streams": {"train": 600}})
    write(tmp_path, "babi/rm", RM, 5.0)
    assert rows(format_trials(tmp_path, "babi", parts=(16,))) == [
        "| `trials/babi/task16-more` | 600 training streams for 100 | 35,000 of 35,000 | 40.00 |",
        "| `trials/babi/task16` | the number of steps | 9 of 9 | 50.00 |",
    ]
    assert len(rows(format_trials(tmp_path, "babi"))) == 1


def test_a_run_on_fewer_streams_than_others_says_so_and_the_others_do_not(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path, f"trials/babi/{name}", RM, 5.0)
    write(tmp_path, "trials/babi/part", RM, 9.0, data={"streams": {"train": 60}})
    told = {row.split(" | ")[0].strip("| `"): row.split(" | ")[1] for row in rows(format_trials(tmp_path, "babi"))}
    assert told["trials/babi/part"] == "60 training streams for 100"
    assert told["trials/babi/one"] == told["trials/babi/two"] == "nothing"


def test_runs_on_some_tasks_are_compared_task_by_task_after_equal_steps(tmp_path: Path) -> None:
    some = replace(RM, task=replace(RM.task, tasks=(1, 16)))  # type: ignore[call-arg]

    def history(*steps: int) -> list[dict[str, float]]:
        return [{"step": step, "error": 5000 / step, "qa1": step / 100, "qa16": 50.0} for step in steps]

    write(tmp_path, "trials/babi/slow", some, 40.0, history=history(500, 1000))
    write(tmp_path, "trials/babi/fast", some, 40.0, history=[{"step": 500, "error": 1.0, "qa1": 0.25, "qa16": 2.0}])
    write(tmp_path, "babi/rm", RM, 5.0, history=history(500))
    assert rows(format_parts_after(tmp_path, "babi", 500, (1, 16))) == [
        "| `trials/babi/fast` | 0.2 | 2.0 |",
        "| `trials/babi/slow` | 5.0 | 50.0 |",
    ]
    assert rows(format_parts_after(tmp_path, "babi", 1000, (1, 16))) == ["| `trials/babi/slow` | 10.0 | 50.0 |"]
    with pytest.raises(BadInput, match="validated after 7 steps"):
        format_parts_after(tmp_path, "babi", 7, (1, 16))


def test_a_record_from_before_a_setting_or_with_one_that_is_gone_is_read() -> None:
    config = to_json(RM)
    del config["model"]["reasoner"]["slot_layers"]
    config["model"]["machine"]["match"] = False
    assert differences(RM, config) == {}
    config["model"]["machine"]["match"] = True
    assert differences(RM, config) == {"model.machine.match": True}
    # what its preset has since switched on was off
    now = replace(RM, model=replace(RM.model, reasoner=replace(RM.model.reasoner, slot_layers=2)))
    assert differences(now, config) == {"model.machine.match": True, "model.reasoner.slot_layers": 0}


def test_a_trial_stands_beside_the_preset_it_is_named_after(tmp_path: Path) -> None:
    tests = {"metrics": {"test": {"mrr": 30.0}}}
    rm, blind = PRESETS["narrativeqa/rm-no-rehearsal"], PRESETS["narrativeqa/blind"]
    slower = replace(rm, train=replace(rm.train, learning_rate=1e-4))
    write(tmp_path, "narrativeqa/rm-no-rehearsal", rm, 0.0, steps=400, metrics={"test": {"mrr": 31.0}})
    write(tmp_path, "trials/narrativeqa/rm-no-rehearsal-slow", slower, 0.0, steps=400, **tests)
    write(tmp_path, "trials/narrativeqa/blind-repeated", blind, 0.0, steps=400, **tests)
    assert rows(format_variants(tmp_path, "narrativeqa")) == [
        "| `trials/narrativeqa/blind-repeated` | nothing | 400 of 800 | 30.00 | – |",
        "| `trials/narrativeqa/rm-no-rehearsal-slow` | learning_rate 0.0001 | 400 of 800 | 30.00 | 31.00 |",
    ]
    # evidence early and later in the stream together
    halves = {"metrics": {"test": {"early": 10.0, "later": 30.0, "accuracy": 20.0}}}
    apart = PRESETS["synthetic-short/dnc"]
    apart = replace(apart, task=replace(apart.task, apart=True))  # type: ignore[call-arg]
    write(tmp_path, "trials/synthetic-short/dnc-apart", apart, 0.0, steps=3000, **halves)
    assert rows(format_variants(tmp_path, "synthetic-short")) == [
        "| `trials/synthetic-short/dnc-apart` | apart True | 3,000 of 3,000 | 20.00 | – |",
    ]
    with pytest.raises(BadInput, match="'rms' of narrativeqa is named after no method"):
        named_after("narrativeqa", "rms")


def test_memories_that_rehearse_stand_beside_themselves_without(tmp_path: Path) -> None:
    reached = {
        "rm": 94.0,
        "rm-no-rehearsal": 26.0,
        "dnc": 65.0,
        "dnc-rehearsal": 99.0,
        "stm": 7.0,
        "ct-rehearsal": 14.0,
    }
    for method, value in reached.items():
        run = PRESETS[f"synthetic-short/{method}"]
        write(tmp_path, f"synthetic-short/{method}", run, 0.0, metrics={"test": {"accuracy": value}})
    again = replace(PRESETS["synthetic-short/dnc"], seed=1)
    write(tmp_path, "synthetic-short/dnc", again, 0.0, metrics={"test": {"accuracy": 25.0}})
    # one that has no other half is left out
    assert rows(format_rehearsed(tmp_path, "synthetic-short")) == [
        "| `dnc` | 45.0 (65.0, 25.0) | 99.0 (99.0) |",
        "| `rm` | 26.0 (26.0) | 94.0 (94.0) |",
    ]


def test_figures_after_equal_steps_have_each_run_by_itself_and_its_end(tmp_path: Path) -> None:
    for folder, seed, curve in (
        ("synthetic/rm", 0, {1000: 4.0, 2000: 80.0}),
        ("synthetic/rm", 1, {1000: 5.0, 1500: 6.0}),
        ("synthetic/dnc", 0, {900: 3.0}),
    ):
        history = [{"step": step, "accuracy": value} for step, value in curve.items()]
        write(tmp_path, folder, replace(PRESETS["synthetic/rm"], seed=seed), 0.0, history=history)
    assert rows(format_steps(tmp_path, "synthetic", ["rm", "dnc"])) == [
        "| 1,000 | 4.0, 5.0 | – |",
        "| 2,000 | 80.0 | – |",
        "| last (steps) | 80.0 (2,000), 6.0 (1,500) | 3.0 (900) |",
    ]
    errors = [{"step": step, "error": 50.0 - step / 100} for step in (1300, 2600)]
    write(tmp_path, "babi/rm", PRESETS["babi/rm"], 5.0, history=errors)
    assert rows(format_steps(tmp_path, "babi", ["rm"])) == [
        "| 1,300 | 37.0 |",
        "| 2,600 | 24.0 |",
        "| last (steps) | 24.0 (2,600) |",
    ]
    with pytest.raises(BadInput, match="no records of synthetic/stm"):
        format_steps(tmp_path, "synthetic", ["stm"])


def test_trials_are_compared_after_equal_steps_too_at_those_of_the_first(tmp_path: Path) -> None:
    often = replace(RM, train=replace(RM.train, eval_every=100))
    for name in ("with", "without"):
        history = [{"step": step, "error": 40.0 if name == "without" else 20.0} for step in (100, 200)]
        write(tmp_path, f"trials/babi/{name}", often, 5.0, history=history)
    assert format_steps(tmp_path, "babi", ["trials/with", "trials/without"]).splitlines() == [
        "| steps | with | without |",
        "| --- | ---: | ---: |",
        "| 100 | 20.0 | 40.0 |",
        "| 200 | 20.0 | 40.0 |",
        "| last (steps) | 20.0 (200) | 40.0 (200) |",
    ]
    with pytest.raises(BadInput, match="no records of trials/babi/other"):
        format_steps(tmp_path, "babi", ["trials/other"])


def test_a_run_without_rehearsal_still_says_that_its_stories_ask_by_themselves(tmp_path: Path) -> None:
    silent = replace(RM, model=without_rehearsal(RM.model))
    asking = replace(silent, model=replace(silent.model, rehearsal=replace(silent.model.rehearsal, ask_weight=1.0)))
    write(tmp_path, "trials/babi/silent", silent, 6.0)
    write(tmp_path, "trials/babi/asking", asking, 5.0)
    told = [row.split(" | ")[1] for row in rows(format_trials(tmp_path, "babi"))]
    assert "no rehearsal, rehearsal.ask_weight 1.0" in told[0]
    assert "no rehearsal" in told[1]
    assert "ask_weight" not in told[1]


def test_runs_are_found_by_their_folder(tmp_path: Path) -> None:
    write(tmp_path, "babi/rm", RM, 5.0)
    write(tmp_path, "trials/babi/x", RM, 5.0)
    assert list(find_runs(tmp_path, "babi")) == ["babi/rm", "trials/babi/x"]
