"""Every method of the recommendation table trains on a tiny log of its data's form, and tells what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from remem.data.click_files import import_clicks
from remem.experiments.presets import PRESETS
from remem.experiments.tables import format_table, make_table
from remem.settings.model import ModelSettings
from remem.training.run import Trainer

READS_EVERYTHING = ("gru4rec", "caser", "rum", "rum-queue", "dien")
MEMORIES = ("hpmn", "mimn", "hpmn-rehearsal", "mimn-rehearsal")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six users who come back to a few artists each, in the form of the published files."""
    folder, random = tmp_path_factory.mktemp("lastfm"), np.random.default_rng(0)
    lines = [" ".join(map(str, random.choice(random.permutation(60)[:12] + 1, 60))) for _ in range(6)]
    (folder / "event-train.txt").write_text("\n".join(lines[:4]) + "\n")
    (folder / "event-test.txt").write_text("\n".join(lines[4:]) + "\n")
    import_clicks("lastfm", [folder], folder / "prepared")
    return folder / "prepared"


@pytest.mark.parametrize("method", [*READS_EVERYTHING, *MEMORIES])
def test_it_takes_two_steps_and_its_record_makes_a_row(
    method: str, log: Path, shrink: Callable[[ModelSettings], ModelSettings], tmp_path: Path
) -> None:
    preset = PRESETS[f"lastfm/{method}"]
    task = replace(preset.task, data=log, least=20, every=10, segment_len=4)  # type: ignore[call-arg]
    train = replace(preset.train, steps=2, batch_size=4, eval_every=2)
    run = replace(preset, task=task, model=shrink(preset.model), train=train, sampler_train=train)
    model, record = Trainer(run, tmp_path, device=torch.device("cpu"), quiet=True).train()
    assert record["cost"]["skipped_steps"] == 0
    assert 0 <= record["metrics"]["test"]["every_auc"] <= 100
    cost, floats = record["cost"]["query"], record["model"]["state_floats"]
    assert floats is None if method in READS_EVERYTHING else floats > 0
    assert cost["reads"] == (59 if floats is None else floats)
    row = make_table("lastfm", [record])["rows"][0]
    assert row["params"] == sum(p.numel() for p in model.parameters())
    assert f"| {row['params']:,} | {floats or '–'} |" in format_table(make_table("lastfm", [record]), "md")


def test_the_sizes_are_those_of_the_papers_comparison() -> None:
    for task in ("xlong", "lastfm", "assistments", "clicks"):
        for method in ("gru4rec", "caser", "rum", "dien", "hpmn", "mimn"):
            run = PRESETS[f"{task}/{method}"]
            assert (run.model.item_dim, run.model.model_dim, run.model.reasoner.num_hops) == (64, 64, 1)
            assert run.train == PRESETS[f"{task}/rm"].train
            assert run.model.embedding == PRESETS[f"{task}/rm"].model.embedding
            assert not run.model.rehearsal.enabled
