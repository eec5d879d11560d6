"""ActivityNet-QA (Sec. 4.3.2): accuracy over all questions and by kind, beside that of a counter that sees no video."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from remem.data.activitynetqa import Videos, as_split, count_answers
from remem.data.activitynetqa_files import TYPES
from remem.data.codec import FrameCodec
from remem.data.dataset import Split
from remem.errors import BadInput
from remem.settings.tasks import ActivityNetQATask
from remem.tasks.base import Metrics, Tally, Task


def activitynetqa_task(settings: ActivityNetQATask, codec: FrameCodec | None = None) -> Task:
    """The prepared videos of `settings.folder`; a trained model brings its codec."""
    data = cache(partial(Videos, settings.folder))

    def questions(split: str) -> list[int]:
        return data().questions(split, settings.report_on)

    if codec is None:
        if not questions("train"):
            raise BadInput(f"{settings.folder} has no training questions; import train_q.json and train_a.json.")
        codec = data().build_codec(questions("train"), settings.segment_len, settings.num_answers)
    own = codec

    def load(split: str) -> Split:
        return as_split(data(), questions(split), own, settings.most_frames)

    def counter() -> Metrics:
        found = count_answers(data(), questions("train"), questions("test"))
        return {f"counter_{name}": value for name, value in by_kind(Tally(dict(found))).items()}

    return Task(
        name=settings.name,
        codec=own,
        part_names=TYPES,
        load=load,
        read=lambda path: _read(path, own, settings),
        metrics=by_kind,
        score=lambda metrics: metrics["accuracy"],
        chance=100 / own.num_answers,
        sources=_sources(data().prepared.manifest) if settings.folder.exists() else {},
        beside=counter,
    )


def by_kind(tally: Tally) -> Metrics:
    """Accuracy over everything and for each kind of question present."""
    each = {TYPES[part]: tally.accuracy_of(part) for part in sorted(tally.parts)}
    return {"accuracy": tally.accuracy, **each}


def _sources(manifest: dict[str, object]) -> dict[str, object]:
    return {name: manifest[name] for name in ("stream", "counts", "videos")}


def _read(path: Path, codec: FrameCodec, settings: ActivityNetQATask) -> Split:
    """The questions to report on of another prepared folder, such as one with other features of the same width."""
    data = Videos(path)
    return as_split(data, data.questions("test", settings.report_on), codec, settings.most_frames)
