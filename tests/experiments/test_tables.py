"""Records and tables: hand-computed means, and what is refused."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from remem.errors import BadInput, RememError
from remem.experiments.paper import PAPER
from remem.experiments.presets import PRESETS
from remem.experiments.records import publish, read_record, read_records
from remem.experiments.tables import format_brief, format_table, make_table, summary


def record(method: str, seed: int, error: float, **changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "task": "babi",
        "method": method,
        "seed": seed,
        "code": {"commit": "abc"},
        "data": {},
        "model": {"fingerprint": f"{seed:016x}", "params": 1000, "state_floats": 2560},
        "metrics": {"valid": {}, "test": {"error": error}},
        "config": {},
        **changes,
    }


def test_mean_spread_and_best_are_computed_over_seeds() -> None:
    table = make_table("babi", [record("rm", 0, 1.0), record("rm", 1, 2.0), record("rm", 2, 6.0)])
    row = next(r for r in table["rows"] if r["method"] == "rm")
    ours = {key: value for key, value in row["metrics"]["error"].items() if key not in ("paper", "valid")}
    assert ours == pytest.approx({"mean": 3.0, "std": 2.6457513, "best": 1.0, "n": 3})
    assert row["metrics"]["error"]["paper"] == {"mean": 0.33, "std": 0.15, "best": 0.12, "valid": None}
    assert (row["params"], row["state_floats"]) == (1000, 2560)


@pytest.mark.parametrize("task", PAPER)
def test_every_row_of_the_papers_tables_can_be_trained(task: str) -> None:
    assert {f"{task}/{method}" for method in PAPER[task]} <= PRESETS.keys()


def test_the_best_accuracy_is_the_largest_and_one_seed_has_no_spread() -> None:
    assert summary("early", [1.0, 5.0])["best"] == 5.0
    assert summary("error", [3.0]) == {"mean": 3.0, "std": None, "best": 3.0, "n": 1}


def test_rows_keep_the_papers_order_and_ours_follow() -> None:
    table = make_table("babi", [record("zz-own", 0, 1.0), record("rm", 0, 1.0)])
    names = ["dnc-native", "nutm-native", "dmsdnc-native", "stm-native", "ct", "rm", "rm-paper", "zz-own"]
    assert [r["method"] for r in table["rows"]] == names
    text = format_table(table, "md")
    assert "| rm | 1.00 | 1.00 | 0.33 ± 0.15 (best 0.12) | 1 | – | – | 1,000 | – | 2,560 | – |" in text
    assert "| dnc-native | – | – | 16.70 ± 7.60 (best 3.80) | 0 | – | – | – | – | – | – |" in text


def test_in_brief_a_method_without_runs_has_no_row() -> None:
    cost = {"steps": 900, "train_seconds": 12.0}
    trained = {"cost": cost, "config": {"train": {"steps": 1000, "max_seconds": 12}}}
    table = make_table("babi", [record("zz-own", 0, 1.0), record("rm", 0, 1.0, **trained), record("rm", 1, 2.0)])
    assert format_brief(table, "md").splitlines() == [
        "| method | error | paper | runs | steps | floats/stream |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| rm | 1.50 ± 0.71 | 0.33 ± 0.15 | 2 | 900 † | 2,560 |",
        "| zz-own | 1.00 | – | 1 | – | 2,560 |",
    ]


def test_numbers_the_paper_quotes_from_others_stand_with_the_whole_model_of_those() -> None:
    """Table 1 takes DNC, NUTM, DMSDNC and STM from their authors, so our harness's form has nothing to be held to."""
    rows = {r["method"]: r for r in make_table("babi", [record("dnc", 0, 20.0)])["rows"]}
    assert rows["dnc"]["metrics"]["error"]["paper"] is None
    assert rows["dnc-native"]["metrics"]["error"]["paper"]["mean"] == 16.7


def test_a_run_that_a_time_limit_cut_short_is_marked() -> None:
    def trained(seed: int, steps: int, limit: float, seconds: float = 15.0) -> dict[str, Any]:
        cost = {"steps": steps, "train_seconds": seconds}
        return record("rm", seed, 1.0, cost=cost, config={"train": {"steps": 10_000, "max_seconds": limit}})

    whole = make_table("babi", [trained(1, 10_000, 60.0), trained(2, 10_000, 0.0)])
    assert "| 2 | 10,000 | 10,000 | 1,000 | – | 2,560 | 15 |" in format_table(whole, "md")
    patient = make_table("babi", [trained(1, 9000, 60.0, 59.0)])  # ended by itself
    assert "| 1 | 9,000 | 10,000 |" in format_table(patient, "md")
    cut = make_table("babi", [trained(1, 10_000, 60.0), trained(2, 501, 60.0, 60.2)])
    assert "| 2 | 501–10,000 † | 10,000 |" in format_table(cut, "md")
    assert next(r for r in cut["rows"] if r["method"] == "rm")["cut_short"] == 1


def test_parameters_are_told_with_and_without_what_only_training_needs() -> None:
    model = {"fingerprint": "0" * 16, "params": 1000, "params_to_answer": 600, "state_floats": 2560}
    assert "| 1,000 | 600 | 2,560 |" in format_table(make_table("babi", [record("rm", 0, 1.0, model=model)]), "md")


def test_the_samplers_seconds_have_a_column_once_a_record_tells_them() -> None:
    told = record("rm", 0, 1.0, sampler_stage={"from": "other", "seconds": 12.4})
    assert "| training s | sampler s |" in format_table(make_table("babi", [told]), "md")
    assert "sampler s" not in format_table(make_table("babi", [record("rm", 0, 1.0)]), "md")


def test_in_csv_every_number_has_a_column_of_its_own() -> None:
    header, *rows = format_table(make_table("babi", [record("rm", 0, 1.0)]), "csv").splitlines()
    assert header.startswith("method,error mean,std,best,valid,paper,paper std,paper best,paper valid,runs,")
    assert any(row.startswith("rm,1.00,–,1.00,–,0.33,0.15,0.12,–,1,") for row in rows)


def test_where_the_paper_tells_what_validation_said_so_does_the_table() -> None:
    runs = [record("rm", seed, 0.0, metrics={"valid": {"mrr": 30.0 + seed}, "test": {"mrr": 29.0}}) for seed in (0, 1)]
    text = format_table(make_table("narrativeqa", runs), "md")
    assert "| method | mrr | best | valid | paper | runs |" in text
    assert "| rm | 29.00 ± 0.00 | 29.00 | 30.50 | 28.70 (valid 29.40) | 2 |" in text
    assert "| method | error | best | paper | runs |" in format_table(make_table("babi", [record("rm", 0, 1.0)]), "md")


def test_what_a_question_costs_has_columns_once_a_record_tells_it() -> None:
    told = {"steps": 5, "train_seconds": 3.0, "query": {"flops": 1_250_000, "milliseconds": 0.5, "reads": 2560}}
    slower = told | {"query": told["query"] | {"milliseconds": 1.5}}  # type: ignore[operator]
    config = {"train": {"steps": 5}}
    costly = [record("rm", seed, 1.0, cost=cost, config=config) for seed, cost in enumerate((told, slower))]
    table = make_table("babi", costly)
    row = next(r for r in table["rows"] if r["method"] == "rm")
    assert (row["query_flops"], row["query_reads"], row["query_ms"]) == (1_250_000, 2560, 1.0)
    text = format_table(table, "md")
    assert "| 1,000 | – | 2,560 | 3 | 2,560 | 1.25 | 1.00 |" in text
    assert "| ct | – | – | 0.81 ± 0.26 (best 0.34) | 0 | – | – | – | – | – | – | – | – | – |" in text
    assert "MFLOP" not in format_table(make_table("babi", [record("rm", 0, 1.0)]), "md")


def test_a_published_record_is_found_again_and_replaced_by_the_same_run(tmp_path: Path) -> None:
    publish(record("rm[a b/c]", 0, 1.0), tmp_path)
    path = publish(record("rm[a b/c]", 0, 1.0), tmp_path)
    publish(record("rm", 1, 4.0), tmp_path)
    assert path.parent.parent == tmp_path / "babi"
    assert [r["seed"] for r in read_records(tmp_path, "babi")] == [1, 0]
    assert read_records(tmp_path, "synthetic") == []


def test_a_record_that_can_not_be_written_leaves_the_one_before_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = publish(record("rm", 0, 1.0), tmp_path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RememError, match="can't be written"):
        publish(record("rm", 0, 2.0), tmp_path)
    assert read_record(path)["metrics"]["test"]["error"] == 1.0
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "readable"),
        (json.dumps({"task": "babi"}), "lacks 'format'"),
        (json.dumps(record("rm", 0, 1.0, code={"commit": None})), "names no commit"),
        (json.dumps(record("rm", 0, 1.0, code=None)), "names no commit"),
        (json.dumps(record("rm", 0, 1.0, format=2)), "has the format 2; this version of remem reads 1"),
        ("3", "expected a JSON object"),
        ("\xff{}", "readable"),
    ],
)
def test_a_record_that_proves_nothing_is_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(BadInput, match=said):
        read_record(path)
