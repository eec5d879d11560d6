"""What a run says while it trains."""

from __future__ import annotations

import pytest

from remem.training import log as module
from remem.training.log import StageLog, rate

TITLE = "rm[model.reasoner.slot_layers=1]"


def test_a_title_is_told_as_it_is_though_it_looks_like_a_style(capsys: pytest.CaptureFixture[str]) -> None:
    with StageLog(TITLE, total=2) as log:
        log.scalars(1, {"loss": 0.5})
        log.validation(1, {"accuracy": 12.5, "qa3": 1.0}, best=True)
        log.note(f"{TITLE}: going on from step 1")
    said = " ".join(capsys.readouterr().err.split())
    assert f"{TITLE} step 1 loss 0.500 valid accuracy 12.50 (best)" in said
    assert f"{TITLE}: going on from step 1" in said
    assert "qa3" not in said


def test_where_there_is_no_bar_a_line_tells_every_so_often_how_far_a_run_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with StageLog("rm", total=100, start=10) as log:
        for step in range(11, 31):
            now += 7.0
            if step == 20:
                log.scalars(step, {"loss": 0.5})
            log.step(step)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "rm  step 19 of 100  7.0 s/step  0:09:27 left",
        "rm  step 28 of 100  loss 0.500  7.0 s/step  0:08:24 left",
    ]


def test_a_line_of_figures_is_one_line_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    with StageLog("rm", total=2) as log:
        log.validation(1, {f"every_auc_over_{number}": 50.0 for number in range(20)}, best=False)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_slow_steps_are_told_in_seconds_a_step() -> None:
    assert (rate(12.34), rate(1.0), rate(0.05)) == ("12.3 steps/s", "1.0 steps/s", "20.0 s/step")
