"""`remem ablate`: trains what has no record, shares the history sampler, and prints the table from records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remem.cli.main import main
from remem.experiments.ablations import ABLATIONS, CHANGES, Ablation
from remem.experiments.records import publish, read_records
from remem.settings.codec import to_json
from remem.settings.model import ModelSettings
from remem.settings.run import Run

Captured = pytest.CaptureFixture[str]


def run(*arguments: str | Path) -> int:
    return main(["ablate", *(str(a) for a in arguments)])


def record(run: Run, value: float) -> dict[str, Any]:
    figures = {"slot_spread": 1.0, "write_entropy": 0.5, "read_entropy": 0.25}
    return {
        "format": 1, "task": run.task.name, "method": run.method, "seed": run.seed, "code": {"commit": "abc"},
        "data": {}, "model": {"fingerprint": "0" * 16}, "config": to_json(run),
        "metrics": {"test": {"error": value, "qa1": value, "qa11": value}},
        "history": [{"step": 60, "error": value, **figures}],
    }  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REMEM_DATA", raising=False)
    return tmp_path


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tiny_run: Run) -> str:
    """An ablation that trains in a moment."""
    rm = replace(tiny_run, task=replace(tiny_run.task, name="tiny"), train=replace(tiny_run.train, warmup_steps=2))
    paper = replace(rm, method="rm-paper", model=ModelSettings(item_dim=32, model_dim=32))
    ablation = Ablation(rm=rm, paper=paper, changes=CHANGES, test=("early", "later"), curve="accuracy")
    monkeypatch.setitem(ABLATIONS, "tiny", ablation)
    return "tiny"


def test_what_is_recorded_is_skipped_and_the_table_printed(here: Path, capsys: Captured) -> None:
    for number, row in enumerate(ABLATIONS["babi-small"].runs().values()):
        publish(record(row, float(number)), here / "results")
    # neither trains: there is no data here
    assert run("babi-small") == 0
    shown = capsys.readouterr()
    assert shown.err.count("recorded already, skipped") == len(ABLATIONS["babi-small"].runs())
    assert "| rm-paper | 1.0 | 1.0 | 1.0 | 1.0 | 1.00 | 0.50 | 0.25 | 1 |" in shown.out
    assert run("babi-small", "--table") == 0
    assert capsys.readouterr() == (shown.out, "")


def test_runs_share_one_sampler_and_are_made_once(tiny: str, here: Path, capsys: Captured) -> None:
    chosen = ["--steps", "2", "--only", "rm", "rm-no-rehearsal", "rm-without-warm-up", "--device", "cpu"]
    assert run(tiny, *chosen) == 0
    made = {r["method"]: r for r in read_records(here / "results", tiny)}
    assert list(made) == [f"{m}[train.steps=2]" for m in ("rm-no-rehearsal", "rm-without-warm-up", "rm")]
    assert made["rm[train.steps=2]"]["sampler_stage"]["steps"] == 6
    shared = made["rm-without-warm-up[train.steps=2]"]["sampler_stage"]
    assert (shared["from"], shared["steps"]) == ("tiny-rm[train.steps=2]-s0", 6)
    assert len(list(here.rglob("sampler.safetensors"))) == 1
    capsys.readouterr()
    assert run(tiny, *chosen) == 0
    shown = capsys.readouterr()
    assert shown.err.count("skipped") == 3
    assert "run 1 of" not in shown.err
    assert len(shown.out.splitlines()) == 5


def test_a_stopped_run_goes_on_and_another_one_is_not_trained_over(tiny: str, here: Path, capsys: Captured) -> None:
    chosen = ["--only", "rm-no-rehearsal", "--device", "cpu"]
    assert run(tiny, *chosen) == 0
    next((here / "results" / tiny).rglob("*.json")).unlink()
    capsys.readouterr()
    assert run(tiny, *chosen) == 0
    assert "going on from step 12" in capsys.readouterr().err
    config = here / "runs" / "ablate" / "tiny-rm-no-rehearsal-s0" / "config.json"
    changed = json.loads(config.read_text())
    changed["train"]["learning_rate"] = 0.5
    config.write_text(json.dumps(changed))
    assert run(tiny, *chosen) == 2
    assert "learning_rate=0.5" in capsys.readouterr().err
    config.write_text("{")
    assert run(tiny, *chosen) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chess"], "no ablation of 'chess'"),
        (["synthetic-small", "--only", "rm-without-luck"], "no row 'rm-without-luck'"),
        (["synthetic-small", "--steps", "0"], "at least 1"),
        (["synthetic-small", "--table"], "no records of this ablation"),
        (["babi-small"], "remem data import"),
    ],
)
def test_bad_input_gets_a_sentence_and_exit_code_2(
    arguments: list[str], said: str, here: Path, capsys: Captured
) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
