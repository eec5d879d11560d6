"""The synthetic task (Appendix B): accuracy on early and on later evidence."""

from __future__ import annotations

from functools import partial

from remem.data.codec import IdCodec
from remem.data.synthetic import PARTS, read_jsonl, synthetic_split
from remem.settings.tasks import SyntheticTask
from remem.tasks.base import Metrics, Tally, Task


def synthetic_task(settings: SyntheticTask) -> Task:
    """Streams generated from the settings' data seed."""
    codec = IdCodec(
        segment_len=settings.segment_len,
        num_items=settings.num_facts,
        num_queries=settings.num_queries,
        num_answers=settings.num_answers,
    )
    return Task(
        name=settings.name,
        codec=codec,
        part_names=PARTS,
        load=partial(synthetic_split, settings),
        read=partial(read_jsonl, settings),
        metrics=early_and_later,
        score=lambda metrics: metrics["accuracy"],
        chance=100 / settings.num_answers,
        sources={"generated": f"data seed {settings.data_seed}"},
    )


def early_and_later(tally: Tally) -> Metrics:
    """Accuracy for evidence in the first and in the second half of the stream."""
    present = {PARTS[part]: tally.accuracy_of(part) for part in sorted(tally.parts)}
    return {**present, "accuracy": tally.accuracy}
