"""`remem bench service`: runs all of it, prints the tables, and writes the record."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from remem.bundle import load_bundle
from remem.errors import BadInput
from remem.server.bench.generator import Load
from remem.server.bench.load import flatness, put_load, running_server
from remem.server.bench.reread import LENGTHS, compare


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much to measure."""

    seconds: float = 60.0
    warmup: float = 5.0
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


QUICK = Plan(seconds=1.0, warmup=0.5, rate=40.0, event_rate=500.0, streams=20, flat=(100, 1000), lengths=(200, 1000),
             histories=(2, 1), repeats=3, pairs=30)  # fmt: skip


def bench_service(model: Path, plan: Plan, out: Path | None, code: dict[str, Any]) -> Iterator[str]:
    """Lines of the tables as they are measured."""
    bundle = load_bundle(model)
    if bundle.codec.kind != "ids":
        raise BadInput(
            "The load is made of item numbers; give a model of the synthetic task, such as models/synthetic."
        )
    rows: list[dict[str, Any]] = []
    yield f"{model.name}, {os.cpu_count()} cores shared with the generator and whatever else runs, load {_others()}"
    with running_server(model) as server:
        mixed = Load(
            host="127.0.0.1", port=server.port, token=server.token, seconds=plan.seconds, warmup=plan.warmup,
            num_items=bundle.codec.num_items, num_questions=bundle.codec.num_queries, streams=plan.streams,
            rate=plan.rate, query_share=0.3, batch=1, prefix="mixed",
        )  # fmt: skip
        batches = replace(mixed, rate=plan.event_rate / 100, query_share=0.0, batch=100, prefix="batch")
        for load in (mixed, batches):
            rows.append(put_load(server, load))
            yield from _load_lines(rows[-1])
    with running_server(model) as server:
        flat = flatness(server, plan.flat, bundle.codec.num_items, plan.pairs)
        for verb in ("append", "query"):
            yield (
                f"{verb} p50: {flat[verb]['p50_short_ms']} ms at {flat['short']:,} events, "
                f"{flat[verb]['p50_long_ms']} ms at {flat['long']:,}: {flat[verb]['ratio']} times"
            )
    yield f"{'events':>7} {'way':<14} {'p50 ms':>9} {'CPU ms':>9} {'bytes/stream':>13} {'right':>7}"
    history = []
    for row in compare(model, plan.lengths, plan.histories, plan.repeats):
        history.append(row)
        yield (
            f"{row['events']:>7,} {row['way']:<14} {row['p50_ms']:>9.2f} {row['cpu_ms']:>9.2f} "
            f"{row['bytes_per_stream']:>13,} {row['accuracy']:>6.1f}%"
        )
    if out is not None:
        record = {
            "benchmark": "service",
            "model": bundle.fingerprint,
            "device": f"{platform.machine()} CPU, {os.cpu_count()} cores",
            "others": _others(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "code": code,
            "load": rows,
            "flatness": flat,
            "reread": history,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1) + "\n")


def _others() -> str:
    """The machine's load average, which tells who else was there."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def _load_lines(row: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{row['load']}: {row['requests']} requests, {row['errors']} errors, {row['sent_per_second']:g}/s sent; server "
        f"{row['server_cpu']:.2f} cores, generator {row['generator_cpu']:.2f}, late by {row['generator_late_ms']:g} ms "
        f"at most; consolidated {row['seconds_until_consolidated']:g} s after the last reply"
    )
    for verb in ("append", "query"):
        if f"{verb}_ms" in row:
            yield f"  {verb:<7}" + "".join(f" {name} {value:g} ms" for name, value in row[f"{verb}_ms"].items())


def as_markdown(record: dict[str, Any]) -> str:
    """The record's tables, for the page that quotes them."""
    lines = ["| load | errors | verb | p50 ms | p95 ms | p99 ms | p99.9 ms | max ms | server cores |",
             "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for row in record["load"]:
        for verb in ("append", "query"):
            if f"{verb}_ms" in row:
                cells = [row["load"], row["errors"], verb, *row[f"{verb}_ms"].values(), row["server_cpu"]]
                lines.append("| " + " | ".join(map(str, cells)) + " |")
    flat = record["flatness"]
    lines += [
        "",
        f"| p50 ms | {flat['short']:,} events | {flat['long']:,} events | times |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {verb} | {flat[verb]['p50_short_ms']} | {flat[verb]['p50_long_ms']} | {flat[verb]['ratio']} |"
        for verb in ("append", "query")
    ]
    lines += [
        "",
        "| events | way | p50 ms | CPU ms | bytes a stream | right % |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['events']:,} | {row['way']} | {row['p50_ms']} | {row['cpu_ms']} | {row['bytes_per_stream']:,} "
        f"| {row['accuracy']} |"
        for row in record["reread"]
    ]
    return "\n".join(lines)
