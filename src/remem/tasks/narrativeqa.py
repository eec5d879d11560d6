"""NarrativeQA (Sec. 4.3.1): the mean reciprocal rank of the right answer among a summary's candidates."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from remem.data.codec import PassageCodec
from remem.data.dataset import Split
from remem.data.manifest import MANIFEST
from remem.data.narrativeqa import Summaries, as_split, exchange_stand_ins, folds
from remem.data.narrativeqa_files import import_narrativeqa
from remem.errors import BadInput
from remem.settings.tasks import NarrativeQATask
from remem.tasks.base import Metrics, Tally, Task
from remem.tasks.metrics import chance_reciprocal_rank


def narrativeqa_task(settings: NarrativeQATask, codec: PassageCodec | None = None) -> Task:
    """The prepared summaries of `settings.folder`; a trained model brings its codec."""
    data = cache(partial(Summaries, settings.folder))

    def documents(split: str) -> list[int]:
        return documents_of(data(), settings, split)

    if (settings.exchanges or settings.gaps) and not settings.stand_ins:
        raise BadInput(
            "There are no stand-ins that could change places or be left out; give --task.stand-ins, or neither "
            "--task.exchanges nor --task.gaps."
        )
    if codec is None:
        train = documents("train")
        if not train:
            raise BadInput(
                f"{settings.folder} has no training questions; import qaps.csv, or take --task.protocol reduced."
            )
        codec = data().build_codec(train, settings.segment_len, settings.least_count, settings.stand_ins)
    own = codec

    def load(split: str) -> Split:
        texts = [*documents("train"), *documents("unlabelled")] if split == "train" else []
        loaded = as_split(
            data(), documents(split), own, truncate=settings.truncate, with_gaps=texts, gaps=settings.gaps
        )
        if split not in ("train", "unlabelled") or not own.stand_ins or not settings.exchanges:
            return loaded
        return replace(loaded, exchange=exchange_stand_ins(own, settings.exchanges))

    return Task(
        name=settings.name,
        codec=own,
        part_names=("questions",),
        load=load,
        read=lambda path: read_narrativeqa(path, own, settings),
        metrics=mean_reciprocal_rank,
        score=lambda metrics: metrics["mrr"],
        chance=100 * chance(data(), documents("test")) if settings.folder.exists() else 0.0,
        sources=data().prepared.manifest["counts"] if settings.folder.exists() else {},
        unlabelled=lambda: load("unlabelled"),
    )


def documents_of(data: Summaries, settings: NarrativeQATask, split: str) -> list[int]:
    """Documents of a split: the published one, or by the protocol for whom the training questions are missing."""
    if split == "unlabelled" or settings.protocol == "official":
        return data.numbers(split)
    if split == "test":
        return data.numbers("valid")
    train, valid = folds(data.numbers("test"), settings.folds, settings.fold)
    return train if split == "train" else valid


def chance(data: Summaries, documents: list[int]) -> float:
    """The mean reciprocal rank of a guess."""
    counts = [len(data.questions_of[number]) for number in documents if number in data.questions_of]
    ranks = [chance_reciprocal_rank(count) for count in counts for _ in range(count)]
    return fmean(ranks) if ranks else 0.0


def mean_reciprocal_rank(tally: Tally) -> Metrics:
    """MRR, in percent as the paper prints it."""
    return {"mrr": tally.accuracy}


def read_narrativeqa(path: Path, codec: PassageCodec, settings: NarrativeQATask) -> Split:
    """Summaries of a user's own files or of a prepared folder: those the protocol reports on, or else any others.

    By the reduced protocol a model has learned from the published test documents; they would flatter it.
    """
    with TemporaryDirectory() as scratch:
        folder = path
        if not (path / MANIFEST).exists():
            folder = Path(scratch) / "own"
            import_narrativeqa([path], folder)
        data = Summaries(folder)
        splits = ("valid", "test", "train") if settings.protocol == "reduced" else ("test", "valid", "train")
        split = next(name for name in splits if data.numbers(name))
        return as_split(data, data.numbers(split), codec, truncate=settings.truncate)
