"""Settings of the tasks: what a stream is made of."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def data_root() -> Path:
    """Where prepared data lives: $REMEM_DATA, else ./data."""
    return Path(os.environ.get("REMEM_DATA", "data"))


@dataclass(frozen=True, kw_only=True)
class SyntheticTask:
    """The synthetic task of Appendix B: find the evidence of a query in a stream of facts."""

    name: str = "synthetic"
    """Name in tables and records."""
    num_groups: int = 20
    """Groups over which facts and queries are split evenly."""
    num_facts: int = 400
    """Fact types (R_f)."""
    stream_len: int = 200
    """Facts in a stream (R_l)."""
    num_queries: int = 40
    """Query types (R_q)."""
    num_answers: int = 30
    """Answers of each query (R_a)."""
    evidence_len: int = 5
    """Facts of an evidence, consecutive in the stream (R_c)."""
    samples_per_chain: int = 400
    """Training streams for each evidence-query-answer chain."""
    eval_samples_per_chain: int = 10
    """Validation streams a chain, and as many test streams; the paper gives no number."""
    segment_len: int = 10
    """Items of a segment (N)."""
    data_seed: int = 0
    """Seed of the logic chains and of all streams; a run's own seed never changes the data."""


@dataclass(frozen=True, kw_only=True)
class BabiTask:
    """bAbI v1.2, English, 10k: up to twenty question-answering tasks in one model (Sec. 4.2)."""

    name: str = "babi"
    """Name in tables and records."""
    data: Path | None = None
    """Folder made by `remem data import`; None takes $REMEM_DATA/babi, else ./data/babi."""
    tasks: tuple[int, ...] = tuple(range(1, 21))
    """Which of the twenty tasks to train and test on."""
    segment_len: int = 15
    """Longest segment (N); a longer sentence becomes several segments."""
    exchanges: int = 0
    """Ours: ways in which words that the training stories treat alike may change places; each time a story is trained
    on, it is told in one of them."""

    @property
    def folder(self) -> Path:
        """The prepared data's folder."""
        return self.data or data_root() / "babi"


Task = SyntheticTask | BabiTask
