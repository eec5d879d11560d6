"""`remem sweep` and `remem plot sweep`: trains what has no record, at every value, and shows what the records say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remem.cli.main import main
from remem.experiments.ablations import ABLATIONS, CHANGES, Ablation
from remem.experiments.records import publish, read_records
from remem.experiments.sweeps import make_sweep, methods_of
from remem.settings.codec import to_json
from remem.settings.model import ModelSettings
from remem.settings.run import Run

Captured = pytest.CaptureFixture[str]


def run(*arguments: str | Path) -> int:
    return main([str(a) for a in arguments])


def record(run: Run, accuracy: float) -> dict[str, Any]:
    return {
        "format": 1, "task": run.task.name, "method": run.method, "seed": run.seed, "code": {"commit": "abc"},
        "data": {}, "model": {"fingerprint": f"{accuracy:016.2f}"}, "config": to_json(run),
        "metrics": {"test": {"accuracy": accuracy, "early": accuracy / 2}},
    }  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tiny_run: Run) -> str:
    """A reduced task that trains in a moment; K is 4, N is 4."""
    rm = replace(tiny_run, task=replace(tiny_run.task, name="tiny"), train=replace(tiny_run.train, steps=2))
    paper = replace(rm, method="rm-paper", model=ModelSettings(item_dim=32, model_dim=32))
    ablation = Ablation(rm=rm, paper=paper, changes=CHANGES, test=("early", "later"), curve="accuracy")
    monkeypatch.setitem(ABLATIONS, "tiny", ablation)
    return "tiny"


@pytest.fixture
def swept(tiny: str, here: Path) -> str:
    """Records of rm over K = 2, 4 (its own) and 6, of ct over 4 and 6, and one over N."""
    for seed in (0, 1):
        for number, made in enumerate(make_sweep(tiny, ["K", "2", "4", "6"], ["rm"]).runs(seed)):
            publish(record(made, 10.0 * number + 2 * seed + 50), here / "results" / "sweeps")
    for number, made in enumerate(make_sweep(tiny, ["K", "4", "6"], ["ct"]).runs()):
        publish(record(made, 10.0 * number + 30), here / "results" / "sweeps")
    (of_length,) = make_sweep(tiny, ["N", "3"], ["rm"]).runs()
    publish(record(of_length, 99.0), here / "results" / "sweeps")
    return tiny


def test_each_value_is_trained_once_and_runs_of_equal_data_share_a_sampler(
    tiny: str, here: Path, capsys: Captured
) -> None:
    slots = ["sweep", tiny, "--over", "K", "2", "4", "--methods", "rm", "stm", "--device", "cpu"]
    assert run(*slots) == 0
    shown = capsys.readouterr()
    assert "rm[model.machine.num_slots=2] seed 0: run 1 of 4\n" in shown.err
    assert "stm seed 0: run 4 of 4, about" in shown.err
    made = {r["method"]: r for r in read_records(here / "results" / "sweeps", tiny)}
    assert set(made) == {"rm", "rm[model.machine.num_slots=2]", "stm", "stm[model.machine.num_slots=2]"}
    assert made["stm[model.machine.num_slots=2]"]["config"]["model"]["machine"]["num_slots"] == 2
    assert shown.out.startswith("| memory slots (K): test accuracy | rm, 1 seed | stm, 1 seed |\n| --- |")
    assert run(*slots) == 0
    again = capsys.readouterr()
    assert again.err.count("recorded already, skipped") == 4
    assert again.out == shown.out
    # segments of another length are other data, and its sampler is trained anew
    assert run("sweep", tiny, "--over", "N", "3", "4", "--methods", "rm", "--device", "cpu") == 0
    assert "rm seed 0: run" not in capsys.readouterr().err
    made = {r["method"]: r for r in read_records(here / "results" / "sweeps", tiny)}
    assert made["rm"]["sampler_stage"]["from"] == "tiny-rm[model.machine.num_slots=2]-s0"
    assert "from" not in made["rm[task.segment_len=3]"]["sampler_stage"]


def test_the_table_has_a_row_a_value_and_leaves_other_sweeps_out(swept: str, capsys: Captured) -> None:
    assert run("sweep", swept, "--over", "K", "2", "4", "6", "--methods", "rm", "ct", "--table") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| memory slots (K): test accuracy | rm, 2 seeds | ct, 1 seed |"
    assert lines[2:] == ["| 2 | 51.00 ± 1.41 | – |", "| 4 | 61.00 ± 1.41 | 30.00 |", "| 6 | 71.00 ± 1.41 | 40.00 |"]
    assert (
        run("sweep", swept, "--over", "model.machine.num-slots", "6", "--methods", "rm", "--metric", "early", "--table")
        == 0
    )
    assert capsys.readouterr().out.splitlines()[2:] == ["| 6 | 35.50 ± 0.71 |"]


def test_the_plot_shows_every_value_with_a_record_unless_told(swept: str, here: Path, capsys: Captured) -> None:
    assert run("plot", "sweep", swept, "--over", "K", "--out", "k.svg", "--format", "json") == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in table["rows"]] == [2, 4, 6]
    assert table["seeds"] == {"rm": 2, "ct": 1}
    assert table["rows"][0]["cells"]["ct"]["n"] == 0
    drawn = (here / "k.svg").read_text()
    assert all(f">{word}</text>" in drawn for word in ("rm", "ct", "memory slots (K)", "test accuracy (%)", "6"))
    # the plain run is a point of the other sweep, too
    assert run("plot", "sweep", swept, "--over", "N", "--format", "csv") == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header == "items of a segment (N): test accuracy,rm mean,rm std,rm runs,ct mean,ct std,ct runs"
    assert rows == ["3,99.0,,1,,,0", "4,61.0,1.4142,2,30.0,,1"]


def test_words_are_values_too_and_stand_side_by_side(tiny: str, here: Path) -> None:
    for number, made in enumerate(make_sweep(tiny, ["model.machine.encoder", "transformer", "gru"], ["rm"]).runs()):
        publish(record(made, 40.0 + number), here / "results" / "sweeps")
    assert run("plot", "sweep", tiny, "--over", "model.machine.encoder", "--out", "e.svg") == 0
    assert ">transformer</text>" in (here / "e.svg").read_text()


def test_lists_and_nothing_at_all_are_values_too(tiny: str, here: Path, capsys: Captured) -> None:
    for field, values in (("train.rehearse_for", ("null", "1")), ("train.only", ('["reasoner"]', "[]"))):
        for number, made in enumerate(make_sweep(tiny, [field, *values], ["rm"]).runs()):
            publish(record(made, 40.0 + number), here / "results" / "sweeps")
        assert run("plot", "sweep", tiny, "--over", field) == 0
        assert run("plot", "sweep", tiny, "--over", field, *values, "--format", "csv") == 0
    assert capsys.readouterr().out.count("| None | ") == 1


def test_every_method_of_the_papers_figures_can_be_swept() -> None:
    for task in ("narrativeqa", "activitynetqa", "synthetic-small"):
        runs = make_sweep(task, ["K", "10", "15", "20", "25"], ["rm", "stm", "ct"]).runs()
        assert [to_json(made)["model"]["machine"]["num_slots"] for made in runs] == [10, 15, 20, 25] * 3
        assert len({made.method for made in runs}) == 12
    lengths = make_sweep("activitynetqa", ["N", "10", "15", "20", "25", "30"], ["rm"]).runs()
    assert [made.task.segment_len for made in lengths] == [10, 15, 20, 25, 30]


def test_reduced_rivals_have_the_slots_and_the_schedule_of_rm() -> None:
    rows = methods_of("synthetic-small")
    for method in ("stm", "ct", "dnc"):
        assert to_json(rows[method])["model"]["machine"]["num_slots"] == 8
        assert (rows[method].train, rows[method].task) == (rows["rm"].train, rows["rm"].task)
        assert not rows[method].model.rehearsal.enabled


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chess", "--over", "K", "1"], "no task 'chess'"),
        (["synthetic-small", "--over", "K", "4", "--methods", "luck"], "no method 'luck'"),
        (["synthetic-small", "--over", "K"], "needs values"),
        (["synthetic-small", "--over", "K", "many"], "num_slots is 'many'; expected a value of type int"),
        (["synthetic-small", "--over", "K", "4", "4"], "can't be told apart"),
        (["synthetic-small", "--over", "train.precision", "float32", "bf16"], "can't be told apart"),
        (["synthetic-small", "--over", "task.name", "babi"], "can't be told apart"),
        (["synthetic-small", "--over", "model.machine.num_slotz", "4"], "Nearest: model.machine.num_slots,"),
        (["synthetic-small", "--over", "model.machine", "4"], "has no setting 'model.machine'"),
        # refused before the four slots are trained, which takes minutes
        (["synthetic-small", "--over", "K", "4", "0"], "--model.machine.num-slots is 0; expected at least 1"),
        (["synthetic-small", "--over", "K", "--table"], "no records of synthetic-small over model.machine.num_slots"),
        (["synthetic-small", "--over", "luck", "--table"], "has no setting 'luck'"),
    ],
)
def test_bad_input_gets_a_sentence_and_exit_code_2(
    arguments: list[str], said: str, here: Path, capsys: Captured
) -> None:
    assert run("sweep", *arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not list(here.iterdir())


def test_a_metric_that_is_not_recorded_is_refused(swept: str, capsys: Captured) -> None:
    assert run("plot", "sweep", swept, "--over", "K", "--metric", "luck") == 2
    assert "no test metric 'luck'" in capsys.readouterr().err
