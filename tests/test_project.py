"""Promises about the project itself: no pickle, a README and examples that run, results that can be believed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from remem.experiments.records import read_record

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")])
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


@pytest.mark.parametrize("path", sorted((ROOT / "results").rglob("*.json")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_record_says_what_made_it(path: Path) -> None:
    record = read_record(path)
    assert record["metrics"]["test"]
    assert record["data"]["fingerprint"]
    assert record["cost"]["wall_seconds"] > 0
