"""Records and tables: hand-computed means, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remem.errors import BadInput
from remem.experiments.records import publish, read_record, read_records
from remem.experiments.tables import format_table, make_table, summary


def record(method: str, seed: int, error: float, **changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "task": "babi",
        "method": method,
        "seed": seed,
        "code": {"commit": "abc"},
        "data": {},
        "model": {"fingerprint": f"{seed:016x}", "params": 1000, "state_floats": 2560},
        "metrics": {"test": {"error": error}},
        "config": {},
        **changes,
    }


def test_mean_spread_and_best_are_computed_over_seeds() -> None:
    table = make_table("babi", [record("rm", 0, 1.0), record("rm", 1, 2.0), record("rm", 2, 6.0)])
    row = next(r for r in table["rows"] if r["method"] == "rm")
    assert row["metrics"]["error"] == pytest.approx({"mean": 3.0, "std": 2.6457513, "best": 1.0, "n": 3, "paper": 0.33})
    assert (row["params"], row["state_floats"]) == (1000, 2560)


def test_the_best_accuracy_is_the_largest_and_one_seed_has_no_spread() -> None:
    assert summary("early", [1.0, 5.0])["best"] == 5.0
    assert summary("error", [3.0]) == {"mean": 3.0, "std": None, "best": 3.0, "n": 1}


def test_rows_keep_the_papers_order_and_ours_follow() -> None:
    table = make_table("babi", [record("zz-own", 0, 1.0), record("rm", 0, 1.0)])
    assert [r["method"] for r in table["rows"]] == ["dnc", "nutm", "dmsdnc", "stm", "ct", "rm", "rm-paper", "zz-own"]
    text = format_table(table, "md")
    assert "| rm | 1.00 | – | 1.00 | 0.33 | 1 | 1,000 | 2,560 |" in text
    assert "| dnc | – | – | – | 16.70 | 0 | – | – |" in text


def test_what_a_question_costs_has_columns_once_a_record_tells_it() -> None:
    told = {"train_seconds": 3.0, "query": {"flops": 1_250_000, "milliseconds": 0.5, "reads": 2560}}
    slower = told | {"query": told["query"] | {"milliseconds": 1.5}}  # type: ignore[operator]
    table = make_table("babi", [record("rm", 0, 1.0, cost=told), record("rm", 1, 1.0, cost=slower)])
    row = next(r for r in table["rows"] if r["method"] == "rm")
    assert (row["query_flops"], row["query_reads"], row["query_ms"]) == (1_250_000, 2560, 1.0)
    text = format_table(table, "md")
    assert "| 1,000 | 2,560 | 3 | 2,560 | 1.25 | 1.00 |" in text
    assert "| dnc | – | – | – | 16.70 | 0 | – | – | – | – | – | – |" in text
    assert "MFLOP" not in format_table(make_table("babi", [record("rm", 0, 1.0)]), "md")


def test_a_published_record_is_found_again_and_replaced_by_the_same_run(tmp_path: Path) -> None:
    publish(record("rm[a b/c]", 0, 1.0), tmp_path)
    path = publish(record("rm[a b/c]", 0, 1.0), tmp_path)
    publish(record("rm", 1, 4.0), tmp_path)
    assert path.parent.parent == tmp_path / "babi"
    assert [r["seed"] for r in read_records(tmp_path, "babi")] == [1, 0]
    assert read_records(tmp_path, "synthetic") == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "readable"),
        (json.dumps({"task": "babi"}), "lacks 'format'"),
        (json.dumps(record("rm", 0, 1.0, code={"commit": None})), "names no commit"),
    ],
)
def test_a_record_that_proves_nothing_is_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=said):
        read_record(path)
