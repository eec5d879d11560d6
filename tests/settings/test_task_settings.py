"""Settings of the tasks: the paper's sizes, and where prepared data is looked for."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from remem.settings.tasks import BabiTask, SyntheticTask, data_root


def test_the_synthetic_defaults_are_the_papers_sizes() -> None:
    task = SyntheticTask()
    assert (task.num_facts, task.stream_len, task.num_queries, task.num_answers, task.evidence_len) == (
        400,
        200,
        40,
        30,
        5,
    )
    assert (task.num_groups, task.samples_per_chain, task.segment_len) == (20, 400, 10)


def test_all_twenty_babi_tasks_are_the_default() -> None:
    assert BabiTask().tasks == tuple(range(1, 21))


def test_prepared_data_lies_in_the_working_folder_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMEM_DATA", raising=False)
    assert data_root() == Path("data")
    assert BabiTask().folder == Path("data/babi")
    monkeypatch.setenv("REMEM_DATA", "elsewhere")
    assert BabiTask().folder == Path("elsewhere/babi")
    assert BabiTask(data=Path("own")).folder == Path("own")


@pytest.mark.parametrize("settings", [SyntheticTask(), BabiTask()])
def test_settings_are_values_that_cannot_change(settings: SyntheticTask | BabiTask) -> None:
    with pytest.raises(FrozenInstanceError):
        settings.name = "other"  # type: ignore[misc]
    assert settings == type(settings)()
    assert hash(settings) == hash(type(settings)())
