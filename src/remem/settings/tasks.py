"""Settings of the tasks: what a stream is made of."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


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
    apart: bool = False
    """The other reading of Appendix B: these facts keep their order, but stand anywhere in their half of the stream."""
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
    questions: int = 0
    """Ours: questions of a story that are drawn each time it is trained on; 0 asks all. Stories have up to twelve, most
    of them fewer, and what answers takes as long for one that is padding."""

    @property
    def folder(self) -> Path:
        """The prepared data's folder."""
        return self.data or data_root() / "babi"


@dataclass(frozen=True, kw_only=True)
class NarrativeQATask:
    """NarrativeQA: questions about the summary of a book or film, answered by one of about thirty candidates."""

    name: str = "narrativeqa"
    """Name in tables and records."""
    data: Path | None = None
    """Folder made by `remem data import`; None takes $REMEM_DATA/narrativeqa, else ./data/narrativeqa."""
    protocol: Literal["reduced", "official"] = "reduced"
    """reduced: train and choose on the documents published for testing, report on those for validation."""
    folds: int = 5
    """reduced: the training documents are cut into so many folds."""
    fold: int = 0
    """reduced: which of the folds is held out to choose by."""
    segment_len: int = 20
    """Longest segment (N); a longer sentence becomes several segments."""
    truncate: bool = False
    """A longer sentence loses its end instead."""
    least_count: int = 2
    """A word that occurs less often in training is read as unknown."""
    stand_ins: int = 0
    """Ours: numbers that all other words share by their hash, instead of being one unknown word: a name not met before
    is still the same name in summary, question and answer."""
    exchanges: int = 0
    """Ours: orders in which the stand-ins change places whenever a summary is trained on, so that no name is learned by
    heart; 0 leaves them as they are."""
    gaps: int = 0
    """Ours: questions that each training summary and each unlabelled text asks by itself, at most: which stand-in was
    left out of one of its sentences? They are streams of their own beside those with questions; 0 asks none."""

    @property
    def folder(self) -> Path:
        """The prepared data's folder."""
        return self.data or data_root() / "narrativeqa"


@dataclass(frozen=True, kw_only=True)
class ActivityNetQATask:
    """ActivityNet-QA: questions about a video, read as one vector a frame, with a thousand answers."""

    name: str = "activitynetqa"
    """Name in tables and records."""
    data: Path | None = None
    """Folder made by `remem data import`; None takes $REMEM_DATA/activitynetqa, else ./data/activitynetqa."""
    report_on: Literal["val", "test"] = "val"
    """Published split to report on. On val, every tenth training video is held out to choose by; on test, val is."""
    num_answers: int = 1000
    """The most frequent answers of training; any other counts as wrong."""
    segment_len: int = 20
    """Frames of a segment (N)."""
    most_frames: int = 1000
    """A longer video is read at so many frames, evenly spaced."""

    @property
    def folder(self) -> Path:
        """The prepared data's folder."""
        return self.data or data_root() / "activitynetqa"


@dataclass(frozen=True, kw_only=True)
class ClickTask:
    """Lifelong recommendation: will the user of a long history click an item next?"""

    name: str = "xlong"
    """Name in tables and records: lastfm, assistments, xlong, or clicks for a log of one's own."""
    data: Path | None = None
    """Folder made by `remem data import`; None takes $REMEM_DATA/NAME, else ./data/NAME."""
    segment_len: int = 20
    """Items of a segment (N)."""
    history: int = 1000
    """The memory reads the last so many items before the target."""
    least: int = 200
    """Events before a target, at least."""
    every: int = 100
    """Events between two cuts of one user."""
    negatives: int = 1
    """Items not clicked for each that was, in training; there is always one in tests."""
    along: int = 0
    """Ours: a training stream is also asked after every so many of its segments; 0 asks at its end alone."""
    ahead: int = 1
    """Ours: a training stream is asked for so many of the events that follow, wherever it is asked."""
    questions: int = 0
    """Ours: questions of a stream that are drawn each time it is trained on; 0 asks all."""
    data_seed: int = 0
    """Seed of the items not clicked."""

    @property
    def folder(self) -> Path:
        """The prepared data's folder."""
        return self.data or data_root() / self.name


Task = SyntheticTask | BabiTask | NarrativeQATask | ActivityNetQATask | ClickTask
