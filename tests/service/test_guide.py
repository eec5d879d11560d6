"""The page about the service: its example runs, and the tests it names are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    code = (root / "docs" / "service.md").read_text().split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) <= 12
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").symlink_to(root / "models")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("garden 3 ")
    assert second.endswith(" True")


def test_every_test_named_in_the_guide_is_there() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "service.md").read_text()
    named = re.findall(r"(test_\w+\.py)::(test_\w+?)_?…?`", page)
    assert len(named) >= 10
    for file, test in named:
        assert f"def {test}" in (root / "tests" / "service" / file).read_text(), f"{file}::{test}"
