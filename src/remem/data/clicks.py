"""Lifelong recommendation as streams: a user's history is a stream, and the question is whether an item comes next.

A cut at position p is one stream: the memory reads the last items before p and nothing else, least of all the target.
Asked are the item at p (a click) and items the user has not met up to p, drawn by popularity (no click). Where events
are answers to problems, the target is the problem at p and the label whether it was solved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from remem.data.batch import QueryBatch
from remem.data.dataset import Bucket, Split
from remem.data.padding import groups_by_length
from remem.data.prepared import Prepared
from remem.data.random import StableRandom
from remem.data.windows import Windows
from remem.errors import BadInput
from remem.settings.tasks import ClickTask

Ints = npt.NDArray[np.int64]
_BUCKETS = 5
_HELD_OUT = 10  # one of so many training users is held out to choose by
AGES = (50, 200)
# when the target was last met: how many events ago; the last part was never met in what the memory reads
PARTS = tuple(
    f"{which}, {when}"
    for which in ("earlier cut", "final cut")
    for when in ("within 50", "51 to 200", "over 200", "not met")
)
FINAL = 4  # parts of final cuts are numbered from here


@dataclass(frozen=True)
class Cut:
    """A moment of a user's history, and what is asked then."""

    first: int
    end: int
    """The history is events[first:end]."""
    items: tuple[int, ...]
    clicked: tuple[int, ...]
    part: int
    evidence: int
    """Place in the history where the first target was last met; -1 if nowhere."""


class ClickLog:
    """A prepared log: an index of users, and their events on disk."""

    def __init__(self, folder: Path, name: str) -> None:
        self.prepared = Prepared(folder, "clicks", f"remem data import PATH --task {name}")
        self.events = self.prepared.array("events")
        self.users: Ints = self.prepared.array("users").numpy()
        self.num_items = int(self.prepared.manifest["num_items"])
        self.responses = bool(self.prepared.manifest["responses"])
        arrays = self.prepared.manifest["arrays"]
        self.targets = self.prepared.array("targets").numpy() if "targets" in arrays else None

    def numbers(self, split: str) -> list[int]:
        """Users of a split: those published for testing; of the others every tenth is held out to choose by."""
        test = [number for number, user in enumerate(self.users) if user[2]]
        if split == "test":
            return test
        rest = np.flatnonzero(self.users[:, 2] == 0)
        order = StableRandom("clicks", "valid").permutation(len(rest))
        held = order[: max(1, len(rest) // _HELD_OUT)] if len(rest) > 1 else order[:0]
        return sorted(rest[held if split == "valid" else order[len(held) :]].tolist())

    def history(self, user: int) -> Ints:
        """One user's events, read from disk."""
        first, end, _ = self.users[user]
        return self.events[first:end].numpy().astype(np.int64)

    @cached_property
    def popularity(self) -> Ints:
        """Events of training users with an item of each number or a smaller one."""
        counts = np.zeros(self.num_items, dtype=np.int64)
        for user in self.numbers("train"):
            np.add.at(counts, self.history(user), 1)
        return counts.cumsum()


def cuts_of(log: ClickLog, user: int, task: ClickTask, split: str) -> Iterator[Cut]:
    """A training user's cuts lie `every` events apart; a test user's final cut is marked."""
    history, start = log.history(user), int(log.users[user, 0])
    if log.targets is not None:
        yield _cut(task, history, start, len(history), log.targets[user].tolist(), (1, 0), final=True)
        return
    items_met, places_met = np.unique(history, return_index=True)
    first_met = dict(zip(items_met.tolist(), places_met.tolist(), strict=True))
    last = len(history) - 1
    places = list(range(task.least, last + (split != "test"), task.every))
    if split == "test" and last >= task.least:
        places.append(last)
    random = StableRandom(task.data_seed, "negatives", user)
    for place in places:
        target = int(history[place])
        if log.responses:
            items: Sequence[int] = (target | 1,)
            clicked: tuple[int, ...] = (target & 1,)
        else:
            count = task.negatives if split == "train" else 1
            items = (target, *_negatives(log, random, first_met, place, count))
            clicked = (1, *(0,) * count)
        yield _cut(
            task, history, start, place, items, clicked, final=place == last and split == "test",
            same=(history >> 1) == target >> 1 if log.responses else None,
        )  # fmt: skip


def _cut(
    task: ClickTask,
    history: Ints,
    start: int,
    place: int,
    items: Sequence[int],
    clicked: tuple[int, ...],
    *,
    final: bool,
    same: npt.NDArray[np.bool_] | None = None,
) -> Cut:
    first = max(0, place - task.history)
    met = np.flatnonzero((history == items[0] if same is None else same)[first:place])
    evidence = int(met[-1]) if len(met) else -1
    ago = place - first - evidence
    part = 3 if evidence < 0 else sum(ago > age for age in AGES)
    return Cut(start + first, start + place, tuple(items), clicked, part + FINAL * final, evidence)


def _negatives(log: ClickLog, random: StableRandom, first_met: dict[int, int], place: int, count: int) -> list[int]:
    """Items not met up to and with `place`, each as likely as it is popular."""
    total, chosen = int(log.popularity[-1]), list[int]()
    for _ in range(20):
        for item in np.searchsorted(log.popularity, random.integers(total, 4 * count), side="right").tolist():
            if first_met.get(item, place + 1) > place and item not in chosen:
                chosen.append(item)
                if len(chosen) == count:
                    return chosen
    # a user who has met nearly everything that is popular: any of the rest
    rest = [i for i in range(log.num_items) if first_met.get(i, place + 1) > place and i not in chosen]
    missing = count - len(chosen)
    if len(rest) >= missing:
        return chosen + [rest[i] for i in random.permutation(len(rest))[:missing]]
    raise BadInput(
        f"A user has met nearly every item by event {place}, and there are no {count} others to ask for; "
        "lower --task.negatives."
    )


def as_split(log: ClickLog, users: Sequence[int], task: ClickTask, split: str) -> Split:
    """All cuts of some users, in buckets of similar length; what is kept of a cut is where it begins and ends."""
    cuts = [cut for user in users for cut in cuts_of(log, user, task, split)]
    if not cuts:
        raise BadInput(
            f"No user of the {split} split has over {task.least} events; import a longer log, or lower --task.least."
        )
    n = task.segment_len
    counts = np.array([-(-(cut.end - cut.first) // n) for cut in cuts])
    firsts = np.cumsum([0, *counts])
    within = np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)
    starts = np.repeat([cut.first for cut in cuts], counts) + n * within
    lengths = np.minimum(n, np.repeat([cut.end for cut in cuts], counts) - starts)
    longest = int(counts.max())
    limits = sorted({-(-longest * i // _BUCKETS) for i in range(1, _BUCKETS)})
    buckets = []
    for group in groups_by_length(counts.tolist(), limits):
        rows = np.array(group)
        place = np.arange(counts[rows].max())
        real = place < counts[rows, None]
        order = np.where(real, firsts[rows, None] + place, 0)
        query = _questions([cuts[i] for i in group], counts[rows], n)
        buckets.append(Bucket(torch.from_numpy(order), torch.from_numpy(real), query, torch.from_numpy(rows)))
    windows = Windows(log.events, torch.from_numpy(starts), torch.from_numpy(lengths))
    return Split(windows, None, tuple(buckets), repeats=False)


def _questions(cuts: list[Cut], segments: Ints, segment_len: int) -> QueryBatch:
    tokens = torch.tensor([cut.items for cut in cuts])[..., None]
    shape = tokens.shape[:2]
    # where an item that was never met would stand, nobody knows
    evidence = torch.full(shape, -1)
    evidence[:, 0] = torch.tensor([cut.evidence // segment_len if cut.evidence >= 0 else -1 for cut in cuts])

    def each(values: Sequence[int] | Ints) -> Tensor:
        return torch.as_tensor(np.asarray(values))[:, None].expand(shape).contiguous()

    return QueryBatch(
        tokens=tokens,
        token_mask=torch.ones(tokens.shape, dtype=torch.bool),
        position=each(segments),
        answer=torch.tensor([cut.clicked for cut in cuts]),
        mask=torch.ones(shape, dtype=torch.bool),
        part=each([cut.part for cut in cuts]),
        evidence=evidence,
    )
