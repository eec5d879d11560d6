"""The synthetic task: its parts, and accuracy on early and later evidence computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from remem.data.codec import IdCodec
from remem.data.synthetic import export_jsonl, synthetic_split
from remem.errors import BadInput
from remem.settings.tasks import SyntheticTask
from remem.tasks.base import Tally
from remem.tasks.synthetic import early_and_later, synthetic_task

SMALL = SyntheticTask(
    name="synthetic-small",
    num_groups=2,
    num_facts=12,
    stream_len=10,
    num_queries=4,
    num_answers=5,
    evidence_len=2,
    samples_per_chain=4,
    eval_samples_per_chain=2,
    segment_len=3,
)


def test_early_and_later_accuracy_are_those_computed_by_hand() -> None:
    tally = Tally()
    # early: 1 of 4 right; later: 3 of 4
    tally.add([0, 1, 0, 1, 0, 1, 0, 1], [None] * 8, [True, True, False, True, False, False, False, True])
    assert early_and_later(tally) == {"early": 25.0, "later": 75.0, "accuracy": 50.0}


def test_accuracy_weighs_each_answer_alike() -> None:
    assert early_and_later(Tally({0: (1, 1), 1: (0, 3)})) == {"early": 100.0, "later": 0.0, "accuracy": 25.0}


def test_a_half_without_questions_has_no_accuracy() -> None:
    assert early_and_later(Tally({1: (1, 2)})) == {"later": 50.0, "accuracy": 50.0}


def test_the_task_is_made_of_its_settings() -> None:
    task = synthetic_task(SMALL)
    assert task.name == "synthetic-small"
    assert task.codec == IdCodec(segment_len=3, num_items=12, num_queries=4, num_answers=5)
    assert task.part_names == ("early", "later")
    assert task.chance == 20
    assert task.sources == {"generated": "data seed 0"}
    assert task.score({"early": 10.0, "later": 90.0, "accuracy": 50.0}) == 50


def test_its_splits_are_the_generated_ones() -> None:
    task = synthetic_task(SMALL)
    for name, count in (("train", 80), ("valid", 40), ("test", 40)):
        split = task.load(name)
        assert len(split) == count
        assert split.fingerprint() == synthetic_split(SMALL, name).fingerprint()


def test_the_parts_of_its_questions_are_the_named_ones() -> None:
    task = synthetic_task(SMALL)
    parts = task.load("valid").buckets[0].query.part.unique().tolist()
    assert [task.part_names[part] for part in parts] == ["early", "later"]


def test_own_streams_are_read_from_json_lines(tmp_path: Path) -> None:
    task = synthetic_task(SMALL)
    export_jsonl(SMALL, "test", tmp_path / "own.jsonl")
    assert task.read(tmp_path / "own.jsonl").fingerprint() == task.load("test").fingerprint()
    (tmp_path / "own.jsonl").write_text("{}\n")
    with pytest.raises(BadInput, match=r"own\.jsonl, line 1: the field 'query' is missing"):
        task.read(tmp_path / "own.jsonl")
