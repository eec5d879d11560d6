"""The original archive, where $REMEM_BABI names it: every file is parsed and every question counted."""

from __future__ import annotations

import os
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from remem.data.babi import load_stories
from remem.data.babi_format import Story, parse_stories
from remem.data.babi_store import decode_lines, import_babi

ARCHIVE = os.environ.get("REMEM_BABI")
TASKS = tuple(range(1, 21))
# stories are moved whole, so that two tasks miss the round number
VALID = dict.fromkeys(TASKS, 1000) | {18: 1004, 20: 998}

pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(not ARCHIVE, reason="set REMEM_BABI to the path of tasks_1-20_v1-2.tar.gz to run this"),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("babi")
    return folder, import_babi(Path(str(ARCHIVE)), folder)


def train_questions(manifest: dict[str, Any], task: int) -> int:
    # copies of the archive are about that lack part of task 3's training file; others have all of it
    partial = manifest[f"qa{task}_train"]["source"].endswith(".partial.txt")
    return 1925 if task == 3 and partial else 10_000


def questions_of(stories: list[Story]) -> int:
    return sum(len(story.questions) for story in stories)


def test_the_original_files_hold_the_published_numbers_of_questions(prepared: tuple[Path, dict[str, Any]]) -> None:
    _, manifest = prepared
    assert len(manifest) == 60
    for task in TASKS:
        counts = {split: manifest[f"qa{task}_{split}"]["questions"] for split in ("train", "valid", "test")}
        assert counts == {"train": train_questions(manifest, task), "valid": VALID[task], "test": 1000}
        editions = [manifest[f"qa{task}_{split}"]["source"].split("/")[0] for split in ("train", "valid", "test")]
        assert editions == ["en-10k", "en-valid-10k", "en-10k"]


def test_training_stories_are_exactly_those_of_the_authors_own_division(prepared: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = prepared
    # tasks of short stories, with many copies, and those of uneven counts; all twenty would take minutes
    ours = {part.task: part.stories for part in load_stories(folder, (4, 15, 18, 20), "train")}
    assert {task: questions_of(stories) for task, stories in ours.items()} == {4: 9000, 15: 9000, 18: 8996, 20: 9002}
    theirs: dict[int, list[Story]] = {}
    with tarfile.open(str(ARCHIVE)) as archive:
        for member in archive.getmembers():
            found = re.search(r"en-valid-10k/qa(\d+)_train\.txt$", member.name)
            data = archive.extractfile(member) if found and int(found[1]) in ours else None
            if found and data:
                theirs[int(found[1])] = parse_stories(decode_lines(data.read(), member.name), member.name)
    assert {task: Counter(stories) for task, stories in theirs.items()} == {t: Counter(s) for t, s in ours.items()}
