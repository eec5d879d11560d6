"""ActivityNet-QA's files to prepared data: `remem data import PATH --task activitynetqa`.

Questions come from the published `{train,val,test}_q.json` and `_a.json`. What stands for a video is either features
of any width (`--features`: an HDF5 file with one dataset a video, or a folder of one .npy a video), or, as a stand-in,
the human sentences of ActivityNet Captions (`--captions`): at each second those whose span contains it,
as the mean of their sentence vectors. Labels of activities are never read.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from remem.data.babi_format import MalformedFile
from remem.data.prepared import Array, Writer, replacing
from remem.data.sources import base, entry_of, files_of, json_of
from remem.errors import BadInput

SPLITS = ("train", "val", "test")
TYPES = ("motion", "spatial", "temporal", "yes/no", "colour", "object", "location", "number", "other")
_QUESTIONS = re.compile(r"(train|val|test)_(q|a)\.json")
# val_1 and val_2 are two annotators of the same videos: one of them, so that all videos are described alike
_CAPTIONS = ("train.json", "val_1.json")
_CHUNK = 4096
Encode = Callable[[Sequence[str]], Array]


class Asked(NamedTuple):
    """A question of a video, with its kind and answer."""

    split: int
    video: str
    kind: int
    question: str
    answer: str


class Video(NamedTuple):
    """Distinct vectors of a video, and which of them each frame has."""

    name: str
    vectors: Array
    frames: Array


def import_activitynetqa(
    paths: Sequence[Path], folder: Path, *, features: Path | None = None, captions: Path | None = None,
    encode: Encode | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Check questions and videos and prepare them in `folder`; returns the manifest. All or nothing is kept."""
    asked = read_questions(paths)
    names = {question.video for question in asked}
    if (features is None) == (captions is None):
        raise BadInput("Give what stands for the videos: either --features or --captions.")
    with replacing(folder) as writer:
        videos = _captioned(captions, names, encode) if captions else _featured(features, names)  # type: ignore[arg-type]
        numbers = write_videos(writer, videos)
        if not numbers:
            raise BadInput(f"{features or captions} has none of the {len(names)} videos the questions are about.")
        counts = _write_questions(writer, asked, numbers)
        return writer.finish(
            "activitynetqa",
            stream="captions" if captions else "features",
            counts=counts,
            videos={"asked about": len(names), "found": len(numbers)},
        )


def read_questions(paths: Iterable[Path]) -> list[Asked]:
    """Questions joined with their answers."""
    questions: dict[str, dict[str, Any]] = {}
    answers: dict[str, dict[str, Any]] = {}
    split_of: dict[str, int] = {}
    for path in paths:
        for name, file in files_of(path, lambda name: bool(_QUESTIONS.fullmatch(base(name)))):
            split, kind = _QUESTIONS.fullmatch(base(name)).groups()  # type: ignore[union-attr]
            entries = json_of(file, name)
            if not isinstance(entries, list):
                raise MalformedFile(name, 1, "expected a list")
            table = questions if kind == "q" else answers
            for number, entry in enumerate(entries, start=1):
                with entry_of(name, number):
                    table[_text(entry, "question_id")] = _checked(entry, kind)
                    if kind == "q":
                        split_of[entry["question_id"]] = SPLITS.index(split)
    if not questions:
        raise BadInput(
            f"{', '.join(map(str, paths))}: there is no question; expected train_q.json, train_a.json and so on."
        )
    if lost := questions.keys() ^ answers.keys():
        raise BadInput(f"The question {sorted(lost)[0]!r} and {len(lost) - 1} more have no answer, or no question.")
    return [
        Asked(split_of[key], q["video_name"], answers[key]["type"], q["question"], answers[key]["answer"])
        for key, q in questions.items()
    ]


def _checked(entry: Any, kind: str) -> dict[str, Any]:
    for field in ("video_name", "question") if kind == "q" else ("answer",):
        _text(entry, field)
    if kind == "a" and entry["type"] not in range(len(TYPES)):
        raise BadInput(f"type is {entry['type']!r}; expected 0 to {len(TYPES) - 1}.")
    return dict(entry)


def _text(entry: Any, field: str) -> str:
    value = entry[field]
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{field} is {value!r}; expected text.")
    return value


def _captioned(path: Path, names: set[str], encode: Encode | None) -> Iterator[Video]:
    if encode is None:
        from remem.data.sentence_encoder import SentenceEncoder

        encode = SentenceEncoder.installed().encode
    for name, file in files_of(path, lambda name: base(name) in _CAPTIONS):
        table = json_of(file, name)
        if not isinstance(table, dict):
            raise MalformedFile(name, 1, "expected an object with one entry a video")
        wanted = [key for key in table if key.removeprefix("v_") in names]
        for first in range(0, len(wanted), 256):  # a few hundred videos at a time are in memory
            yield from _caption_vectors(name, {key: table[key] for key in wanted[first : first + 256]}, encode)


def _caption_vectors(name: str, table: dict[str, Any], encode: Encode) -> Iterator[Video]:
    described = {}
    for key, entry in table.items():
        try:
            described[key] = active_sentences(entry["duration"], entry["timestamps"], entry["sentences"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{name}, video {key}: the entry is malformed ({error!r}).") from None
    vectors = encode([sentence for key in table for sentence in table[key]["sentences"]])
    first = 0
    for key, seconds in described.items():
        own = vectors[first : first + len(table[key]["sentences"])]
        first += len(own)
        numbers: dict[tuple[int, ...], int] = {}
        frames = np.array([numbers.setdefault(active, len(numbers)) for active in seconds], dtype=np.int64)
        # nothing is said of a second: a vector of zeros
        rows = [own[list(active)].mean(axis=0) if active else np.zeros(own.shape[1]) for active in numbers]
        yield Video(key.removeprefix("v_"), np.array(rows, dtype=np.float16), frames)


def active_sentences(
    duration: float | int, spans: Sequence[Sequence[float | int]], sentences: Sequence[str]
) -> list[tuple[int, ...]]:
    """For each second of a video, the sentences whose span contains it."""
    if len(spans) != len(sentences) or not math.isfinite(duration) or duration <= 0:
        raise ValueError(f"{len(sentences)} sentences, {len(spans)} spans, {duration} seconds")
    bounds = [(float(first), float(last)) for first, last in spans]
    return [
        tuple(i for i, (first, last) in enumerate(bounds) if first <= second <= last)
        for second in range(max(1, round(duration)))
    ]


def _featured(path: Path, names: set[str]) -> Iterator[Video]:
    if not path.exists():
        raise BadInput(f"{path} does not exist; give an HDF5 file, or a folder of one .npy a video.")
    if path.is_dir():
        for file in sorted(path.rglob("*.npy")):
            if (name := _video_of(file.stem, names)) is not None:
                yield _feature_video(name, _npy(file), str(file))
        return
    try:
        import h5py
    except ImportError:
        raise BadInput("Reading HDF5 files needs h5py: pip install 'remem[data]', or give a folder of .npy.") from None
    try:
        with h5py.File(path, "r") as table:
            for key in table:
                if (name := _video_of(key, names)) is not None:
                    found = table.get(key)  # nothing where a link leads nowhere
                    entries = found.values() if isinstance(found, h5py.Group) else [found]
                    arrays = [each for each in entries if isinstance(each, h5py.Dataset) and each.shape is not None]
                    if len(arrays) != 1:
                        raise BadInput(f"{path}, {key} holds {len(arrays)} arrays; expected one a video.")
                    yield _feature_video(name, arrays[0][...], f"{path}, {key}")
    except OSError as error:
        raise BadInput(f"{path} is not an HDF5 file, or it is damaged ({error}).") from None


def _video_of(key: str, names: set[str]) -> str | None:
    """The video asked about that a key stands for, with or without `v_` in front; some ids begin so themselves."""
    return next((name for name in (key, key.removeprefix("v_")) if name in names), None)


def _npy(file: Path) -> Array:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"{file} is not an array of numbers ({error}).") from None
    if not isinstance(array, np.ndarray):  # what np.savez wrote
        raise BadInput(f"{file} holds several arrays; expected one array a video.")
    return array


def _feature_video(name: str, array: Array, where: str) -> Video:
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
        raise BadInput(f"{where} has the shape {array.shape} of {array.dtype}; expected numbers, one row a frame.")
    with np.errstate(over="ignore"):  # told below
        vectors = np.asarray(array, dtype=np.float16 if array.dtype == np.float16 else np.float32)
    if not np.isfinite(vectors).all():
        raise BadInput(f"{where} holds numbers that are not finite, or too large for 32 bits.")
    return Video(name, vectors, np.arange(len(vectors)))


def write_videos(writer: Writer, videos: Iterable[Video]) -> dict[str, int]:
    """`vectors`, `frames` (numbers of vectors) and `videos` (first and last frame); returns each video's number."""
    numbers: dict[str, int] = {}
    for video in videos:
        if video.name in numbers:
            raise BadInput(f"The video {video.name} is there twice.")
        before = writer.rows("vectors")
        try:
            writer.append("vectors", video.vectors)
        except BadInput as error:
            raise BadInput(f"The video {video.name} does not go with the others: {error}") from None
        end = writer.append("frames", (before + video.frames).astype(np.int32))
        writer.append("videos", np.array([[end - len(video.frames), end]], dtype=np.int64))
        numbers[video.name] = len(numbers)
    return numbers


def _write_questions(writer: Writer, asked: list[Asked], numbers: dict[str, int]) -> dict[str, dict[str, int]]:
    """`questions` (split, video, kind) and the lists `texts` and `answers`, of videos that were found."""
    kept = [question for question in asked if question.video in numbers]
    rows = [[question.split, numbers[question.video], question.kind] for question in kept]
    writer.append("questions", np.array(rows, dtype=np.int64))
    writer.write_lines("texts", (" ".join(question.question.split()) for question in kept))
    writer.write_lines("answers", (" ".join(question.answer.split()) for question in kept))
    counts = {}
    for number, split in enumerate(SPLITS):
        own = [question for question in kept if question.split == number]
        counts[split] = {"videos": len({q.video for q in own}), "questions": len(own)}
    return counts
