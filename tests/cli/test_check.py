"""`remem check`: on a preset, on a memory of one's own, and what it says when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remem.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def test_a_presets_memory_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "synthetic/rm", "--segments", "20", "--no-recall"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0].strip(",") for line in lines] == [
        "check_chunking", "check_padding", "check_neighbours", "check_bounded", "check_purity", "check_saved",
        "check_first_gradient", "check_endless",
    ]  # fmt: skip
    assert all(" ok " in line for line in lines)
    assert "largest number" in lines[-1]


def test_what_was_checked_is_written_down(tmp_path: Path) -> None:
    out = tmp_path / "checks" / "rm.json"
    options = ["--item-dim", "8", "--segments", "20", "--precision", "bf16", "--no-recall", "--out", str(out)]
    assert main(["check", "synthetic/rm", *options]) == 0
    record = json.loads(out.read_text())
    assert record | {"memory": "synthetic/rm", "item_dim": 8, "segments": 20, "precision": "bf16"} == record
    assert record["code"]["commit"]
    assert record["made"]
    assert len(record["passed"]) == 8
    assert record["passed"][-1]["check"] == "check_endless, 20 segments"
    endless = record["passed"][-1]
    assert 0 < endless["largest"] < 10
    assert [written for written, _ in endless["along"]] == list(range(2, endless["segments"] + 1, 2))


def test_slots_are_as_many_as_were_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rm.json"
    options = ["--item-dim", "8", "--num-slots", "3", "--segments", "20", "--no-recall", "--out", str(out)]
    assert main(["check", "synthetic/rm", *options]) == 0
    assert json.loads(out.read_text())["num_slots"] == 3
    assert main(["check", "synthetic/hpmn", "--num-slots", "3"]) == 2
    assert "slots" in capsys.readouterr().err


def test_a_check_that_fails_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> float:
        raise AssertionError("The state grew.")

    monkeypatch.setattr("remem.checks.memorizer.check_endless", broken)
    out = tmp_path / "rm.json"
    assert main(["check", "synthetic/rm", "--segments", "20", "--no-recall", "--out", str(out)]) == 1
    assert not out.exists()


@pytest.mark.slow
def test_a_memory_of_ones_own_is_found_from_where_one_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["check", "examples.own_memory:make", "--segments", "20"]) == 0
    assert "% after" in capsys.readouterr().out


def test_a_broken_memory_ends_with_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (ROOT / "examples" / "own_memory.py").read_text()
    careless = code.replace("torch.where(real, ", "(").replace("hidden), hidden)", "hidden))")
    (tmp_path / "broken_memory.py").write_text(careless)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "broken_memory:make", "--no-recall"]) == 1
    assert "check_padding: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("synthetic/nothing", "is no preset"),
        ("synthetic/multi-hop-reason", "has no memory of its own"),
        ("no_such_module:make", "can't be imported"),
        (":make", "can't be imported"),
        (".relative:make", "can't be imported"),
        ("json:dumps_nothing", "can't be imported"),
        ("collections:OrderedDict", "is no memory: it lacks initial_state"),
    ],
)
def test_what_is_no_memory_is_refused(memory: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", memory]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--item-dim", "0"], ["--segment-len", "4"], ["--segment-len", "3", "--no-recall"]])
def test_sizes_that_the_checks_do_not_fit_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "synthetic/rm", *given]) == 2
    assert "can't be checked" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--num-slots", "0"], ["--num-slots", "-3"], ["--segments", "1"]])
def test_counts_out_of_their_range_are_refused_before_any_check(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "synthetic/dnc", "--no-recall", *given]) == 2
    said = capsys.readouterr()
    assert f"{given[0]} is {given[1]}; expected at least" in said.err
    assert not said.out
