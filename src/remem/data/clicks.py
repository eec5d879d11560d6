"""Lifelong recommendation as streams: a user's history is a stream, and the question is whether an item comes next.

A cut at position p is one stream: the memory reads the last items before p and nothing else, least of all the target.
Asked are the item at p (a click) and items the user has not met up to p, drawn by popularity (no click). Where events
are answers to problems, the target is the problem at p and the label whether it was solved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from remem.data.batch import QueryBatch
from remem.data.dataset import Bucket, Split
from remem.data.padding import groups_by_length, pad_rows
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


class Asked(NamedTuple):
    """What is asked at a moment of a stream."""

    read: int
    """Events of the stream before it."""
    items: tuple[int, ...]
    clicked: tuple[int, ...]
    part: int
    evidence: int
    """Place in the stream where the first target was last met; -1 if nowhere."""


class Cut(NamedTuple):
    """A stream, which is a piece of a user's history, and what is asked of it; at its end last of all."""

    first: int
    end: int
    """The stream is events[first:end]."""
    asked: tuple[Asked, ...]


class ClickLog:
    """A prepared log: an index of users, and their events on disk."""

    def __init__(self, folder: Path, name: str) -> None:
        self.prepared = Prepared(folder, "clicks", f"remem data import PATH --task {name}")
        self.events = self.prepared.array("events")
        self.users: Ints = self.prepared.array("users").numpy()
        if (held := self.prepared.manifest["name"]) != name:
            raise BadInput(f"{folder} holds {held}, not {name}; give the folder of {name} with --task.data.")
        self.num_items = int(self.prepared.manifest["num_items"])
        self.responses = bool(self.prepared.manifest["responses"])
        arrays = self.prepared.manifest["arrays"]
        self.targets = self.prepared.array("targets").numpy() if "targets" in arrays else None

    @property
    def item_names(self) -> str | None:
        """A digest of the items' names, where they have any."""
        if "items" not in self.prepared.manifest["lists"]:
            return None
        return hashlib.sha256("\n".join(self.prepared.lines("items")).encode()).hexdigest()[:16]

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
        """Events of training users with an item of each number or a smaller one; of all where none are for training."""
        counts = np.zeros(self.num_items, dtype=np.int64)
        for user in self.numbers("train") or range(len(self.users)):
            np.add.at(counts, self.history(user), 1)
        return counts.cumsum()


def cuts_of(log: ClickLog, user: int, task: ClickTask, split: str) -> Iterator[Cut]:
    """A training user's cuts lie `every` events apart; a test user's final cut is marked."""
    history, start = log.history(user), int(log.users[user, 0])
    if log.targets is not None:
        first = max(0, len(history) - task.history)
        clicked, other = log.targets[user].tolist()
        asked = _asked(history[first:] == clicked, (clicked, other), (1, 0), final=True)
        yield Cut(start + first, start + len(history), (asked,))
        return
    last = len(history) - 1
    places = list(range(task.least, last + (split != "test"), task.every))
    if split == "test" and last >= task.least:
        places.append(last)
    ask = _Questioner(log, user, history, task, split)
    for place in places:
        first = max(0, place - task.history)
        along = range(first + task.along * task.segment_len, place, task.along * task.segment_len) if task.along else ()
        # a question along the stream, too, comes after `least` events at the earliest
        earlier = [at for at in along if at - first >= min(task.least, task.history)] if split == "train" else []
        ahead = task.ahead if split == "train" else 1
        each = (ask(first, at, at + i) for at in (*earlier, place) for i in range(min(ahead, len(history) - at)))
        yield Cut(start + first, start + place, tuple(each))


class _Questioner:
    """What is asked at any place of one user's history."""

    def __init__(self, log: ClickLog, user: int, history: Ints, task: ClickTask, split: str) -> None:
        self.log, self.history, self.final = log, history, len(history) - 1 if split == "test" else None
        self.count = task.negatives if split == "train" else 1
        self.random = StableRandom(task.data_seed, "negatives", user)
        items, places = np.unique(history, return_index=True)
        self.first_met = dict(zip(items.tolist(), places.tolist(), strict=True))

    def __call__(self, first: int, end: int, place: int) -> Asked:
        """The event at `place`, asked of whoever has read from `first` up to `end`."""
        target, final = int(self.history[place]), place == self.final
        if self.log.responses:
            same = (self.history[first:end] >> 1) == target >> 1
            return _asked(same, (target | 1,), (target & 1,), final=final)
        negatives = _negatives(self.log, self.random, self.first_met, place, self.count)
        same = self.history[first:end] == target
        return _asked(same, (target, *negatives), (1, *(0,) * self.count), final=final)


def _asked(same: npt.NDArray[np.bool_], items: tuple[int, ...], clicked: tuple[int, ...], *, final: bool) -> Asked:
    """What is asked after the events of which `same` says whether they meet the first item."""
    met = np.flatnonzero(same)
    evidence = int(met[-1]) if len(met) else -1
    part = 3 if evidence < 0 else sum(len(same) - evidence > age for age in AGES)
    return Asked(len(same), items, clicked, part + FINAL * final, evidence)


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
        query = _questions([cuts[i] for i in group], n)
        buckets.append(Bucket(torch.from_numpy(order), torch.from_numpy(real), query, torch.from_numpy(rows)))
    windows = Windows(log.events, torch.from_numpy(starts), torch.from_numpy(lengths))
    return Split(windows, None, tuple(buckets), repeats=False)


def _questions(cuts: list[Cut], segment_len: int) -> QueryBatch:
    """One question a target, in the order they are asked; a stream with fewer than others is padded."""
    asked = [[(each, i) for each in cut.asked for i in range(len(each.items))] for cut in cuts]
    most = max(map(len, asked))
    mask = torch.arange(most) < torch.tensor([len(each) for each in asked])[:, None]

    def rows(value: Callable[[Asked, int], int]) -> Tensor:
        return pad_rows([[value(each, i) for each, i in row] for row in asked], width=most)[0]

    def segment(each: Asked, i: int) -> int:
        # where an item that was never met would stand, nobody knows
        return each.evidence // segment_len if i == 0 and each.evidence >= 0 else -1

    tokens = rows(lambda each, i: each.items[i])[..., None]
    return QueryBatch(
        tokens=tokens,
        token_mask=torch.ones(tokens.shape, dtype=torch.bool),
        position=rows(lambda each, _: -(-each.read // segment_len)),
        answer=rows(lambda each, i: each.clicked[i]),
        mask=mask,
        part=rows(lambda each, _: each.part),
        evidence=rows(segment).masked_fill(~mask, -1),
    )
