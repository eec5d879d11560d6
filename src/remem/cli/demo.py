"""`remem demo`: the main job in three minutes: train, compare, save, then read a stream item by item."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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


def read_a_stream(model: Path, *, seed: int) -> list[str]:
    """Read one stream that no one has seen, asking its question at several points; the memory never grows."""
    from remem.data.random import StableRandom
    from remem.data.synthetic import logic_chains
    from remem.streaming.memory import StreamMemory

    task = DEMO.task
    chains = logic_chains(task)  # type: ignore[arg-type]
    random = StableRandom("demo stream", seed)
    query, answer = (int(random.integers(n, 1)[0]) for n in chains.shape[:2])
    length = task.stream_len  # type: ignore[union-attr]
    stream = [int(fact) for fact in random.integers(task.num_facts, length)]  # type: ignore[union-attr]
    evidence = chains[query, answer].tolist()
    start = 2
    stream[start : start + len(evidence)] = evidence
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
