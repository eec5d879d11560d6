"""What several tests of training read."""

from __future__ import annotations

from pathlib import Path

import pytest

from remem.data.babi_store import import_babi
from remem.data.babi_twin import write_twin


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("babi")
    import_babi(write_twin(folder / "raw", stories=12), folder / "prepared")
    return folder / "prepared"
