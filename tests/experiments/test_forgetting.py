"""Accuracy by age of the evidence: hand-computed numbers, bins, slopes, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from remem.cli.main import main
from remem.errors import BadInput
from remem.experiments.forgetting import default_width, format_forgetting, make_forgetting, slope
from remem.experiments.tables import Runs, format_parts, make_parts

# two seeds: right and all answers at ages 0, 1 and 4; the second seed saw no question at age 1
FIRST = [[0, 9, 10], [1, 6, 10], [4, 10, 20]]
SECOND = [[0, 7, 10], [4, 4, 20]]


def run(*arguments: str | Path) -> int:
    return main([str(a) for a in arguments])


def write(task: str, method: str, seed: int, **changes: Any) -> Path:
    """A made-up record in ./results; a change to None leaves the field out."""
    history = [
        {"step": step, "accuracy": 50.0 + seed + step, "loss_recollection": 4.0 - step / 10, "slot_spread": 0.5}
        for step in (10, 20)
    ]
    record = {
        "format": 1,
        "task": task,
        "method": method,
        "seed": seed,
        "code": {"commit": "abc"},
        "data": {},
        "model": {},
        "metrics": {"test": {"error": 4.0 + seed, "failed_tasks": 1.0, "qa1": 1.0, "qa2": 7.0 + 2 * seed}},
        "test_by_age": [[0, 9 - seed, 10], [3, 5, 10]],
        "history": history,
        "config": {},
        **changes,
    }
    path = Path("results") / task / "".join(c for c in method if c.isalnum()) / f"seed{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in record.items() if value is not None}))
    return path


def runs(**by_method: list[Any]) -> Runs:
    return {
        method: [(Path(f"{method}-{n}.json"), {"seed": n, "test_by_age": ages}) for n, ages in enumerate(seeds)]
        for method, seeds in by_method.items()
    }


def test_every_age_has_the_mean_and_spread_over_seeds_and_its_questions() -> None:
    table = make_forgetting("synthetic", runs(rm=[FIRST, SECOND]))
    assert [row["age"] for row in table["rows"]] == [[0, 0], [1, 1], [4, 4]]
    zero, one, four = (row["cells"]["rm"] for row in table["rows"])
    assert zero == pytest.approx({"mean": 80.0, "std": 200**0.5, "n": 2, "questions": 20})
    assert one == {"mean": 60.0, "std": None, "n": 1, "questions": 10}
    assert four == pytest.approx({"mean": 35.0, "std": 450**0.5, "n": 2, "questions": 40})
    # 25 of 40 and 11 of 30: seeds count alike, however many questions they had
    overall = {"mean": (62.5 + 1100 / 30) / 2, "std": (62.5 - 1100 / 30) / 2**0.5, "n": 2, "questions": 70}
    assert table["overall"]["rm"] == pytest.approx(overall)


def test_within_parts_a_hard_part_with_old_evidence_is_no_forgetting() -> None:
    """Each part is answered alike at all ages, but the harder one has the older evidence."""
    easy, hard = [[0, 9, 10], [2, 18, 20]], [[4, 5, 10], [8, 5, 10]]
    record: dict[str, Any] = {"seed": 0, "test_by_age": [*easy, *hard], "test_by_age_of": {"qa1": easy, "qa2": hard}}
    table = make_forgetting("babi", {"rm": [(Path("r.json"), record)]})
    assert table["slope"]["rm"]["mean"] > 5
    assert table["slope_within"]["rm"]["mean"] == pytest.approx(0.0)
    assert "| the same within each part | 0.00 |" in format_forgetting(table, "md")
    record["test_by_age_of"] = {"qa1": [[0, 10, 10], [2, 8, 10]], "qa2": [[4, 5, 5], [6, 4, 5]]}
    # ten points a segment in each part
    assert make_forgetting("babi", {"rm": [(Path("r.json"), record)]})["slope_within"]["rm"]["mean"] == 10.0


def test_records_that_do_not_tell_their_parts_apart_have_no_slope_within_them() -> None:
    table = make_forgetting("synthetic", runs(rm=[FIRST]))
    assert table["slope_within"]["rm"]["n"] == 0
    assert "within" not in format_forgetting(table, "md")


def test_a_bin_counts_its_questions_together() -> None:
    table = make_forgetting("synthetic", runs(rm=[FIRST, SECOND]), bin_width=2)
    assert [row["age"] for row in table["rows"]] == [[0, 1], [4, 4]]
    # 15 of 20 and 7 of 10
    assert table["rows"][0]["cells"]["rm"] == pytest.approx({"mean": 72.5, "std": 12.5**0.5, "n": 2, "questions": 30})
    uneven = make_forgetting("synthetic", runs(rm=[[[2, 1, 1], [3, 0, 3]]]), bin_width=4)
    assert uneven["rows"][0]["age"] == [2, 3]
    assert uneven["rows"][0]["cells"]["rm"]["mean"] == 25.0


def test_the_slope_of_a_straight_line_is_its_slope() -> None:
    # 90 % less 2.5 points a segment, with very different numbers of questions
    line = {age: (right, total) for age, right, total in [(0, 90, 100), (2, 850, 1000), (4, 32, 40), (20, 80, 200)]}
    assert slope(line) == pytest.approx(2.5)
    table = make_forgetting("synthetic", runs(rm=[[[0, 90, 100], [10, 80, 100]], [[0, 90, 100], [10, 60, 100]]]))
    assert table["slope"]["rm"] == pytest.approx({"mean": 2.0, "std": 2**0.5, "n": 2})


def test_the_slope_weighs_ages_by_their_questions() -> None:
    # by hand: mean age (0 + 1 + 2 * 2) / 4 = 1.25, mean accuracy 25; sum of weight * da * dy = -125, of da^2 = 2.75
    assert slope({0: (1, 1), 1: (0, 1), 2: (0, 2)}) == pytest.approx(125 / 2.75)
    assert slope({3: (1, 2)}) is None


def test_the_slope_does_not_change_with_the_bins() -> None:
    narrow, wide = (make_forgetting("synthetic", runs(rm=[FIRST]), width) for width in (1, 5))
    assert len(wide["rows"]) == 1
    assert narrow["slope"] == wide["slope"]
    assert narrow["slope"]["rm"]["mean"] > 0


@pytest.mark.parametrize(
    ("ages", "width"),
    [(range(1), 1), (range(10), 1), (range(11), 2), (range(20), 2), (range(21), 3), ([0, 7, 900], 1)],
)
def test_the_default_bins_give_at_most_ten_rows(ages: range, width: int) -> None:
    assert default_width(ages) == width


def test_markdown_shows_spread_only_over_seeds_and_a_dash_for_nothing() -> None:
    table = make_forgetting("synthetic", runs(rm=[FIRST, SECOND], own=[[[1, 1200, 2400]]]))
    # slopes by hand: 1025 / 127.5 and 50 / 4
    assert format_forgetting(table, "md").splitlines() == [
        "| age (segments) | rm, 2 seeds | own, 1 seed |",
        "| --- | ---: | ---: |",
        "| 0 | 80.00 ± 14.14 (20) | – |",
        "| 1 | 60.00 (10) | 50.00 (2,400) |",
        "| 4 | 35.00 ± 21.21 (40) | – |",
        "| all | 49.58 ± 18.27 (70) | 50.00 (2,400) |",
        "| points lost per segment | 10.27 ± 3.15 | – |",
    ]


def test_csv_gives_every_number_a_column() -> None:
    table = make_forgetting("synthetic", runs(rm=[FIRST, SECOND], own=[[[1, 1, 3]]]), bin_width=2)
    rows = list(csv.DictReader(io.StringIO(format_forgetting(table, "csv"))))
    assert [row["age (segments)"] for row in rows] == ["0–1", "4", "all", "points lost per segment"]
    assert rows[0]["rm mean"] == "72.5"
    assert (rows[0]["rm std"], rows[0]["rm runs"], rows[0]["rm questions"]) == ("3.5355", "2", "30")
    assert (rows[0]["own mean"], rows[0]["own std"]) == ("33.3333", "")
    assert (rows[1]["own mean"], rows[1]["own questions"]) == ("", "0")


@pytest.mark.parametrize(
    ("ages", "said"),
    [(None, "no test answers by age"), ([], "no test answers"), ([[0, 1]], "damaged"), ([[0, 3, 2]], "damaged"),
     ([[0, 0, 0]], "damaged"), ([["a", 1, 2]], "damaged"), (7, "damaged")],
)  # fmt: skip
def test_a_record_without_sound_ages_is_refused_by_its_name(ages: Any, said: str) -> None:
    with pytest.raises(BadInput, match=rf"rm-1\.json.*{said}"):
        make_forgetting("synthetic", runs(rm=[FIRST, ages]))


def test_a_bin_of_no_width_is_refused() -> None:
    with pytest.raises(BadInput, match="--bin-width 1 or more"):
        make_forgetting("synthetic", runs(rm=[FIRST]), bin_width=0)


def test_forgetting_without_a_drawing_prints_json_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for method, seed in (("rm", 0), ("rm", 1), ("own", 0)):
        write("synthetic", method, seed)
    assert run("plot", "forgetting", "synthetic", "--methods", "own", "rm", "--format", "json") == 0
    output = capsys.readouterr()
    table = json.loads(output.out)
    assert list(table["seeds"].items()) == [("own", 1), ("rm", 2)]
    assert table["slope"]["rm"]["mean"] == pytest.approx((40 + 30) / 2 / 3)
    assert output.err == ""
    assert {path.name for path in tmp_path.iterdir()} == {"results"}


def test_errors_by_task_are_listed_in_the_tasks_order() -> None:
    tests = [
        {"error": 4.0, "failed_tasks": 1.0, "qa10": 6.0, "qa2": 2.0},
        {"error": 1.0, "failed_tasks": 0.0, "qa2": 1.0},
    ]
    seeds = [(Path(f"{n}.json"), {"seed": n, "metrics": {"test": test}}) for n, test in enumerate(tests)]
    table = make_parts("babi", {"rm": seeds, "own": seeds[:1]})
    assert table["rows"][0]["cells"]["rm"] == pytest.approx({"mean": 1.5, "std": 0.5**0.5, "n": 2})
    assert format_parts(table, "md").splitlines()[2:] == [
        "| qa2 | 1.50 ± 0.71 | 2.00 |",
        "| qa10 | 6.00 | 6.00 |",
        "| mean error | 2.50 ± 2.12 | 4.00 |",
        "| failed tasks | 0.50 ± 0.71 | 1.00 |",
    ]
    assert "questions" not in format_parts(table, "csv")
    # the second seed once more, by other code: three runs, and not as many seeds
    again = make_parts("babi", {"rm": [*seeds, seeds[1]]})
    assert format_parts(again, "md").startswith("| error (%) | rm, 3 runs of 2 seeds |")


def test_a_record_without_errors_by_task_is_refused_by_its_name() -> None:
    with pytest.raises(BadInput, match=r"x\.json holds no error of single tasks"):
        make_parts("synthetic", {"rm": [(Path("x.json"), {"metrics": {"test": {"early": 84.0}}})]})
