"""`remem horizon` and `remem plot horizon`: shipped models on streams made for it, records, tables, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from remem.bundle import Bundle
from remem.cli.main import main
from remem.data.codec import ClickCodec
from remem.errors import BadInput
from remem.experiments.horizon import keep, tabulate
from remem.experiments.presets import find_preset
from remem.training.horizon import streams_beyond

ROOT = Path(__file__).parents[2]
Captured = pytest.CaptureFixture[str]


def run(*arguments: str | Path) -> int:
    return main([str(a) for a in arguments])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_shipped_model_knows_at_once_what_it_was_told_and_keeps_a_record(here: Path, capsys: Captured) -> None:
    model = ROOT / "models" / "babi"
    assert run("horizon", model, "--beyond", 2, 0, "--streams", 12, "--results", "results", "--device", "cpu") == 0
    shown = capsys.readouterr()
    assert shown.out == (
        "| segments since the evidence: test accuracy | rm-staged-answers, 1 seed |\n| --- | ---: |\n"
        "| 0 | 100.00 |\n| 2 | 100.00 |\n"
    )
    assert "after 0 segments 100.0 %" in shown.err
    (path,) = (here / "results" / "horizon" / "babi").glob("rm-staged-answers/seed3-*.json")
    record = json.loads(path.read_text())
    assert record["beyond"] == [[0, 12, 12], [2, 12, 12]]
    assert record["model"]["fingerprint"] == json.loads((model / "record.json").read_text())["model"]["fingerprint"]
    assert set(record["data"]["fingerprint"]) == {"0", "2"}


def test_facts_are_asked_of_a_model_of_facts(capsys: Captured) -> None:
    assert run("horizon", ROOT / "models" / "demo", "--beyond", 0, "--streams", 48, "--format", "json") == 0
    ((beyond, right, total),) = json.loads(capsys.readouterr().out)["beyond"]
    assert (beyond, total) == (0, 48)
    assert right > 36  # a guess has 12


def test_a_model_of_another_task_is_refused() -> None:
    codec = ClickCodec(segment_len=20, num_items=9)
    bundle = Bundle(torch.nn.Identity(), find_preset("lastfm/rm"), codec, "")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="made for the synthetic task and bAbI; this model is of lastfm"):
        streams_beyond(bundle, 4, 2)


def write(method: str, seed: int, points: list[list[int]]) -> None:
    record = {"task": "babi", "method": method, "seed": seed, "beyond": points, "model": {"fingerprint": "0" * 16}}
    keep(record, Path("results"))


def test_seeds_of_a_method_are_one_column_with_their_spread(here: Path, capsys: Captured) -> None:
    write("rm", 0, [[0, 10, 10], [8, 6, 10]])
    write("rm", 1, [[0, 9, 10], [8, 4, 10]])
    write("dnc", 0, [[0, 10, 10], [64, 2, 10]])
    assert run("plot", "horizon", "babi", "--methods", "rm", "dnc", "--out", "drawn.svg") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| segments since the evidence: test accuracy | rm, 2 seeds | dnc, 1 seed |"
    assert lines[2:] == ["| 0 | 95.00 ± 7.07 | 100.00 |", "| 8 | 50.00 ± 14.14 | – |", "| 64 | – | 20.00 |"]
    assert "segments since the evidence" in (here / "drawn.svg").read_text()
    assert [row["value"] for row in tabulate(here / "results", "babi")["rows"]] == ["0", "8", "64"]


@pytest.mark.parametrize("text", ["{", "[]", '{"method": "rm"}', '{"method": "rm", "beyond": [[0, 1]]}'])
def test_a_damaged_measurement_is_named(text: str, capsys: Captured) -> None:
    path = Path("results/horizon/babi/rm/seed0-0.json")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert run("plot", "horizon", "babi") == 2
    assert f"{path} is no measurement" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["horizon", "nowhere"], "nowhere"),
        (
            ["horizon", ROOT / "models" / "demo", "--beyond", "-1"],
            "Segments -1, 200 streams, 32 at a time: give segments of 0 or more",
        ),
        (["horizon", ROOT / "models" / "demo", "--batch-size", "0"], "0 at a time: give"),
        (["horizon", ROOT / "models" / "demo", "--streams", "0"], "at least one stream"),
        (["plot", "horizon", "babi"], "holds no measurement; `remem horizon MODEL` makes them"),
        (["plot", "horizon", "babi", "--methods", "rm"], "holds no measurement of rm"),
    ],
)
def test_what_can_not_be_measured_or_shown_is_refused(arguments: list[str | Path], says: str, capsys: Captured) -> None:
    assert run(*arguments) == 2
    assert says in capsys.readouterr().err
