"""Lifelong recommendation (Sec. 4.3.3): the area under the ROC curve, over all and where only long memory helps."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from remem.data.click_files import import_clicks
from remem.data.clicks import AGES, FINAL, PARTS, ClickLog, as_split, cuts_of
from remem.data.codec import ClickCodec
from remem.data.dataset import Split
from remem.data.manifest import MANIFEST
from remem.errors import BadInput
from remem.settings.tasks import ClickTask
from remem.tasks.base import Metrics, Tally, Task
from remem.tasks.metrics import area_under_roc

FEWEST = 20  # an area over fewer questions says nothing


def click_task(settings: ClickTask, codec: ClickCodec | None = None) -> Task:
    """The prepared log of `settings.folder`; a trained model brings its codec."""
    log = cache(partial(ClickLog, settings.folder, settings.name))
    own = codec or ClickCodec(segment_len=settings.segment_len, num_items=log().num_items, item_names=log().item_names)

    def load(split: str) -> Split:
        _refuse_other_items(log(), settings.folder, own)
        loaded = as_split(log(), log().numbers(split), settings, split)
        return replace(loaded, questions=settings.questions) if split == "train" else loaded

    return Task(
        name=settings.name,
        codec=own,
        part_names=PARTS,
        load=load,
        read=lambda path: _read(path, settings, own),
        metrics=areas,
        # a few held-out users may all have clicked
        score=lambda metrics: metrics.get("every_auc", metrics["accuracy"]),
        chance=50.0,
        sources=log().prepared.manifest["counts"] if settings.folder.exists() else {},
        beside=lambda: {**plain_lists(log(), settings), **response_rates(log(), settings)},
    )


def plain_lists(log: ClickLog, settings: ClickTask) -> Metrics:
    """AUC over every test cut of whoever keeps the last items as they are and says yes to what is among them.

    Known where what was not clicked was never met: then a list is right about it, and about as many clicks as it holds.
    """
    if log.responses or log.targets is not None:
        return {}
    cuts = (cut for user in log.numbers("test") for cut in cuts_of(log, user, settings, "test"))
    whens = [cut.asked[-1].part % FINAL for cut in cuts]
    found = {}
    for number, length in enumerate((*(age for age in AGES if age < settings.history), settings.history)):
        last = 2 if length == settings.history else number  # what was met at all was met in the history
        share = sum(when <= last for when in whens) / max(1, len(whens))
        found[f"list_of_{length}_every_auc"] = 50 * (1 + share)
    return found


def response_rates(log: ClickLog, settings: ClickTask) -> Metrics:
    """AUC over every test cut of whoever counts, where targets are problems: how many training users solved this one,
    how many problems the user has solved of those in the history, and the product of both odds.
    """
    if not log.responses:
        return {}
    solved = np.zeros((2, log.num_items // 2 + 1))
    for user in log.numbers("train"):
        events = log.history(user)
        np.add.at(solved, (events & 1, events >> 1), 1)
    problem_odds = np.log((solved[1] + 1) / (solved[0] + 1))
    odds, labels = [], []
    for user in log.numbers("test"):
        for cut in cuts_of(log, user, settings, "test"):
            right = int((log.events[cut.first : cut.end] & 1).sum())
            of_user = np.log((right + 1) / (cut.end - cut.first - right + 1))
            odds.append((problem_odds[cut.asked[-1].items[0] >> 1], of_user))
            labels.append(cut.asked[-1].clicked[0])
    both, clicked = torch.tensor(np.array(odds)), torch.tensor(labels)
    scores = {"problem": both[:, 0], "user": both[:, 1], "both": both.sum(dim=1)}
    return {f"rate_of_{name}_every_auc": 100 * area_under_roc(score, clicked) for name, score in scores.items()}


def areas(tally: Tally) -> Metrics:
    """AUC in percent, of final cuts and of every cut; also where the target was last met over 50 or 200 events ago.

    A figure is left out where there is too little to order: no click, nothing but clicks, or a handful of questions.
    """
    found = {}
    for name, parts in (("auc", range(FINAL, len(PARTS))), ("every_auc", range(len(PARTS)))):
        for suffix, wanted in (("", range(4)), ("_over_50", range(1, 3)), ("_over_200", range(2, 3))):
            chosen = [part for part in parts if part % FINAL in wanted]
            area = tally.auc_of(chosen)
            if not math.isnan(area) and sum(tally.parts.get(part, (0, 0))[1] for part in chosen) >= FEWEST:
                found[name + suffix] = area
    return {**found, "accuracy": tally.accuracy}


def _read(path: Path, settings: ClickTask, codec: ClickCodec) -> Split:
    """Another log of the task's format, or a prepared folder: its test users, or all where none are kept for it."""
    with TemporaryDirectory() as scratch:
        folder = path
        if not (path / MANIFEST).exists():
            if settings.name == "clicks":
                raise BadInput(
                    "An import numbers the items of a log anew, so this model does not know them; "
                    "import all events in one log, or give the prepared folder it was trained on."
                )
            folder = Path(scratch) / "own"
            import_clicks(settings.name, [path], folder)
        log = ClickLog(folder, settings.name)
        _refuse_other_items(log, path, codec)
        users = log.numbers("test") or list(range(len(log.users)))
        return as_split(log, users, settings, "test")


def _refuse_other_items(log: ClickLog, path: Path, codec: ClickCodec) -> None:
    """Another log may have taken the place of the one a model was trained on."""
    if log.num_items > codec.num_items:
        raise BadInput(
            f"{path} has items up to {log.num_items - 1}; this model knows {codec.num_items}. "
            "Import the log it was trained on."
        )
    if codec.item_names not in (None, log.item_names):  # a model from before names were noted has none
        raise BadInput(
            f"The items of {path} have other names, or other numbers, than those this model was trained on. "
            "Import the log it was trained on."
        )
