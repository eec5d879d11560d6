"""The rows of NarrativeQA's and ActivityNet-QA's tables that read everything, on twins of their data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from remem.data.activitynetqa_files import import_activitynetqa
from remem.data.long_twins import hashed_sentences, write_activitynetqa, write_narrativeqa
from remem.data.narrativeqa_files import import_narrativeqa
from remem.experiments.paper import PAPER
from remem.experiments.presets import PRESETS
from remem.settings.baselines import QuestionAnswerSettings
from remem.settings.model import ModelSettings
from remem.training.run import Trainer

TASKS = ("narrativeqa", "activitynetqa")
READERS = [
    name
    for name, run in PRESETS.items()
    if isinstance(run.model.machine, QuestionAnswerSettings) and run.task.name in TASKS
]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("qa")
    write_narrativeqa(folder / "text", documents=10)
    import_narrativeqa([folder / "text"], folder / "narrativeqa")
    write_activitynetqa(folder / "video")
    captions = folder / "video/captions"
    import_activitynetqa(
        [folder / "video/dataset"], folder / "activitynetqa", captions=captions, encode=hashed_sentences
    )
    return {task: folder / task for task in TASKS}


def test_every_directly_reasoning_row_of_the_papers_tables_has_a_preset() -> None:
    memories = {"dnc", "nutm", "dmsdnc", "stm", "ct"}
    for task in TASKS:
        rows = {method for method in PAPER[task] if not method.startswith("rm")} - memories
        assert {name.split("/")[1] for name in READERS if name.startswith(task)} == rows | {"blind"}


@pytest.mark.parametrize("name", READERS)
def test_they_have_the_papers_width_and_train_as_long_as_rehearsal_memory(name: str) -> None:
    run, rehearsal_memory = PRESETS[name], PRESETS[name.split("/")[0] + "/rm"]
    assert (run.model.item_dim, run.model.model_dim) == (256, 256)
    assert (run.task, run.train) == (rehearsal_memory.task, rehearsal_memory.train)
    assert not run.model.rehearsal.enabled


@pytest.mark.parametrize("name", READERS)
def test_every_preset_takes_two_steps_on_a_tiny_twin_of_its_data(
    name: str, twins: dict[str, Path], shrink: Callable[[ModelSettings], ModelSettings], tmp_path: Path
) -> None:
    preset: Any = PRESETS[name]
    train = replace(preset.train, steps=2, batch_size=4, eval_every=2)
    task = replace(preset.task, data=twins[name.split("/")[0]])
    run = replace(preset, task=task, model=shrink(preset.model), train=train)
    _, record = Trainer(run, tmp_path / "run", device=torch.device("cpu"), quiet=True).train()
    assert record["cost"] | {"steps": 2, "skipped_steps": 0} == record["cost"]
    assert record["metrics"]["test"]
