"""Several runs at once, a process each: one small model does not fill a GPU, nor all cores of a machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from remem.errors import RememError
from remem.settings.codec import to_json
from remem.settings.run import Run

_MPS = "nvidia-cuda-mps-control"
_PLACES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


def train_side_by_side(
    runs: Sequence[Run], folders: Sequence[Path], *, at_once: int, device: str, results: Path
) -> None:
    """Train all runs, so many at a time; says what they did together. One that fails leaves the others alone."""
    for run, folder in zip(runs, folders, strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(to_json(run), indent=1))
    began = time.perf_counter()
    with _one_gpu_for_all(device) as environment:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
        names = {f"{run.task.name}/{run.method}" for run in runs}
        team = _Team(environment, ["--device", device, "--results", str(results)], named=len(names) > 1)
        with _told_to_end(), ThreadPoolExecutor(at_once) as threads:
            try:
                codes = list(threads.map(team.train, runs, folders))
            except BaseException:
                team.stop()
                raise
    seconds = time.perf_counter() - began
    done = [folder for folder, code in zip(folders, codes, strict=True) if code == 0]
    steps = sum(json.loads((folder / "record.json").read_text())["cost"]["steps"] for folder in done)
    rate = f"{steps:,} steps in {seconds:.0f} s, {steps / seconds:.1f} a second together, with loading and testing"
    print(f"{len(done)} of {len(runs)} runs done: {rate}", file=sys.stderr)
    failed = [str(folder) for folder in folders if folder not in done]
    if failed:
        raise RememError(
            f"{len(failed)} of {len(runs)} runs failed, for what they say above; go on with each by "
            f"`remem train --resume FOLDER`: {', '.join(failed)}"
        )


class _Team:
    def __init__(self, environment: dict[str, str], options: list[str], *, named: bool) -> None:
        self._environment, self._options, self._named = environment, options, named
        self._lock, self._stopped = threading.Lock(), False
        self._working: set[subprocess.Popen[str]] = set()

    def train(self, run: Run, folder: Path) -> int:
        """A run begins as one that was stopped before its first step goes on; returns the exit code."""
        command = [sys.executable, "-m", "remem", "train", "--resume", str(folder), *self._options]
        with self._lock:
            if self._stopped:
                return 1
            process = subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            self._working.add(process)
        assert process.stdout is not None
        who = f"{run.task.name}/{run.method} seed {run.seed}" if self._named else f"seed {run.seed}"
        for line in process.stdout:
            with self._lock:
                print(f"{who}: {line}", end="", flush=True)
        with self._lock:
            self._working.remove(process)
        return process.wait()

    def stop(self) -> None:
        """End what works, and begin nothing more; checkpoints are kept."""
        with self._lock:
            self._stopped = True
            for process in self._working:
                process.terminate()


@contextmanager
def _told_to_end() -> Iterator[None]:
    """A kill, as an interrupt does, ends what was begun here; else the runs would go on by themselves."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _one_gpu_for_all(device: str) -> Iterator[dict[str, str]]:
    """The environment of processes that share a GPU: by NVIDIA's MPS where there is one, else they take turns."""
    environment = dict(os.environ)
    given = any(place in environment for place in _PLACES) or Path("/tmp/nvidia-mps").exists()
    if device == "cpu" or given or shutil.which(_MPS) is None:
        yield environment
        return
    with TemporaryDirectory(prefix="remem-mps-") as folder:
        shared = environment | dict.fromkeys(_PLACES, folder)
        begun = subprocess.run([_MPS, "-d"], env=shared, check=False, capture_output=True).returncode == 0
        try:
            yield shared if begun else environment
        finally:
            if begun:
                subprocess.run([_MPS], input="quit\n", text=True, env=shared, check=False, capture_output=True)
