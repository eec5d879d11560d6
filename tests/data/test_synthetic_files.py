"""Synthetic streams as JSON lines: written, read again, and refused with file, line and reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic_parts import CROWDED, SMALL

from remem.data.synthetic import export_jsonl, read_jsonl, synthetic_split
from remem.errors import BadInput
from remem.settings.tasks import SyntheticTask


@pytest.mark.parametrize("task", [SMALL, CROWDED[0]])
@pytest.mark.parametrize("split", ["train", "test"])
def test_export_and_read_give_the_same_split(task: SyntheticTask, split: str, tmp_path: Path) -> None:
    original = synthetic_split(task, split)
    written = export_jsonl(task, split, tmp_path / "own.jsonl")
    read = read_jsonl(task, tmp_path / "own.jsonl")
    assert written == len(read) == len(original)
    assert read.fingerprint() == original.fingerprint()
    assert torch.equal(read.buckets[0].ids, original.buckets[0].ids)


GOOD: dict[str, Any] = {"stream": [0] * 22, "query": 7, "answer": 2, "evidence_start": 20}


def without(name: str) -> str:
    return json.dumps({key: value for key, value in GOOD.items() if key != name})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (without("stream"), "the field 'stream' is missing"),
        (without("query"), "the field 'query' is missing"),
        (without("answer"), "the field 'answer' is missing"),
        (without("evidence_start"), "the field 'evidence_start' is missing"),
        (json.dumps({**GOOD, "query": "7"}), "query is '7'; expected an integer from 0 to 7"),
        (json.dumps({**GOOD, "query": 8}), "query is 8; expected an integer from 0 to 7"),
        (json.dumps({**GOOD, "query": -1}), "query is -1; expected an integer from 0 to 7"),
        (json.dumps({**GOOD, "answer": 1.0}), r"answer is 1\.0; expected an integer from 0 to 2"),
        (json.dumps({**GOOD, "answer": None}), "answer is None; expected an integer from 0 to 2"),
        (json.dumps({**GOOD, "evidence_start": 22}), "evidence_start is 22; expected an integer from 0 to"),
        (json.dumps({**GOOD, "stream": "facts"}), "stream must be a list of 22 facts"),
        (json.dumps({**GOOD, "stream": [0] * 21}), "stream must be a list of 22 facts"),
        (json.dumps({**GOOD, "stream": [0] * 23}), "stream must be a list of 22 facts"),
        (json.dumps({**GOOD, "stream": [0] * 21 + [24]}), "24 is not a fact; expected integers from 0 to 23"),
        (json.dumps({**GOOD, "stream": [0] * 21 + ["x"]}), "'x' is not a fact; expected integers from 0 to 23"),
        (json.dumps({**GOOD, "stream": [-1] + [0] * 21}), "-1 is not a fact"),
        (json.dumps(GOOD)[:-5], "Expecting|Unterminated|delimiter"),
        ("", "Expecting value"),
    ],
)
def test_a_malformed_line_is_refused_with_file_line_and_reason(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n{json.dumps(GOOD)}\n")
    with pytest.raises(BadInput, match=rf"own\.jsonl, line 2: (.*)({reason})"):
        read_jsonl(SMALL, path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("")
    with pytest.raises(BadInput, match=r"own\.jsonl holds no stream; expected one JSON object a line"):
        read_jsonl(SMALL, path)


@pytest.mark.parametrize("changes", [{"query": True}, {"answer": True}, {"stream": [0] * 21 + [True]}])
def test_true_is_not_taken_for_a_number(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({**GOOD, **changes}))
    with pytest.raises(BadInput, match=r"line 1: .*True"):
        read_jsonl(SMALL, path)


@pytest.mark.parametrize("line", ["[1, 2]", "3", "null", '"text"'])
def test_a_line_that_is_no_object_is_refused_in_words_of_the_format(line: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(line)
    with pytest.raises(BadInput, match=r"line 1: .*(object|fields)") as refusal:
        read_jsonl(SMALL, path)
    assert "indices" not in str(refusal.value)
    assert "subscriptable" not in str(refusal.value)


def test_evidence_that_runs_over_the_end_of_the_stream_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({**GOOD, "evidence_start": 21}))
    with pytest.raises(BadInput, match="evidence_start is 21; expected an integer from 0 to 20"):
        read_jsonl(SMALL, path)


@pytest.mark.parametrize("name", ["missing.jsonl", "folder", "latin.jsonl"])
def test_a_path_that_cannot_be_read_as_text_is_refused_with_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9\n")
    with pytest.raises(BadInput, match=name):
        read_jsonl(SMALL, tmp_path / name)
