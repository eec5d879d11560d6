"""What makes a run another one than its preset, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from remem.experiments.presets import PRESETS
from remem.experiments.variation import differences, name_variation
from remem.settings.codec import to_json
from remem.settings.run import Run

PLAIN, FOCUSED, CONTINUED = (PRESETS[f"babi/{name}"] for name in ("rm-plain", "rm", "rm-continued"))


def changed(preset: Run, **train: object) -> dict[str, object]:
    return differences(preset, to_json(replace(preset, train=replace(preset.train, **train))))  # type: ignore[arg-type]


def test_how_a_run_is_watched_changes_nothing_and_what_it_trains_does() -> None:
    assert changed(PLAIN, eval_every=7, precision="bf16", max_seconds=9.0) == {}
    assert changed(PLAIN, learning_rate=0.5) == {"train.learning_rate": 0.5}


def test_with_a_focus_validations_choose_what_is_trained_on_and_so_count() -> None:
    assert changed(FOCUSED, precision="bf16") == {}
    assert changed(FOCUSED, eval_every=7) == {"train.eval_every": 7}


def test_going_on_from_trained_weights_counts_but_not_from_which_folder() -> None:
    def started(preset: Run, folder: str) -> Run:
        return replace(preset, model=replace(preset.model, weights_from=Path(folder)))

    assert name_variation(CONTINUED, started(CONTINUED, "elsewhere")).method == "rm-continued"
    assert name_variation(FOCUSED, started(FOCUSED, "a")).method == "rm[model.weights_from=a]"
