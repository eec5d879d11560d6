"""`remem demo`: the main job in three minutes: train, compare, save, then read a stream item by item."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import tyro

from remem.experiments.presets import DEMO
from remem.settings.model import without_rehearsal
from remem.settings.run import Run


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train rehearsal memory on a reduced synthetic task on the CPU, then use it."""

    out: Path = Path("runs/demo")
    """Folder for the two models."""
    seed: int = 0
    """Seed of weights and batches."""
    quick: bool = False
    """A few steps only: shows that everything runs, learns nothing."""


def main(argv: list[str]) -> None:
    """Train with and without rehearsal, print the table, then stream."""
    options = tyro.cli(Options, args=argv, prog="remem demo")
    from rich.console import Console

    console = Console()
    rows = {}
    for name, run in demo_runs(options).items():
        rows[name] = _train(run, options.out / run.method)
    task = DEMO.task
    console.print(_table(rows, chance=100 / task.num_answers))  # type: ignore[union-attr]
    console.print("On streams this short both learn; rehearsal is meant for longer ones.")
    model = options.out / "rm"
    console.print(f"\nThe model is saved in {model}. A fresh stream, item by item:\n")
    for line in read_a_stream(model, seed=options.seed):
        console.print(line, highlight=False)
    console.print("\nThe same stream in a durable store, whose writer is killed in the middle of it:\n")
    with TemporaryDirectory(prefix="remem-demo-") as store:  # not beside the models, where a store of one's own may be
        for line in survive_a_kill(model, Path(store) / "memories.db", seed=options.seed):
            console.print(line, highlight=False)


def demo_runs(options: Options) -> dict[str, Run]:
    """The two runs that are compared: the same in all but rehearsal."""
    run = replace(DEMO, seed=options.seed)
    if options.quick:
        run = replace(
            run,
            train=replace(run.train, steps=20, eval_every=10),
            sampler_train=replace(run.sampler_train, steps=20, eval_every=10),
        )
    plain = replace(run, method="rm-no-rehearsal", model=without_rehearsal(run.model))
    return {"RM": run, "RM without rehearsal": plain}


def _train(run: Run, folder: Path) -> dict[str, Any]:
    import torch

    from remem.training.run import Trainer

    _, record = Trainer(run, folder, device=torch.device("cpu")).train()
    return record


def _table(rows: dict[str, dict[str, Any]], chance: float) -> Any:
    from rich.table import Table

    table = Table("", "early %", "later %", "seconds", title="Test accuracy by where the evidence stood")
    for name, record in rows.items():
        test = record["metrics"]["test"]
        table.add_row(name, f"{test['early']:.1f}", f"{test['later']:.1f}", f"{record['cost']['wall_seconds']:.0f}")
    table.add_row("chance", f"{chance:.1f}", f"{chance:.1f}", "")
    return table


class Stream(NamedTuple):
    """A stream that no one has seen, and a question about it."""

    facts: list[int]
    query: int
    answer: int
    evidence: list[int]
    start: int


def make_stream(seed: int) -> Stream:
    """Random facts, with the evidence of one answer near the start."""
    from remem.data.random import StableRandom
    from remem.data.synthetic import logic_chains

    task = DEMO.task
    chains = logic_chains(task)  # type: ignore[arg-type]
    random = StableRandom("demo stream", seed)
    query, answer = (int(random.integers(n, 1)[0]) for n in chains.shape[:2])
    facts = [int(fact) for fact in random.integers(task.num_facts, task.stream_len)]  # type: ignore[union-attr]
    evidence = chains[query, answer].tolist()
    start = 2
    facts[start : start + len(evidence)] = evidence
    return Stream(facts, query, answer, evidence, start)


def read_a_stream(model: Path, *, seed: int) -> list[str]:
    """Read one stream item by item, asking its question at several points; the memory never grows."""
    from remem.streaming.memory import StreamMemory

    stream, query, answer, evidence, start = make_stream(seed)
    length = len(stream)
    lines = [f"question {query}, whose evidence {evidence} begins at item {start + 1}; the answer is {answer}"]
    memory = StreamMemory.open(model)
    for count, fact in enumerate(stream, start=1):
        memory.write(fact)
        if count in (start + len(evidence), length // 2, length - 1, length):
            said = memory.query(query)
            mark = "right" if said.answer == answer else "wrong"
            size = memory.state.num_bytes() - 8 * len(memory.state.pending)
            lines.append(
                f"after {count:>3} items: answer {said.answer} ({said.probability:.0%}, {mark}), memory {size:,} bytes"
            )
    return lines


def survive_a_kill(model: Path, store: Path, *, seed: int) -> list[str]:
    """A process of its own appends the stream and is killed half-way; the store is opened again, finished and asked."""
    from remem.service.engine import MemoryEngine

    stream = make_stream(seed)
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(store), str(model), *map(str, stream.facts)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    acknowledged = 0
    for line in writer.stdout:
        acknowledged = int(line)
        if acknowledged >= len(stream.facts) // 2:
            writer.kill()
            break
    writer.wait()
    with MemoryEngine.open(store, model) as engine:
        found = engine.inspect("demo").next_seq
        engine.append("demo", stream.facts, seq=0)  # all of them again: what is there already changes nothing
        said = engine.query("demo", stream.query, min_seq=len(stream.facts))
        kept = engine.inspect("demo").bytes
    mark = "right" if said.answer.answer == stream.answer else "wrong"
    return [
        f"killed after {acknowledged} of {len(stream.facts)} events were acknowledged; opened again, {found} are there",
        f"all sent again: {said.as_of_seq} events, each once; answer {said.answer.answer} "
        f"({said.answer.probability:.0%}, {mark}), {kept:,} bytes on disk",
    ]


_WRITER = """
import sys, time
from remem import MemoryEngine

store, model, *facts = sys.argv[1:]
engine = MemoryEngine.open(store, model)
for seq, fact in enumerate(facts):
    print(engine.append("demo", [int(fact)], seq=seq).next_seq, flush=True)
time.sleep(60)
"""
