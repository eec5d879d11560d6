"""What a run says while it trains."""

from __future__ import annotations

from functools import partial
from io import StringIO

import pytest
from rich.console import Console

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


def test_slow_steps_are_told_in_seconds_a_step() -> None:
    assert (rate(12.34), rate(1.0), rate(0.05)) == ("12.3 steps/s", "1.0 steps/s", "20.0 s/step")
    assert (rate(3.0, "stream"), rate(0.5, "stream")) == ("3.0 streams/s", "2.0 s/stream")


def test_without_a_terminal_a_validation_is_one_line_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    with StageLog(TITLE, total=2) as log:
        log.scalars(1, {"loss": 0.5})
        log.validation(1, {f"metric_{number}": 12.5 for number in range(10)}, best=True)
        log.note(f"{TITLE}: going on " * 5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("metric_9 12.50  (best)")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_still_shows_steps_rate_and_time_left_on_one_line(width: int) -> None:
    with StageLog(TITLE, total=2000, quiet=True) as log:
        for seconds, step in ((0.0, 1900), (2.0, 1929)):
            log.bar.get_time = partial(float, seconds)
            log.step(step)
        log.scalars(1929, {"loss": 0.5})
        log.validation(1929, {"early": 12.5, "later": 12.5, "accuracy": 12.5}, best=True)
        screen = Console(width=width, force_terminal=True, color_system=None, record=True, file=StringIO())
        screen.print(log.bar.get_renderable())
    line, *more = screen.export_text().splitlines()
    assert not more
    assert "1929/2000 14.5 steps/s left 0:00:05" in line
