"""What the prepared data holds: counted from what a model is given, kept as a record, shown on the pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from remem.cli.main import main
from remem.data.activitynetqa_files import import_activitynetqa
from remem.data.click_files import import_clicks
from remem.data.long_twins import hashed_sentences, write_activitynetqa, write_clicks
from remem.errors import BadInput
from remem.experiments.describe import describe, described, format_description, publish, read
from remem.settings.tasks import ClickTask
from remem.tasks.clicks import click_task
from remem.tasks.metrics import area_under_roc


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REMEM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("REMEM_COMMIT", "0" * 40)
    return tmp_path


def test_videos_are_counted_by_kind_and_with_answers_out_of_reach(data: Path) -> None:
    write_activitynetqa(data / "video")
    captions = data / "video/captions"
    import_activitynetqa(
        [data / "video/dataset"], data / "data/activitynetqa", captions=captions, encode=hashed_sentences
    )
    found = describe("activitynetqa")
    for facts in found["splits"].values():
        assert sum(facts["parts"].values()) == facts["questions"] > 0
        assert 0 < facts["items"]["mean"] <= facts["items"]["most"]
    assert "counter_accuracy" in found["beside"]
    assert found["code"]["commit"] == "0" * 40


def test_a_stream_of_a_log_counts_once_however_many_items_are_asked(data: Path) -> None:
    write_clicks(data / "raw", "lastfm", users=12, events=420)
    import_clicks("lastfm", [data / "raw"], data / "data/lastfm")
    found = describe("lastfm")
    for facts in found["splits"].values():
        assert sum(facts["parts"].values()) == facts["streams"] > 0
        assert facts["questions"] >= 2 * facts["streams"]
    tests = found["splits"]["test"]["parts"]
    assert sum(count for name, count in tests.items() if name.startswith("final")) == 3  # one a user


def test_what_is_kept_is_what_is_shown(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_clicks(data / "raw", "lastfm", users=12, events=420)
    import_clicks("lastfm", [data / "raw"], data / "data/lastfm")
    results = data / "results"
    assert main(["data", "describe", "lastfm", "--results", str(results)]) == 0
    first = capsys.readouterr().out
    assert main(["data", "describe", "lastfm", "--results", str(results), "--table"]) == 0
    assert capsys.readouterr().out == first
    kept = json.loads((results / "data/lastfm.json").read_text())
    assert first.strip() == format_description(kept)
    assert f"| streams | {kept['splits']['train']['streams']} |" in first


def test_a_description_without_a_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no commit"):
        publish({"task": "lastfm", "code": {"commit": None}}, tmp_path)
    with pytest.raises(BadInput, match="remem data describe lastfm"):
        read(tmp_path, "lastfm")


def test_only_tasks_with_data_can_be_described() -> None:
    assert described() == ["narrativeqa", "activitynetqa", "xlong", "lastfm", "assistments", "clicks"]
    with pytest.raises(BadInput, match="'synthetic' can't be described"):
        describe("synthetic")


def test_rates_of_problems_and_users_are_those_of_the_log(tmp_path: Path) -> None:
    """Problem 1 is solved by every training user, problem 2 by none, problem 3 by half of them."""

    def student(number: int, problems: list[int], solved: list[int]) -> str:
        rows = ([number, number], problems, [0] * len(problems), solved)
        return "".join(",".join(map(str, row)) + "\n" for row in rows)

    for fold in range(1, 6):
        students = [student(i, [1, 2, 3], [1, 0, i % 2]) for i in range(10)]
        if fold == 5:  # the user's own share so far is the other way round
            students = [student(0, [4, 4, 1], [0, 0, 1]), student(1, [4, 4, 2], [1, 1, 0])]
        (tmp_path / f"assist2017_pid_test{fold}.csv").write_text("".join(students))
    import_clicks("assistments", [tmp_path], tmp_path / "data")
    task = click_task(ClickTask(name="assistments", data=tmp_path / "data", least=2, every=10, segment_len=5))
    beside = task.beside()
    assert beside["rate_of_problem_every_auc"] == 100
    assert beside["rate_of_user_every_auc"] == 0
    odds = torch.tensor([1.0, 37.0]).log() - torch.tensor([37.0, 1.0]).log() + torch.tensor([3.0, 1 / 3]).log()
    assert beside["rate_of_both_every_auc"] == 100 * area_under_roc(odds, torch.tensor([0, 1]))
