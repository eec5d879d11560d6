"""`remem bench service` in its short form: every part runs, and its figures can be true."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from server_parts import Server

from remem.cli.main import main
from remem.server.bench.generator import Load
from remem.server.bench.load import Running, percentiles, put_load
from remem.server.bench.reread import make_story
from remem.settings.tasks import SyntheticTask

MODELS = Path(__file__).resolve().parents[2] / "models"
BENCH = MODELS.parent / "results" / "service" / "bench"


@pytest.mark.slow
def test_the_short_benchmark_writes_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "service.json"
    assert main(["bench", "service", str(MODELS / "synthetic"), "--quick", "--out", str(out)]) == 0
    said, record = capsys.readouterr().out, json.loads(out.read_text())
    assert "whole history" in said
    mixed, batches = record["load"]["rows"]
    assert (mixed["errors"], batches["errors"]) == (0, 0)
    assert mixed["requests"] == 60
    assert 0 < mixed["append_ms"]["p50"] <= mixed["append_ms"]["p99"] <= mixed["append_ms"]["max"]
    assert "query_ms" in mixed
    assert "query_ms" not in batches
    assert record["flat"]["rows"][0]["query"]["ratio"] > 0
    rows = {(row["events"], row["way"]): row for row in record["reread"]["rows"]}
    for events in (200, 1000):
        memory, whole = rows[events, "memory"], rows[events, "whole history"]
        assert memory["accuracy"] == whole["accuracy"]  # the same model, the same events
        assert memory["cpu_ms"] < whole["cpu_ms"]
    assert rows[1000, "memory"]["bytes_per_stream"] == rows[200, "memory"]["bytes_per_stream"]
    assert rows[1000, "whole history"]["bytes_per_stream"] > rows[200, "whole history"]["bytes_per_stream"]
    assert record["load"]["code"]
    assert main(["bench", "service", str(MODELS / "synthetic"), "--quick", "--parts", "reread", "--out", str(out)]) == 0
    again = json.loads(out.read_text())
    assert again["load"] == record["load"]  # kept
    assert len(again["reread"]["rows"]) == len(record["reread"]["rows"])


def test_the_generator_counts_from_when_a_request_was_due(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        load: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "token": server.token, "num_items": 50}
        row = put_load(
            Running(server.url, server.token, server.process),  # type: ignore[arg-type]
            Load(**load, rate=200.0, seconds=1.0, warmup=0.2, query_share=0.3, batch=2, streams=30, num_questions=5),
        )
        assert (row["requests"], row["errors"], row["statuses"]) == (240, 0, {"200": 240})
        assert 0 <= row["stolen_cpu"] <= (os.cpu_count() or 1)
        with server.client() as client:
            stored = sum(client.inspect(name).next_seq for name in client.list().streams)
        deadline = time.monotonic() + 10.0  # lines are written ten times a second, later on a busy machine
        while server.log.count("/events") + server.log.count("/query") < 30 + 240 and time.monotonic() < deadline:
            time.sleep(0.05)
        queries = server.log.count("/query")
        before = sum(1 + stream % 20 for stream in range(30))  # what each stream begins with
        assert stored == before + 2 * (240 - queries)
        # one connection for requests due nearly at once: those who wait for it are late, however fast the server is
        crowded = put_load(
            Running(server.url, server.token, server.process),  # type: ignore[arg-type]
            Load(**load, rate=30_000.0, seconds=0.01, warmup=0.0, query_share=0.0, batch=1, streams=300,
                 num_questions=5, connections=1, prefix="crowd"),
        )  # fmt: skip
        assert crowded["append_ms"]["p99"] > 2 * row["append_ms"]["p50"]
    finally:
        assert server.stop() == 0


def test_percentiles_are_those_of_the_definition() -> None:
    found = percentiles([number / 1000 for number in range(1, 1001)])
    assert found == {"p50": 501.0, "p95": 951.0, "p99": 991.0, "p99.9": 1000.0, "max": 1000.0}


def test_a_story_holds_its_evidence() -> None:
    from remem.data.synthetic import logic_chains

    task = SyntheticTask()
    story = make_story(task, 1000, 3)
    assert len(story.facts) == 1000
    assert len(story.questions) == len({query for query, _ in story.questions}) == 5
    text = ",".join(map(str, story.facts))
    for query, answer in story.questions:
        assert ",".join(map(str, logic_chains(task)[query, answer].tolist())) in text


def figures(record: dict[str, Any]) -> str:
    """The record as the guide quotes it."""
    lines = ["| load | errors | verb | p50 ms | p99 ms | max ms | server cores |",
             "| --- | ---: | --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for row in record["load"]["rows"]:
        for verb in [verb for verb in ("append", "query") if f"{verb}_ms" in row]:
            times = [row[f"{verb}_ms"][name] for name in ("p50", "p99", "max")]
            cells = [row["load"], row["errors"], verb, *times, row["server_cpu"]]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| events in the stream | append p50 ms | query p50 ms | bytes |", "| ---: | ---: | ---: | ---: |"]
    for row in record["flat"]["rows"]:
        for name in ("short", "long"):
            times = [row[verb][f"p50_{name}_ms"] for verb in ("append", "query")]
            lines.append("| " + " | ".join(map(str, [row[name], *times, row["bytes"][str(row[name])]])) + " |")
    lines += ["", "| events | way | p50 ms | CPU ms | bytes a stream | right % |",
              "| ---: | --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for row in record["reread"]["rows"]:
        cells = [row[name] for name in ("events", "way", "p50_ms", "cpu_ms", "bytes_per_stream", "accuracy")]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def test_the_guides_figures_are_those_of_the_record() -> None:
    record = json.loads((BENCH / "service.json").read_text())
    page = (MODELS.parent / "docs" / "service.md").read_text()
    quoted = page.split("<!-- remem bench service -->\n")[1].split("\n<!-- end -->")[0]
    assert quoted == figures(record)
    runs = [json.loads((BENCH / f"service-again-{number}.json").read_text()) for number in range(1, 15)]
    assert len(list(BENCH.glob("service*.json"))) == len(runs) + 1
    for number, run in enumerate([*runs, record], start=1):
        mixed = run["load"]["rows"][0]
        times = f"{mixed['append_ms']['p99']:g} | {mixed['query_ms']['p99']:g}"
        assert f"| {number} | {mixed['stolen_cpu']:g} | {times} |" in page
        assert mixed["errors"] == 0


def test_a_model_of_sentences_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "service", str(MODELS / "babi"), "--quick"]) == 2
    assert "item numbers" in capsys.readouterr().err
