"""`remem bench service`: runs its parts, prints their tables, and writes the record."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from remem.bundle import load_bundle
from remem.data.codec import IdCodec
from remem.errors import BadInput
from remem.server.bench.generator import Load
from remem.server.bench.load import flatness, put_load, running_server
from remem.server.bench.reread import LENGTHS, compare


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much to measure."""

    seconds: float = 60.0
    warmup: float = 5.0
    pause: float = 6.0
    rate: float = 800.0
    """Mixed requests a second: 70 % appends of one event, 30 % queries."""
    event_rate: float = 10_000.0
    """Events a second in batches of 100."""
    streams: int = 1000
    flat: tuple[int, int] = (1000, 1_000_000)
    lengths: tuple[int, ...] = LENGTHS
    histories: tuple[int, ...] = (40, 12, 6, 3)
    """Streams of each length."""
    repeats: int = 30
    pairs: int = 400
    """Appends and queries on either stream for flatness."""


QUICK = Plan(seconds=1.0, warmup=0.5, pause=0.5, rate=40.0, event_rate=500.0, streams=20, flat=(100, 1000),
             lengths=(200, 1000), histories=(2, 1), repeats=3, pairs=30)  # fmt: skip


def bench_service(
    model: Path, plan: Plan, parts: Sequence[str], out: Path | None, code: dict[str, Any]
) -> Iterator[str]:
    """Lines of the tables as they are measured. A record that is there keeps the parts that are not measured again."""
    bundle = load_bundle(model)
    if not isinstance(bundle.codec, IdCodec):
        raise BadInput(
            "The load is made of item numbers; give a model of the synthetic task, such as models/synthetic."
        )
    yield f"{model.name}, {os.cpu_count()} cores shared with the generator and whatever else runs"
    for part in parts:
        yield f"{part}, load average {_others()}"
        rows: list[dict[str, Any]] = []
        for row, lines in {"load": _load, "flat": _flat, "reread": _reread}[part](model, bundle.codec, plan):
            rows.append(row)
            yield from lines
        if out is not None:
            _write(out, part, {"load_average": _others(), "code": code, "rows": rows}, bundle.fingerprint)


def _write(out: Path, part: str, found: dict[str, Any], model: str) -> None:
    record = json.loads(out.read_text()) if out.is_file() else {}
    record |= {
        "benchmark": "service",
        "model": model,
        "device": f"{platform.machine()} CPU, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        part: found,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")


_Rows = Iterator[tuple[dict[str, Any], Iterable[str]]]


def _load(model: Path, codec: IdCodec, plan: Plan) -> _Rows:
    with running_server(model) as server:
        mixed = Load(
            host="127.0.0.1", port=server.port, token=server.token, seconds=plan.seconds, warmup=plan.warmup,
            num_items=codec.num_items, num_questions=codec.num_queries, streams=plan.streams,
            rate=plan.rate, query_share=0.3, batch=1, prefix="mixed", pause=plan.pause,
        )  # fmt: skip
        batches = replace(mixed, rate=plan.event_rate / 100, query_share=0.0, batch=100, prefix="batch")
        for load in (mixed, batches):
            row = put_load(server, load)
            yield row, _load_lines(row)


def _flat(model: Path, codec: IdCodec, plan: Plan) -> _Rows:
    with running_server(model) as server:
        row = flatness(server, plan.flat, codec.num_items, plan.pairs)
    yield (
        row,
        [
            f"{verb} p50: {row[verb]['p50_short_ms']} ms at {row['short']:,} events, "
            f"{row[verb]['p50_long_ms']} ms at {row['long']:,}: {row[verb]['ratio']} times"
            for verb in ("append", "query")
        ],
    )


def _reread(model: Path, codec: IdCodec, plan: Plan) -> _Rows:
    for row in compare(model, plan.lengths, plan.histories, plan.repeats):
        yield (
            row,
            [
                f"{row['events']:>7,} events, {row['way']:<14} {row['p50_ms']:>9.2f} ms {row['cpu_ms']:>9.2f} ms CPU "
                f"{row['bytes_per_stream']:>10,} bytes {row['accuracy']:>6.1f}% right"
            ],
        )


def _others() -> str:
    """The machine's load average, which tells who else was there."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def _load_lines(row: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{row['load']}: {row['requests']} requests, {row['errors']} errors, {row['sent_per_second']:g}/s sent; server "
        f"{row['server_cpu']:.2f} cores, generator {row['generator_cpu']:.2f}, the host took {row['stolen_cpu']:.2f}; "
        f"late by {row['generator_late_ms']:g} ms at most; consolidated {row['seconds_until_consolidated']:g} s "
        "after the last reply"
    )
    for verb in ("append", "query"):
        if f"{verb}_ms" in row:
            yield f"  {verb:<7}" + "".join(f" {name} {value:g} ms" for name, value in row[f"{verb}_ms"].items())
