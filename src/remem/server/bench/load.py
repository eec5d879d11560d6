"""Load on a real server: `remem serve` in one process, the generator in another, on whatever cores there are."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remem.client.sync import Client
from remem.errors import RememError
from remem.server.bench.generator import Load, percentiles

_WARM_UP = 20


@dataclass
class Running:
    """A server under test."""

    url: str
    token: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def cpu_seconds(self) -> float:
        """What it has used so far, its reader included."""
        own = self.process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        ticks = 0
        for pid in [own, *children]:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def backlog(self) -> float:
        """Streams that wait for consolidation."""
        asked = urllib.request.Request(f"{self.url}/metrics", headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(asked, timeout=10) as reply:
            text = reply.read().decode()
        found = re.search(r"^rm_consolidation_backlog_streams (\S+)$", text, flags=re.MULTILINE)
        return float(found[1]) if found else 0.0


def stolen_seconds() -> float:
    """Processor time that the machine's host gave to others so far; zero on a machine of one's own."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running_server(model: Path) -> Iterator[Running]:
    """A server on a store of its own, durable to the disk, with every default."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "remem",
            "serve",
            f"{folder}/memories.db",
            "--model",
            str(model),
            "--port",
            "0",
        ]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            first, second = process.stdout.readline(), process.stdout.readline()
            url, token = re.search(r"http://\S+", first), re.search(r"remem_\S+", second)
            if url is None or token is None:
                raise RememError(f"The server did not start: {(Path(folder) / 'log').read_text()[-500:]}")
            yield Running(url[0], token[0], process)
        finally:
            process.terminate()
            process.wait(60)


def put_load(server: Running, load: Load) -> dict[str, Any]:
    """Send a load from another process; the row of the table."""
    before, stolen, started = server.cpu_seconds(), stolen_seconds(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "remem.server.bench.generator"],
        input=json.dumps(asdict(load)),
        capture_output=True,
        text=True,
        timeout=20 * (load.warmup + load.seconds) + 60,
    )
    if done.returncode:
        raise RememError(f"The load generator failed: {done.stderr[-500:]}")
    found, seconds = json.loads(done.stdout), time.monotonic() - started
    stolen = stolen_seconds() - stolen
    ended = time.monotonic()
    while server.backlog():
        time.sleep(0.02)
    behind = time.monotonic() - ended
    row: dict[str, Any] = {
        "load": f"{load.rate:g} requests/s"
        if load.batch == 1
        else f"{load.rate * load.batch:g} events/s by {load.batch}",
        "requests": found["requests"],
        "errors": sum(count for status, count in found["statuses"].items() if status != "200"),
        "statuses": found["statuses"],
        "sent_per_second": round(found["sent_per_second"], 1),
        "server_cpu": round((server.cpu_seconds() - before) / seconds, 3),
        "generator_cpu": round(found["generator_cpu_seconds"] / found["seconds"], 3),
        "stolen_cpu": round(stolen / seconds, 3),
        "generator_late_ms": round(found["generator_late_ms"], 2),
        "seconds_until_consolidated": round(behind, 2),
    }
    return row | {f"{verb}_ms": found["latencies"][verb] for verb in found["latencies"]}


def flatness(server: Running, lengths: tuple[int, int], num_items: int, pairs: int) -> dict[str, Any]:
    """Append and query on a short and on a long stream in turn, so that what disturbs the machine disturbs both."""
    with Client(server.url, token=server.token, timeout=60.0, patience=600.0) as client:
        streams = {length: client.stream(f"flat-{length}") for length in lengths}
        for length, stream in streams.items():
            for start in range(0, length, 1000):
                stream.append([(7 * number) % num_items for number in range(start, min(length, start + 1000))])
        for length, stream in streams.items():
            while stream.inspect().tail_events >= 1000:
                time.sleep(0.05)
            stream.flush()
            assert length < (stream.next_seq or 0)
        times: dict[tuple[str, int], list[float]] = {(verb, n): [] for verb in ("append", "query") for n in lengths}
        for number in range(pairs + _WARM_UP):
            for length in lengths if number % 2 else lengths[::-1]:
                stream = streams[length]
                started = time.perf_counter()
                stream.append([3])
                appended = time.perf_counter()
                stream.query(3, top=1)
                if number >= _WARM_UP:
                    times["append", length].append(appended - started)
                    times["query", length].append(time.perf_counter() - appended)
        sizes = {length: stream.inspect().bytes for length, stream in streams.items()}
    short, long = lengths
    row: dict[str, Any] = {"short": short, "long": long, "bytes": {str(length): size for length, size in sizes.items()}}
    for verb in ("append", "query"):
        p50 = {length: percentiles(times[verb, length])["p50"] for length in lengths}
        row[verb] = {"p50_short_ms": p50[short], "p50_long_ms": p50[long], "ratio": round(p50[long] / p50[short], 3)}
    return row
