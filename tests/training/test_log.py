"""What a run says while it trains."""

from __future__ import annotations

import pytest

from remem.training.log import StageLog

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
