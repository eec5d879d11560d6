"""Promises about the project itself: no pickle, a README and examples that run, results that can be believed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remem.bundle import load_bundle
from remem.cli.main import main
from remem.experiments.describe import FOLDER
from remem.experiments.records import read_record, read_records
from remem.experiments.tables import format_table, make_table
from remem.streaming.memory import StreamMemory

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")])
RECORDS = [path for path in sorted((ROOT / "results").rglob("*.json")) if path.parent.name not in ("bench", FOLDER)]
FORBIDDEN = re.compile(
    r"\bpickle\b|torch\.(load|save)\(|\bmarshal\b|\bdill\b|\bjoblib\b|\bshelve\b|weights_only|\beval\(['\"]|\bexec\("
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_ever_pickled(path: Path) -> None:
    assert not FORBIDDEN.search(path.read_text())


def test_the_search_for_pickle_would_find_it() -> None:
    for line in ("import pickle", "torch.load(path)", "torch.save(x, p)", "exec(code)"):
        assert FORBIDDEN.search(line)


def code_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def _run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=250, env=environment
    )


@pytest.mark.parametrize("number", range(len(code_blocks((ROOT / "README.md").read_text()))))
def test_the_readmes_examples_run(number: int, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "models", tmp_path / "models")
    done = _run(code_blocks((ROOT / "README.md").read_text())[number], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_readme_has_an_example() -> None:
    assert code_blocks((ROOT / "README.md").read_text())


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_are_short_and_run(path: Path, tmp_path: Path) -> None:
    code = path.read_text()
    assert len(code.splitlines()) <= 60
    done = _run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_method_in_the_guide_is_the_example() -> None:
    guide = between_marks((ROOT / "docs" / "add-a-method.md").read_text(), "examples/own_memory.py")
    code = guide.removeprefix("```python\n").removesuffix("\n```")
    assert code.strip() in (ROOT / "examples" / "own_memory.py").read_text()


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_record_says_what_made_it(path: Path) -> None:
    record = read_record(path)
    assert record["metrics"]["test"]
    assert record["data"]["fingerprint"]
    assert record["cost"]["wall_seconds"] > 0


def between_marks(text: str, mark: str) -> str:
    start = text.index(f"<!-- {mark} -->") + len(f"<!-- {mark} -->")
    return text[start : text.index("<!-- end -->", start)].strip()


@pytest.mark.parametrize("task", ["synthetic", "babi"])
def test_the_readmes_tables_are_made_from_the_records(task: str) -> None:
    table = format_table(make_table(task, read_records(ROOT / "results", task)), "md")
    assert between_marks((ROOT / "README.md").read_text(), f"remem table {task}") == table


def test_the_table_by_babi_task_is_made_from_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "tasks", "babi", "--results", str(ROOT / "results")]) == 0
    assert (
        between_marks((ROOT / "docs" / "babi.md").read_text(), "remem plot tasks babi")
        == capsys.readouterr().out.strip()
    )


@pytest.mark.parametrize("task", ["synthetic-small", "babi-small"])
def test_the_ablation_tables_are_made_from_the_records(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", task, "--table", "--results", str(ROOT / "results")]) == 0
    page = between_marks((ROOT / "docs" / "learning.md").read_text(), f"remem ablate {task} --table")
    assert page == capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("page", "tasks"),
    [("narrativeqa", "narrativeqa"), ("activitynetqa", "activitynetqa"), ("recommendation", "lastfm assistments")],
)
def test_facts_of_the_data_are_made_from_the_records(page: str, tasks: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "describe", *tasks.split(), "--table", "--results", str(ROOT / "results")]) == 0
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert between_marks(text, f"remem data describe {tasks}") == capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", ["demo", "synthetic", "babi"])
def test_a_shipped_model_is_small_whole_and_has_its_record(name: str) -> None:
    folder = ROOT / "models" / name
    assert (folder / "model.safetensors").stat().st_size <= 8 * 2**20
    bundle, record = load_bundle(folder), json.loads((folder / "record.json").read_text())
    assert bundle.fingerprint == record["model"]["fingerprint"]
    if name != "demo":
        published = [r for r in read_records(ROOT / "results", name) if r["model"]["fingerprint"] == bundle.fingerprint]
        assert published == [record]


def test_the_shipped_babi_model_answers_a_story_it_has_never_seen() -> None:
    memory = StreamMemory.open(ROOT / "models" / "babi")
    memory.write_many(["Mary moved to the bathroom.", "John went to the hallway.", "Mary journeyed to the garden."])
    assert memory.query("Where is Mary?").answer == "garden"
    assert memory.query("Where is John?").answer == "hallway"


def test_the_performance_page_is_made_from_the_records() -> None:
    lines = [
        "| bench | preset | device | batch | way | ms | streams/s | x eager | MB |",
        "| --- | --- | --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for path in sorted((ROOT / "results" / "bench").glob("*.json")):
        bench = json.loads(path.read_text())
        for row in bench["rows"]:
            values = ["–" if value is None else value for value in row.values()]
            cells = [bench["benchmark"], bench["preset"], bench["device"], bench["batch_size"], *values]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    assert between_marks((ROOT / "docs" / "performance.md").read_text(), "bench") == "\n".join(lines)
