"""Runs side by side: the same as one after another, and none harms another."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_commands import TINY

from remem.cli import side_by_side
from remem.cli.main import main

TRAIN = ["train", "synthetic/rm", *TINY]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as alone, since sums depend on it
    return tmp_path


def record(folder: Path) -> dict[str, object]:
    found = json.loads((folder / "record.json").read_text())
    return {name: found[name] for name in ("seed", "model", "metrics", "data", "config")}


def test_seeds_at_once_are_those_trained_alone(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--seed", "0", "1", "2", "--at-once", "2", "--out", "both"]) == 0
    told = capfd.readouterr()
    assert "3 of 3 runs done: 12 steps in" in told.err
    assert all(f"seed {seed}: synthetic/rm" in told.out for seed in (0, 1, 2))
    assert len(list((here / "results" / "synthetic").rglob("*.json"))) == 3
    subprocess.run([sys.executable, "-m", "remem", *TRAIN, "--seed", "1", "--out", "alone"], check=True)
    assert record(here / "both" / "s1") == record(here / "alone")
    assert record(here / "both" / "s0")["model"] != record(here / "alone")["model"]


def test_several_presets_are_trained_by_one_command(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    methods = ("rm-no-rehearsal", "rm-gru-encoder")
    both = ["train", *(f"synthetic/{method}" for method in methods), *TINY, "--seed", "0", "1", "--at-once", "2"]
    assert main([*both, "--out", "all"]) == 0
    told = capfd.readouterr()
    assert "4 of 4 runs done" in told.err
    # what was changed is in the names, too
    for method in methods:
        assert len(list((here / "all").glob(f"synthetic-{method}*-s[01]"))) == 2
        assert len(list((here / "results" / "synthetic").glob(f"{method}*/*.json"))) == 2
        assert all(f"synthetic/{method}[" in told.out and f"] seed {seed}: " in told.out for seed in (0, 1))
    assert len(list((here / "all").iterdir())) == 4
    assert main([*both, "--out", "other", "--method", "mine"]) == 2
    assert "--method mine names one row, but 2 presets are to be trained" in capfd.readouterr().err
    for given, missing in ((["synthetic/rm", "synthetic/no-such"], "synthetic/no-such"), ([], TINY[0])):
        assert main(["train", *given, *TINY]) == 2
        assert f"'{missing}' is no preset" in capfd.readouterr().err
    assert not (here / "other").exists()


def test_a_run_that_fails_leaves_the_others_alone(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "both" / "s1").mkdir(parents=True)
    (here / "both" / "s1" / "checkpoint.safetensors").write_bytes(b"no checkpoint")
    assert main([*TRAIN, "--seed", "0", "1", "--at-once", "2", "--out", "both"]) == 1
    told = capfd.readouterr()
    assert "1 of 2 runs done" in told.err
    assert "1 of 2 runs failed" in told.err
    assert told.err.rstrip().endswith("both/s1")
    assert "seed 1: remem: " in told.out  # and what stands against it
    assert (here / "both" / "s0" / "record.json").exists()


def test_runs_that_share_nothing_are_refused_before_they_begin(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--seed", "0", "1", "--at-once", "0"]) == 2
    assert "--at-once 0" in capsys.readouterr().err
    assert main(["train", "babi/rm", "--seed", "0", "1", "--at-once", "2"]) == 2
    assert "remem data import" in capsys.readouterr().err
    assert not list(here.rglob("config.json"))


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_is_interrupted_leaves_no_run_behind(here: Path, sent: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "remem", *TRAIN, "--seed", "0", "1", "2", "--at-once", "2", "--out", "both"]
    endless = ["--train.steps", "1000000", "--train.checkpoint-every", "1"]
    before = signal.signal(sent, signal.SIG_DFL)  # what is ignored here, under nohup say, a child would ignore too
    process = subprocess.Popen([*command, *endless], start_new_session=True, stderr=subprocess.PIPE, text=True)
    signal.signal(sent, before)
    try:
        waited = time.monotonic() + 60
        while not all((here / "both" / name / "checkpoint.safetensors").exists() for name in ("s0", "s1")):
            assert time.monotonic() < waited
            time.sleep(0.1)
        process.send_signal(sent)  # to it alone, not as a terminal does
        _, told = process.communicate(timeout=60)
        assert process.returncode == code
        assert "Traceback" not in told
        assert ("stopped" in told) == (sent == signal.SIGINT)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)  # nobody of its group is there
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert not (here / "both" / "s2" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("starts", [True, False])
def test_a_shared_gpu_has_a_daemon_as_long_as_it_is_needed(
    here: Path, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    """NVIDIA's program is not on every machine; this one notes how it is called."""
    control = here / side_by_side._MPS
    notes = here / "calls"
    control.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n[ $# = 0 ] && cat >> {notes}\nexit {int(not starts)}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    for place in side_by_side._PLACES:
        monkeypatch.delenv(place, raising=False)
    with side_by_side._one_gpu_for_all("cuda") as environment:
        folders = [Path(environment[place]) for place in side_by_side._PLACES if place in environment]
        assert len(folders) == (2 if starts else 0)
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)
    assert notes.read_text() == ("-d\n\nquit\n" if starts else "-d\n")
    # neither where there is nothing to share nor beside a daemon of somebody else's
    with side_by_side._one_gpu_for_all("cpu") as environment:
        assert not set(side_by_side._PLACES) & environment.keys()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    with side_by_side._one_gpu_for_all("cuda") as environment:
        assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/somewhere"
    assert notes.read_text().count("-d") == 1
