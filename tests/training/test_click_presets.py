"""Every method of the recommendation table trains on a tiny log of its data's form, and tells what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from remem.data.click_files import import_clicks
from remem.data.long_twins import write_clicks
from remem.experiments.presets import PRESETS
from remem.experiments.tables import format_table, make_table
from remem.settings.model import ModelSettings
from remem.training.run import Trainer

READS_EVERYTHING = ("gru4rec", "caser", "rum", "rum-queue", "dien")
MEMORIES = ("hpmn", "mimn", "hpmn-rehearsal")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny twins of the published logs, prepared."""
    folder = tmp_path_factory.mktemp("logs")
    for task in ("lastfm", "assistments", "xlong"):
        write_clicks(folder / task, task, users=44, events=40)
        import_clicks(task, [folder / task], folder / "prepared" / task)
    return {path.name: path for path in (folder / "prepared").iterdir()}


@pytest.mark.parametrize(
    "name",
    [
        *(f"lastfm/{method}" for method in (*READS_EVERYTHING, *MEMORIES)),
        *(f"{task}/{method}" for task in ("assistments", "xlong") for method in ("rum", "hpmn")),
    ],
)
def test_it_takes_two_steps_and_its_record_makes_a_row(
    name: str, logs: dict[str, Path], shrink: Callable[[ModelSettings], ModelSettings], tmp_path: Path
) -> None:
    preset, (task_name, method) = PRESETS[name], name.split("/")
    task = replace(preset.task, data=logs[task_name], least=20, every=15, segment_len=4)  # type: ignore[call-arg]
    train = replace(preset.train, steps=2, batch_size=4, eval_every=2)
    run = replace(preset, task=task, model=shrink(preset.model), train=train, sampler_train=train)
    model, record = Trainer(run, tmp_path, device=torch.device("cpu"), quiet=True).train()
    assert record["cost"]["skipped_steps"] == 0
    area = "every_auc" if task_name == "assistments" else "auc"
    assert 0 <= record["metrics"]["test"][area] <= 100
    cost, floats = record["cost"]["query"], record["model"]["state_floats"]
    if method in READS_EVERYTHING:
        assert floats is None
        assert cost["reads"] == 20 if method == "rum-queue" else 30 <= cost["reads"] < 40  # the longest history
    else:
        assert cost["reads"] == floats > 0
    row = next(row for row in make_table(task_name, [record])["rows"] if row["method"] == method)
    assert row["params"] == sum(p.numel() for p in model.parameters())
    figures = f"| {row['params']:,} | {row['params_to_answer']:,} | {floats or '–'} |"
    assert figures in format_table(make_table(task_name, [record]), "md")


def test_the_sizes_are_those_of_the_papers_comparison() -> None:
    for task in ("xlong", "lastfm", "assistments", "clicks"):
        for method in ("gru4rec", "caser", "rum", "dien", "hpmn", "mimn"):
            run = PRESETS[f"{task}/{method}"]
            assert (run.model.item_dim, run.model.model_dim, run.model.reasoner.num_hops) == (64, 64, 1)
            assert run.train == PRESETS[f"{task}/rm"].train
            assert run.model.embedding == PRESETS[f"{task}/rm"].model.embedding
            assert not run.model.rehearsal.enabled
