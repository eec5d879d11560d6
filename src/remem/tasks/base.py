"""What a task is to the harness, and how answers are counted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from remem.data.codec import Codec
from remem.data.dataset import Split
from remem.tasks.metrics import area_under_roc

Metrics = dict[str, float]


@dataclass
class Tally:
    """Right and all answers, by part of the task and by age of the evidence in segments.

    Where candidates are ranked, an answer counts as right by its reciprocal rank, so that a share is a mean of these.
    """

    parts: dict[int, tuple[float, int]] = field(default_factory=dict)
    ages: dict[int, tuple[float, int]] = field(default_factory=dict)
    part_ages: dict[int, dict[int, tuple[float, int]]] = field(default_factory=dict)
    """The ages of each part by itself: parts differ in difficulty and in how old their evidence is."""
    clicks: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Of each part: the logit and whether it was a click, where the task asks for clicks."""

    def add(
        self,
        parts: list[int],
        ages: list[int | None],
        right: list[bool] | list[float],
        clicks: list[tuple[float, int]] | None = None,
    ) -> None:
        """Count some answers; an age of None is unknown and counts for its part alone."""
        for part, age, correct in zip(parts, ages, right, strict=True):
            self.parts[part] = _plus(self.parts.get(part, (0, 0)), correct)
            if age is not None:
                self.ages[age] = _plus(self.ages.get(age, (0, 0)), correct)
                own = self.part_ages.setdefault(part, {})
                own[age] = _plus(own.get(age, (0, 0)), correct)
        for part, click in zip(parts, clicks or [], strict=False):
            self.clicks.setdefault(part, []).append(click)

    def auc_of(self, parts: Collection[int] | None = None) -> float:
        """Area under the ROC curve of some parts, or of all, in percent."""
        chosen = [c for part, clicks in self.clicks.items() if parts is None or part in parts for c in clicks]
        logits, clicked = zip(*chosen, strict=True) if chosen else ((), ())
        return 100 * area_under_roc(torch.tensor(logits), torch.tensor(clicked, dtype=torch.long))

    @property
    def questions(self) -> int:
        """All answers counted."""
        return sum(total for _, total in self.parts.values())

    def accuracy_of(self, part: int) -> float:
        """Share of right answers in one part, in percent."""
        right, total = self.parts[part]
        return 100 * right / total

    @property
    def accuracy(self) -> float:
        """Share of right answers over everything, in percent."""
        return 100 * sum(right for right, _ in self.parts.values()) / self.questions


def plain(right: float) -> float:
    """A count of right answers as it is written down: whole where it is whole."""
    return int(right) if right == int(right) else round(right, 4)


def _plus(count: tuple[float, int], correct: float) -> tuple[float, int]:
    return count[0] + correct, count[1] + 1


@dataclass(frozen=True)
class Task:
    """A benchmark: its streams, how raw items become numbers, and what is measured."""

    name: str
    codec: Codec
    part_names: tuple[str, ...]
    load: Callable[[str], Split]
    """The train, valid or test streams."""
    read: Callable[[Path], Split]
    """Streams from a user's own files in the task's format."""
    metrics: Callable[[Tally], Metrics]
    """The paper's metrics, in percent."""
    score: Callable[[Metrics], float]
    """The number a model is chosen by on validation; larger is better."""
    part_errors: Callable[[Metrics], dict[int, float]] | None = field(default=None, kw_only=True)
    """Wrong answers of each part, in percent, for training that dwells on the worst; None where none are measured."""
    chance: float
    """Accuracy of a guess, in percent."""
    sources: dict[str, Any] = field(default_factory=dict)
    """Where the data came from, for the record."""
    unlabelled: Callable[[], Split] | None = None
    """Streams without questions, for rehearsing before anything is asked; None where there are none."""
    beside: Callable[[], Metrics] = dict
    """Figures to be shown beside every model's: of guessing without the stream, say."""
