"""`remem plot`: what it draws, that it draws the same bytes twice, and how it refuses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from test_forgetting import run, write

from remem.experiments.forgetting import make_forgetting
from remem.experiments.plots import COLOURS, FAILED_ABOVE, curves, draw_curves, draw_forgetting, draw_parts, draw_sweep
from remem.experiments.records import read_record
from remem.experiments.tables import Runs, make_parts
from remem.tasks import babi

RESULTS = Path(__file__).resolve().parents[2] / "results"
LONG = "rm[train.learning_rate=0.002,task.name=$a_b$]"  # a dollar sign is no formula here


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with records of two methods for synthetic, and of one for babi."""
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write("synthetic", "rm", seed)
        write("babi", "rm", seed)
    write("synthetic", LONG, 0)
    return tmp_path


def words(path: Path) -> list[str]:
    return re.findall(r">([^<>\n]+)</text>", path.read_text())


VERBS = [["forgetting", "synthetic"], ["curves", "synthetic"], ["tasks", "babi"]]


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v[0])
@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_the_same_records_give_the_same_bytes(verb: list[str], suffix: str, here: Path) -> None:
    assert run("plot", *verb, "--out", f"a.{suffix}") == 0
    assert run("plot", *verb, "--out", f"new/folder/b.{suffix.upper()}") == 0
    first, second = (here / f"a.{suffix}").read_bytes(), (here / f"new/folder/b.{suffix.upper()}").read_bytes()
    assert len(first) > 2000
    assert first == second
    assert b"<dc:date>" not in first
    assert b"CreationDate" not in first


def test_other_records_give_other_bytes(here: Path) -> None:
    assert run("plot", "forgetting", "synthetic", "--out", "a.svg") == 0
    write("synthetic", "rm", 0, test_by_age=[[0, 9, 10], [3, 6, 10]])
    assert run("plot", "forgetting", "synthetic", "--out", "b.svg") == 0
    assert (here / "a.svg").read_bytes() != (here / "b.svg").read_bytes()


def test_forgetting_names_its_methods_axes_and_task(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plot", "forgetting", "synthetic", "--out", "a.svg", "--bin-width", "2") == 0
    shown = words(here / "a.svg")
    assert {"rm", LONG, "test accuracy (%)", "Accuracy by age of the evidence: synthetic"} <= set(shown)
    assert "age of the evidence (segments read since, in bins of 2)" in shown
    output = capsys.readouterr()
    assert "| 0–1 | 85.00 ± 7.07 (20) | 90.00 (10) |" in output.out
    assert output.err == "drawn in a.svg\n"


def runs_of(*paths: Path) -> Runs:
    grouped: Runs = {}
    for path in paths:
        record = read_record(path)
        grouped.setdefault(record["method"], []).append((path, record))
    return grouped


def test_the_line_is_the_mean_and_the_band_one_deviation_wide(here: Path) -> None:
    runs = runs_of(*sorted((here / "results/synthetic").rglob("*.json")))
    axes = draw_forgetting(make_forgetting("synthetic", runs)).axes[0]
    lines = {line.get_color(): line.get_xydata().tolist() for line in axes.lines}
    assert lines[COLOURS[0]] == [[0.0, 85.0], [3.0, 50.0]]
    assert lines[COLOURS[1]] == [[0.0, 90.0], [3.0, 50.0]]
    (band,) = axes.collections  # one seed alone has none
    at_zero = sorted({y for x, y in band.get_paths()[0].vertices.tolist() if x == 0})
    assert at_zero == pytest.approx([85 - 50**0.5, 85 + 50**0.5])


@pytest.mark.parametrize(("right", "window"), [(0, (-1, 19)), (50, (40, 60)), (100, (81, 101))])
def test_a_flat_line_is_not_blown_up(right: int, window: tuple[float, float], here: Path) -> None:
    path = write("synthetic", "rm", 0, test_by_age=[[0, right, 100], [1, right, 100]])
    axes = draw_forgetting(make_forgetting("synthetic", runs_of(path))).axes[0]
    assert axes.get_ylim() == pytest.approx(window)


def test_an_age_that_hardly_a_question_is_about_is_not_drawn_unless_there_is_no_other(here: Path) -> None:
    for ages, drawn in (([[0, 90, 100], [4, 5, 10], [9, 0, 1]], [0, 4]), ([[0, 1, 2], [4, 1, 1]], [0])):
        path = write("synthetic", "rm", 0, test_by_age=ages)
        axes = draw_forgetting(make_forgetting("synthetic", runs_of(path))).axes[0]
        assert [line.get_xdata().tolist() for line in axes.lines] == [drawn]


def test_the_axis_of_a_sweep_ends_where_a_share_does_however_wide_the_band() -> None:
    cells = [{"rm": {"mean": mean, "std": 40.0, "n": 3}} for mean in (95.0, 10.0)]
    rows = [{"value": value, "cells": cell} for value, cell in enumerate(cells)]
    table = {"rows": rows, "seeds": {"rm": 3}, "label": "K", "metric": "accuracy", "task": "synthetic"}
    assert draw_sweep(table).axes[0].get_ylim() == (-1.0, 101.0)


def test_curves_have_a_panel_a_metric_and_a_line_a_run(here: Path) -> None:
    paths = sorted((here / "results/synthetic").rglob("*.json"))
    figure = draw_curves("synthetic", runs_of(*paths))
    titles = ["validation accuracy (%)", "recollection loss (nats)", "slot spread (relative)"]
    assert [axes.get_ylabel() for axes in figure.axes] == titles
    assert all(axes.get_xlabel() == "steps" for axes in figure.axes)
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[60, 70], [61, 71], [60, 70]]
    assert [line.get_color() for line in figure.axes[0].lines] == [COLOURS[0], COLOURS[0], COLOURS[1]]
    chosen = draw_curves("synthetic", runs_of(*paths), ("slot_spread",))
    assert [axes.get_ylabel() for axes in chosen.axes] == ["slot spread (relative)"]


def test_a_loss_a_method_does_without_has_no_line(here: Path) -> None:
    history = [{"step": step, "accuracy": 0.0, "loss_recollection": 0.0, "slot_spread": None} for step in (1, 2)]
    path = write("synthetic", "rm-no-rehearsal", 0, history=history)
    assert curves(runs_of(path)) == {"accuracy": {"rm-no-rehearsal": [([1, 2], [0.0, 0.0])]}}


def test_the_marks_are_the_errors_by_task(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    axes = draw_parts(make_parts("babi", runs_of(*sorted((here / "results/babi").rglob("*.json"))))).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["qa1", "qa2"]
    marks = [line.get_xydata().tolist()[0] for line in axes.lines if line.get_color() == COLOURS[0]]
    assert marks == [[1.0, 0.0], [8.0, 1.0]]
    assert run("plot", "tasks", "babi") == 0
    assert "| qa2 | 8.00 ± 1.41 |" in capsys.readouterr().out
    assert run("plot", "tasks", "babi", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["mean_error"]["rm"]["mean"] == 4.5


def test_a_task_fails_where_babi_says_so() -> None:
    assert FAILED_ABOVE == babi.FAILED_ABOVE


@pytest.mark.parametrize("task", ["synthetic-demo", "synthetic"])
def test_the_projects_own_records_can_be_drawn(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods = {read_record(path)["method"] for path in (RESULTS / task).rglob("*.json")}
    for verb in ("forgetting", "curves"):
        out = tmp_path / f"{verb}.svg"
        assert run("plot", verb, task, "--results", RESULTS, "--out", out) == 0
        assert methods <= set(words(out))
    assert "read entropy (nats)" in words(tmp_path / "curves.svg")
    # header, rule, at most ten bins, all, slope over all and within parts
    assert len(capsys.readouterr().out.splitlines()) <= 15


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["colours"], "no `remem plot colours`"),
        (["forgetting", "chess"], "no task 'chess'. There are: synthetic, synthetic-short, babi"),
        (["forgetting", "../results/synthetic"], "no task"),
        (["forgetting", "bench"], "no task 'bench'"),
        (["forgetting", "narrativeqa"], "no records of narrativeqa in results"),
        (["forgetting", "synthetic", "--results", "nowhere"], "no folder nowhere"),
        (["forgetting", "synthetic", "--methods", "rm", "dnc"], "no records of 'dnc' for synthetic. There are: rm"),
        (["forgetting", "synthetic", "--bin-width", "0"], "--bin-width"),
        (["forgetting", "synthetic", "--out", "a.docx"], "'a.docx'; let the name end in one of: "),
        (["forgetting", "synthetic", "--out", "plot"], "can't be written to 'plot'"),
        (["forgetting", "synthetic", "--out", "results/synthetic/rm/seed0.json/a.svg"], "can't be written"),
        (["forgetting", "synthetic", "--out", "folder.svg"], "can't be written to folder.svg"),
        (["curves", "synthetic", "--out", "a.svg", "--metrics", "joy"], "records 'joy'. There are: accuracy"),
        (["tasks", "synthetic-bare"], "holds no error of single tasks"),
        (
            ["curves", "synthetic-bare", "--out", "a.svg"],
            "results/synthetic-bare/rm/seed0.json holds no learning curve",
        ),
        (["forgetting", "synthetic-bare"], "results/synthetic-bare/rm/seed0.json holds no test answers by age"),
        (["curves", "synthetic-odd", "--out", "a.svg"], "name some with --metrics: joy"),
        (["curves", "synthetic-broken", "--out", "a.svg"], "holds no learning curve"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(
    arguments: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "folder.svg").mkdir()
    (here / "results/bench").mkdir()
    (here / "results/bench/speed.json").write_text("{}")
    write("synthetic-bare", "rm", 0, history=None, test_by_age=None, metrics={"test": {"early": 1.0}})
    write("synthetic-odd", "rm", 0, history=[{"step": 1, "joy": 1.0}])
    write("synthetic-broken", "rm", 0, history=7)
    assert run("plot", *arguments) == 2
    output = capsys.readouterr()
    assert said in output.err
    assert len(output.err.splitlines()) == 1
    assert output.out == ""
    assert not (here / "a.svg").exists()


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v[0])
def test_without_matplotlib_a_drawing_is_refused_and_a_table_is_not(
    verb: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("plot", *verb, "--out", "a.svg") == 2
    assert "pip install 'remem[plot]'" in capsys.readouterr().err
    if verb[0] != "curves":
        assert run("plot", *verb) == 0
        assert capsys.readouterr().out.startswith("| ")
