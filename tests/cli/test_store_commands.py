"""`remem append | query | inspect | delete | verify` on a local store file, each a process of its own in real life."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remem.cli.main import main
from remem.service import upkeep
from remem.service.stores import sqlite_gaps, sqlite_writer

MODELS = Path(__file__).resolve().parents[2] / "models"
BABI, DEMO = str(MODELS / "babi"), str(MODELS / "demo")
STORY = "Mary moved to the bathroom. John went to the hallway.\nMary journeyed to the garden.\n"


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "memories.db")


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def test_a_story_is_kept_and_asked_later(
    store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = tmp_path / "story.txt"
    story.write_text(STORY)
    said = run(capsys, "append", store, "mary", "--model", BABI, "--story", str(story), "--seq", "0")
    assert said == "mary: 3 events added; the next is number 3.\n"
    again = run(capsys, "append", store, "mary", "--model", BABI, "--story", str(story), "--seq", "0")
    assert again == "mary: 0 events added, 3 were there already; the next is number 3.\n"
    asked = run(capsys, "query", store, "mary", "Where is Mary?", "Where is John?", "--model", BABI, "--top", "1")
    assert "Where is Mary? -> garden" in asked
    assert "Where is John? -> hallway" in asked
    moved = run(capsys, "append", store, "mary", "Mary went to the office.", "--model", BABI, "--format", "json")
    assert json.loads(moved) == {
        "accepted": 1, "duplicates": 0, "next_seq": 4, "consolidated_seq": 4, "memory_version": 4,
    }  # fmt: skip
    shown = json.loads(run(capsys, "query", store, "mary", "Where is Mary?", "--model", BABI, "--format", "json"))
    assert (shown["questions"][0]["answer"], shown["questions"][0]["as_of_seq"]) == ("office", 4)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(STORY.encode())))
    assert "3 events added" in run(capsys, "append", store, "piped", "--model", BABI)


def test_streams_are_inspected_verified_and_deleted(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "append", store, "numbers", "4 17 2", "95,9", "--model", DEMO)
    run(capsys, "append", store, "other", "1", "--model", DEMO)
    assert run(capsys, "inspect", store) == "numbers\nother\n"
    assert json.loads(run(capsys, "inspect", store, "--format", "json")) == ["numbers", "other"]
    about: dict[str, Any] = json.loads(run(capsys, "inspect", store, "numbers", "--format", "json"))
    assert (about["next_seq"], about["tail_events"], about["state"], about["memory"]) == (5, 5, "unknown", {})
    told = run(capsys, "inspect", store, "numbers", "--model", DEMO)
    assert "compatible" in told
    assert "slot_norms" in told
    assert "rebuild_needed" in run(capsys, "inspect", store, "numbers", "--model", BABI)
    assert run(capsys, "verify", store) == "2 streams, 6 events kept, 0 streams folded again.\n"
    assert run(capsys, "delete", store, "numbers") == "numbers: deleted.\n"
    assert run(capsys, "delete", store, "numbers") == "numbers: there was no such stream.\n"
    assert run(capsys, "inspect", store) == "other\n"


def test_a_large_store_is_cleared_of_what_is_deleted_before_the_command_ends(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "append", store, "numbers", "4 17 2", "--model", DEMO)
    # a piece is a page, and there is time for one
    monkeypatch.setattr(sqlite_gaps, "_PIECE", 1)
    monkeypatch.setattr(sqlite_writer.Writer.purge, "__defaults__", (0.0,))
    monkeypatch.setattr(upkeep, "_CLEARING_SECONDS", 0.0)
    assert run(capsys, "delete", store, "numbers") == "numbers: deleted.\n"
    with contextlib.closing(sqlite3.connect(store)) as connection:
        assert connection.execute("SELECT * FROM meta WHERE name = 'remains'").fetchall() == []


def test_a_delete_that_a_reader_holds_up_says_so_until_it_is_done(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "append", store, "numbers", "4 17 2", "--model", DEMO)
    with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM streams").fetchone()
        assert "deleted. Bytes of what was deleted are still" in run(capsys, "delete", store, "numbers")
        assert "no such stream. Bytes of what was deleted are still" in run(capsys, "delete", store, "numbers")
    assert run(capsys, "delete", store, "numbers") == "numbers: there was no such stream.\n"


def test_damage_ends_in_exit_code_1(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "append", store, "numbers", "4 17 2", "--model", DEMO)
    connection = sqlite3.connect(store)
    connection.execute("UPDATE memories SET memory = zeroblob(10)")
    connection.commit()
    connection.close()
    assert "1 problems were found" in run(capsys, "verify", store, code=1)
    assert main(["verify", store, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["code"] == "memory_damaged"


def test_bad_input_is_refused_in_a_sentence(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    def refusal(*arguments: str, code: int = 2) -> str:
        return run(capsys, *arguments, code=code)

    assert "does not know: 'xyzzied'" in refusal("append", store, "s", "Mary xyzzied.", "--model", BABI)
    assert not Path(store).exists()
    assert "is no name of a stream" in refusal("append", store, "a/b", STORY, "--model", BABI)
    run(capsys, "append", store, "s", STORY, "--model", BABI)
    assert "Send the events from 3 on" in refusal(
        "append", store, "s", "Mary went to the office.", "--seq", "7", "--model", BABI, code=1
    )
    assert "give one of them" in refusal("append", store, "s", "x", "--story", "y", "--model", BABI)
    assert "There is no stream 'none'" in refusal("query", store, "none", "Where is Mary?", "--model", BABI)
    assert "There is no stream 'none'" in refusal("inspect", store, "none")
    assert "was written by the model" in refusal("query", store, "s", "3", "--model", DEMO, code=1)
    assert "There is no question" in refusal("query", store, "s", "--model", BABI)
    for command in (["inspect", store + "x"], ["verify", store + "x"], ["delete", store + "x", "s"]):
        assert "does not exist" in refusal(*command, code=1)
    assert not Path(store + "x").exists()


@pytest.mark.parametrize(
    "arguments", [["inspect"], ["verify"], ["delete", "mary"], ["append", "mary", "4", "--model", DEMO]]
)
def test_a_folder_is_not_said_to_be_missing_and_gets_no_lock_beside_it(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "folder").mkdir()
    command, *rest = arguments
    assert "is a folder" in run(capsys, command, str(folder), *rest, code=2)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_stream_is_exported_and_imported(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "append", store, "mary", *STORY.splitlines(), "--model", BABI)
    file, other = str(tmp_path / "mary.safetensors"), str(tmp_path / "other.db")
    assert file in run(capsys, "export", store, "mary", file)
    assert Path(file).stat().st_mode & 0o077 == 0
    said = run(capsys, "import", other, "maria", file, "--model", BABI)
    assert said == "maria: 3 events, 3 of them in the memory.\n"
    asked = run(capsys, "query", other, "maria", "Where is Mary?", "--model", BABI, "--top", "1")
    assert "Where is Mary? -> garden" in asked
    assert "replaces nothing" in run(capsys, "export", store, "mary", file, code=2)
    assert "was written by the model" in run(capsys, "import", store, "x", file, "--model", DEMO, code=1)
    assert "can't be read" in run(capsys, "import", store, "x", file + "x", "--model", BABI, code=2)
    assert "can't be written" in run(capsys, "export", store, "mary", str(tmp_path / "none" / "f"), code=2)
    Path(file).write_bytes(b"nothing of ours")
    assert "not one that remem wrote" in run(capsys, "import", store, "x", file, "--model", BABI, code=2)


def test_a_store_is_backed_up_while_another_process_writes(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from remem.service import MemoryEngine

    run(capsys, "append", store, "numbers", "4 17 2", "--model", DEMO)
    copy = str(tmp_path / "copy.db")
    with MemoryEngine.open(store, None):
        assert copy in run(capsys, "backup", store, copy)
    assert "1 streams" in run(capsys, "verify", copy, "--model", DEMO)
    assert run(capsys, "inspect", copy) == "numbers\n"
    assert "replaces nothing" in run(capsys, "backup", store, copy, code=2)
    assert "There is no file" in run(capsys, "backup", store, code=2)
    assert "leave the file out" in run(capsys, "backup", "http://127.0.0.1:9", copy, code=2)


def test_looking_after_a_store_needs_no_torch(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "append", store, "numbers", "4 17 2", "--model", DEMO)
    code = (
        "import sys; from remem.cli.main import main; "
        f"codes = [main(['inspect', {store!r}]), main(['verify', {store!r}]), main(['backup', {store!r}, "
        f"{store!r} + '.copy']), main(['export', {store!r}, 'numbers', {store!r} + '.numbers']), "
        f"main(['delete', {store!r}, 'numbers'])]; "
        "sys.exit(any(codes) or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
