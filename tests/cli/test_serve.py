"""`remem serve` with a real model, and the commands that ask it in place of a store."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remem.build import build_model
from remem.bundle import save_bundle
from remem.cli.main import main
from remem.data.codec import PassageCodec
from remem.experiments.presets import find_preset
from remem.service import MemoryEngine
from remem.service.archive import read_archive

BABI = str(Path(__file__).resolve().parents[2] / "models" / "babi")


class Serving:
    """A server as a person starts it."""

    def __init__(self, folder: Path, model: str = BABI) -> None:
        self.store, self.log, self.model = folder / "memories.db", (folder / "log").open("ab"), model
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "remem", "serve", str(self.store), "--model", self.model, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found, "the server did not start"
        self.url = found[0]

    def said_token(self) -> str:
        assert self.process.stdout is not None
        found = re.search(r"remem_\S+", self.process.stdout.readline())
        assert found
        return found[0]

    def stop(self) -> str:
        """Ends it; returns what else it had said."""
        assert self.process.stdout is not None
        self.process.terminate()
        rest = self.process.stdout.read()
        assert self.process.wait(30) == 0
        return rest


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    started = Serving(tmp_path_factory.mktemp("serve"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def token(serving: Serving) -> str:
    return serving.said_token()


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def test_the_commands_take_a_server_in_place_of_a_store(
    serving: Serving, token: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, story = serving.url, "Mary moved to the bathroom. John went to the hallway. Mary journeyed to the garden."
    monkeypatch.delenv("REMEM_TOKEN", raising=False)
    assert "REMEM_TOKEN" in run(capsys, "inspect", url, code=2)
    monkeypatch.setenv("REMEM_TOKEN", token)
    said = run(capsys, "append", "mary", story, "--url", url, "--seq", "0")
    assert said == "mary: 3 events added; the next is number 3.\n"
    again = run(capsys, "append", url, "mary", story, "--seq", "0")
    assert again == "mary: 0 events added, 3 were there already; the next is number 3.\n"
    moved = run(capsys, "append", url, "mary", "John went to the office.", "--format", "json")
    assert json.loads(moved)["next_seq"] == 4
    asked = run(
        capsys, "query", f"--url={url}", "mary", "Where is Mary?", "Where is John?", "--top", "1", "--min-seq", "4"
    )
    assert "Where is Mary? -> garden" in asked
    assert "Where is John? -> office" in asked
    shown = json.loads(run(capsys, "query", url, "mary", "Where is Mary?", "--format", "json"))
    assert (shown["questions"][0]["answer"], shown["questions"][0]["as_of_seq"]) == ("garden", 4)
    assert run(capsys, "inspect", "--url", url) == "mary\n"
    assert json.loads(run(capsys, "inspect", url, "mary", "--format", "json"))["next_seq"] == 4
    assert run(capsys, "verify", "--url", url).startswith("1 streams")
    assert "'xyzzied' is not among" in run(capsys, "append", url, "mary", "Mary xyzzied.", code=2)
    assert "There is no stream 'none'" in run(capsys, "query", url, "none", "Where is Mary?", code=2)
    assert "the token decides" in run(capsys, "delete", url, "mary", "--tenant", "other", code=2)
    assert "started with" in run(capsys, "query", url, "mary", "Where is Mary?", "--model", BABI, code=2)
    assert "needs the address" in run(capsys, "inspect", "--url", code=2)
    assert "is no address" in run(capsys, "inspect", "--url", "memories.db", code=2)
    assert "There is no model" in run(capsys, "query", str(tmp_path / "x.db"), "mary", "Where?", code=2)
    file = str(tmp_path / "mary.safetensors")
    assert file in run(capsys, "export", url, "mary", file)
    assert run(capsys, "import", "--url", url, "maria", file) == "maria: 4 events, 4 of them in the memory.\n"
    assert "Where is John? -> office" in run(capsys, "query", url, "maria", "Where is John?", "--top", "1")
    copied = run(capsys, "backup", url).split(":")[0]
    assert run(capsys, "inspect", str(serving.store.with_name(copied))) == "maria\nmary\n"
    assert run(capsys, "delete", url, "maria") == "maria: deleted.\n"
    monkeypatch.setenv("REMEM_TOKEN", "remem_wrong")
    assert "not one of this server's" in run(capsys, "delete", url, "mary", code=1)
    monkeypatch.setenv("REMEM_TOKEN", token)
    assert run(capsys, "delete", url, "mary") == "mary: deleted.\n"
    assert run(capsys, "delete", url, "mary") == "mary: there was no such stream.\n"


def test_tokens_are_made_listed_and_taken_back(
    serving: Serving, token: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tokens = f"{serving.store}.tokens.json"
    assert token not in Path(tokens).read_text()
    own = str(tmp_path / "own.json")
    made = run(capsys, "token", "add", own, "--tenant", "acme", "--scopes", "query", "append").strip()
    assert made.startswith("remem_")
    listed = run(capsys, "token", "list", own).split()
    assert listed[1:] == ["acme", "append,query"]
    assert run(capsys, "token", "remove", own, "--id", listed[0]) == ""
    assert run(capsys, "token", "list", own) == ""
    assert "There is no token" in run(capsys, "token", "remove", own, "--id", "x", code=2)
    assert "does not exist" in run(capsys, "token", "list", own + "x", code=2)
    assert "expected some of" in run(capsys, "token", "add", own, "--scopes", "all", code=2)


def test_the_guides_client_runs(serving: Serving, token: str) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text()
    code = page.split("```python\n")[2].split("```")[0]
    code = code.replace("http://127.0.0.1:8080", serving.url).replace("remem_...", token)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("garden\n", 0), done.stderr


def test_a_server_that_others_could_reach_in_the_clear_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "x.db"
    assert "in the clear" in run(capsys, "serve", str(store), "--model", BABI, "--host", "0.0.0.0", code=2)
    assert not store.exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--ttl=0", "above 0"),
        ("--backups=no-such-folder", "is no folder"),
        ("--drain-seconds=nan", "drain_seconds is nan"),
        ("--deadline=nan", "deadline is nan"),
        ("--model=no-such-folder", "give the folder of a run or of a saved model"),
        ("--tls-cert=none.pem --tls-key=none.key", "none.pem and none.key are no certificate and its key"),
    ],
)
def test_settings_of_the_store_are_checked_before_it_is_made(
    option: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "memories.db"
    assert words in run(capsys, "serve", str(store), "--model", BABI, "--port=0", *option.split(), code=2)
    assert not store.exists()


def test_a_certificate_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (key := tmp_path / "key.pem").write_text("no key")
    for cert in (tmp_path / "nowhere.pem", key):
        options = ["--model", BABI, "--tls-cert", str(cert), "--tls-key", str(key)]
        assert "are no certificate and its key" in run(capsys, "serve", str(tmp_path / "x.db"), *options, code=2)
    assert not (tmp_path / "x.db").exists()


def test_a_reader_leaves_it_to_the_server_to_say_what_is_wrong(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    with one, other:  # of which nobody speaks before the model is read, which is none
        places = [one.fileno(), other.fileno()]
        command = [sys.executable, "-m", "remem.server.reader", str(tmp_path / "x.db"), str(tmp_path)]
        done = subprocess.run(
            [*command, *map(str, places)], capture_output=True, text=True, pass_fds=places, check=False
        )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_questions_go_on_when_their_reader_is_lost(
    serving: Serving, token: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMEM_TOKEN", token)
    run(capsys, "append", serving.url, "lost", "Mary went to the garden.")
    assert "-> garden" in run(capsys, "query", serving.url, "lost", "Where is Mary?")
    children = Path(f"/proc/{serving.process.pid}/task/{serving.process.pid}/children").read_text().split()
    readers = [pid for pid in children if "remem.server.reader" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(readers) == 1
    os.kill(int(readers[0]), signal.SIGTERM)  # which is for the server to heed
    assert "-> garden" in run(capsys, "query", serving.url, "lost", "Where is Mary?")
    assert Path(f"/proc/{readers[0]}").exists()
    os.kill(int(readers[0]), signal.SIGKILL)
    assert "-> garden" in run(capsys, "query", serving.url, "lost", "Where is Mary?")
    assert run(capsys, "delete", serving.url, "lost") == "lost: deleted.\n"


def test_the_token_is_shown_at_the_first_start_alone(serving: Serving, token: str) -> None:
    assert serving.stop() == ""
    serving.start()
    assert "remem_" not in serving.stop()


def test_a_model_that_chooses_is_given_whole_sentences_and_can_not_be_asked_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of = find_preset("narrativeqa/rm")
    run_of = replace(run_of, model=replace(run_of.model, item_dim=16, model_dim=16))
    codec = PassageCodec(segment_len=4, words=["<unknown>", "the", "man", "went", "home", "."])
    model, store, story = str(tmp_path / "model"), str(tmp_path / "own.db"), "The man went home, slowly. Mr. Poe slept."
    save_bundle(Path(model), build_model(run_of.model, codec), run_of, codec)
    assert "s: 2 events added" in run(capsys, "append", store, "s", story, "--model", model)
    assert "among candidates" in run(capsys, "query", store, "s", "who went home", "--model", model, code=2)
    serving = Serving(tmp_path, model)
    try:
        monkeypatch.setenv("REMEM_TOKEN", serving.said_token())
        assert "s: 2 events added" in run(capsys, "append", serving.url, "s", story)
        assert "among candidates" in run(capsys, "query", serving.url, "s", "who went home", code=2)
    finally:
        serving.stop()
    digests = set()
    for path in (store, serving.store):
        with MemoryEngine.open(path, None, read_only=True) as engine:
            digests.add(read_archive(engine.export("s")).digests)
    assert len(digests) == 1  # of the same two events
