"""From settings to the task they describe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remem.data.babi_store import import_babi
from remem.data.babi_twin import write_twin
from remem.data.codec import IdCodec, TextCodec
from remem.errors import BadInput
from remem.experiments.presets import DEMO, PRESETS
from remem.settings.tasks import BabiTask, SyntheticTask
from remem.tasks.load import load_task


def test_synthetic_settings_give_the_synthetic_task() -> None:
    task = load_task(DEMO.task)
    assert task.name == "synthetic-demo"
    assert task.codec == IdCodec(segment_len=10, num_items=96, num_queries=4, num_answers=4)
    # 16 chains with 50 streams each
    assert len(task.load("valid")) == 800


def test_babi_settings_give_the_babi_task(tmp_path: Path) -> None:
    import_babi(write_twin(tmp_path / "twin", stories=12), tmp_path / "babi")
    settings = BabiTask(data=tmp_path / "babi", tasks=(1, 6))
    task = load_task(settings)
    assert isinstance(task.codec, TextCodec)
    assert len(task.load("test")) == 6
    # words keep the numbers of a trained model, whatever the folder holds
    own = TextCodec(segment_len=15, words=["unused", *task.codec.words], answers=task.codec.answers)
    assert load_task(settings, own).codec is own


def test_the_prepared_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_babi(write_twin(tmp_path / "twin", stories=4), tmp_path / "root" / "babi")
    monkeypatch.setenv("REMEM_DATA", str(tmp_path / "root"))
    assert len(load_task(BabiTask(tasks=(1,))).load("train")) == 4


def test_sizes_without_meaning_are_refused_when_streams_are_loaded() -> None:
    with pytest.raises(BadInput, match="groups cannot share evenly"):
        load_task(SyntheticTask(num_facts=401)).load("valid")


@pytest.mark.parametrize(
    ("preset", "name", "value"),
    [
        ("lastfm/rm", "every", 0),
        ("lastfm/rm", "history", 0),
        ("lastfm/rm", "least", 0),
        ("lastfm/rm", "segment_len", 0),
        ("lastfm/rm", "negatives", -1),
        ("lastfm/rm", "along", -1),
        ("lastfm/rm", "ahead", 0),
        ("narrativeqa/rm", "segment_len", 0),
        ("narrativeqa/rm", "gaps", -1),
        ("activitynetqa/rm", "num_answers", 0),
        ("activitynetqa/rm", "most_frames", 0),
        ("activitynetqa/rm", "segment_len", 0),
        ("babi/rm", "segment_len", 0),
        ("babi/rm", "questions", -1),
    ],
)
def test_settings_below_what_they_can_be_are_refused_by_their_flag(preset: str, name: str, value: int) -> None:
    settings: Any = PRESETS[preset].task
    flag = f"--task.{name.replace('_', '-')}"
    with pytest.raises(BadInput, match=f"{flag} is {value}; expected at least {value + 1}"):
        load_task(replace(settings, **{name: value}))


def test_every_synthetic_preset_has_sizes_with_meaning() -> None:
    tasks = {run.task for run in PRESETS.values() if isinstance(run.task, SyntheticTask)}
    assert tasks
    for settings in tasks:
        task = load_task(settings)
        assert isinstance(task.codec, IdCodec)
        assert task.chance == pytest.approx(100 / settings.num_answers)
