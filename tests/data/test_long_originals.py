"""The original files of the long tasks, where $REMEM_ORIGINALS names the folder that holds them: all is counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remem.data.activitynetqa import Videos, count_answers
from remem.data.activitynetqa_files import import_activitynetqa
from remem.data.click_files import import_clicks
from remem.data.clicks import ClickLog
from remem.data.long_twins import hashed_sentences
from remem.data.narrativeqa import Summaries
from remem.data.narrativeqa_files import import_narrativeqa
from remem.tasks.narrativeqa import chance

FOLDER = os.environ.get("REMEM_ORIGINALS")
ORIGINALS = Path(FOLDER or ".")
pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="set REMEM_ORIGINALS to the folder of the original files to run this"),
]


def test_narrativeqa(tmp_path: Path) -> None:
    sources = [ORIGINALS / "narrativeqa", ORIGINALS / "fairytaleqa"]
    counts = import_narrativeqa(sources, tmp_path / "data")["counts"]
    assert counts == {
        "valid": {"documents": 115, "questions": 3461},
        "test": {"documents": 355, "questions": 10_557},
        "unlabelled": {"documents": 495 + 278, "questions": 0},
    }
    data = Summaries(tmp_path / "data")
    assert chance(data, data.numbers("valid")) == pytest.approx(0.133, abs=0.001)
    assert chance(data, data.numbers("test")) == pytest.approx(0.134, abs=0.001)


def test_activitynetqa(tmp_path: Path) -> None:
    folder = ORIGINALS / "activitynet_qa"
    manifest = import_activitynetqa(
        [folder / "activitynet_qa_dataset.tar.xz"], tmp_path / "data",
        captions=folder / "activitynet_captions.tar.xz", encode=hashed_sentences,
    )  # fmt: skip
    assert manifest["videos"] == {"asked about": 5800, "found": 3193 + 1797}
    assert manifest["counts"]["train"] == {"videos": 3193, "questions": 31_930}
    data = Videos(tmp_path / "data")
    codec = data.build_codec(data.questions("train", "test"), 20, 1000)
    known = [data.answers[i] in codec.answer_index for i in data.questions("valid", "test")]
    assert sum(known) / len(known) == pytest.approx(0.822, abs=0.002)
    found = count_answers(data, data.questions("train", "test"), data.questions("valid", "test"))
    right, total = (sum(column) for column in zip(*found.values(), strict=True))
    assert right / total == pytest.approx(0.317, abs=0.005)


@pytest.mark.parametrize(
    ("name", "folder", "users", "events", "items"),
    [
        ("lastfm", "lastfm_sequences", 929, 1_268_385, 3151),
        ("assistments", "assistments_2017", 1705, 941_502, 2 * 3163),
    ],
)
def test_clicks(tmp_path: Path, name: str, folder: str, users: int, events: int, items: int) -> None:
    manifest = import_clicks(name, [ORIGINALS / folder], tmp_path / "data")
    assert manifest["counts"] == {"users": users, "events": events}
    log = ClickLog(tmp_path / "data", name)
    assert log.num_items == items
    if name == "assistments":
        assert (log.events % 2).float().mean().item() == pytest.approx(0.373, abs=0.001)
