"""ActivityNet-QA as streams: a video is a stream of vectors, N frames a segment, and all its questions come last."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from remem.data.activitynetqa_files import SPLITS
from remem.data.batch import UNSEEN_ANSWER, QueryBatch
from remem.data.codec import UNKNOWN_WORD, FrameCodec
from remem.data.dataset import Bucket, Split
from remem.data.padding import groups_by_length, pad_rows
from remem.data.prepared import Prepared
from remem.data.random import StableRandom
from remem.data.windows import Windows
from remem.data.words import tokenize, vocabulary
from remem.errors import BadInput

HOW = "remem data import PATH --task activitynetqa"
_HELD_OUT = 10
_BUCKET_LENGTHS = (2, 4, 6, 8, 12, 24)


class Videos:
    """Prepared ActivityNet-QA: an index of videos and questions, and their vectors on disk."""

    def __init__(self, folder: Path) -> None:
        self.prepared = Prepared(folder, "activitynetqa", HOW)
        self.vectors, self.frames = self.prepared.array("vectors"), self.prepared.array("frames")
        self.bounds = self.prepared.array("videos").numpy()
        self.rows = self.prepared.array("questions").numpy()
        self.texts, self.answers = self.prepared.lines("texts"), self.prepared.lines("answers")

    def questions(self, split: str, report_on: str) -> list[int]:
        """Train, valid or test: see `ActivityNetQATask.report_on`."""
        train = np.flatnonzero(self.rows[:, 0] == SPLITS.index("train"))
        if report_on == "test":
            official = {"train": "train", "valid": "val", "test": "test"}[split]
            return np.flatnonzero(self.rows[:, 0] == SPLITS.index(official)).tolist()
        if split == "test":
            return np.flatnonzero(self.rows[:, 0] == SPLITS.index("val")).tolist()
        videos = np.unique(self.rows[train, 1])
        order = StableRandom("activitynetqa", "valid").permutation(len(videos))
        held = np.isin(self.rows[train, 1], videos[order[: max(1, len(videos) // _HELD_OUT)]])
        return train[held if split == "valid" else ~held].tolist()

    def build_codec(self, questions: Sequence[int], segment_len: int, num_answers: int) -> FrameCodec:
        """Words of the training questions, and their most frequent answers."""
        counts = Counter(self.answers[i] for i in questions)
        answers = sorted(counts, key=lambda answer: (-counts[answer], answer))[:num_answers]
        words = vocabulary((tokenize(self.texts[i]) for i in questions), first=UNKNOWN_WORD)
        return FrameCodec(segment_len=segment_len, width=int(self.vectors.shape[1]), words=words, answers=answers)


def as_split(data: Videos, questions: Sequence[int], codec: FrameCodec, most_frames: int) -> Split:
    """Videos to an index of segments, in buckets of similar length; vectors stay where they are."""
    if not questions:
        raise BadInput("There is no question about a video in this split; import the files that hold it.")
    if data.vectors.shape[1] != codec.width:
        raise BadInput(
            f"The videos have vectors of {data.vectors.shape[1]} numbers; this model reads {codec.width}. "
            "Import the features it was trained on."
        )
    asked: dict[int, list[int]] = defaultdict(list)
    for i in questions:
        asked[int(data.rows[i, 1])].append(i)
    videos, n = sorted(asked), codec.segment_len
    bounds = data.bounds[videos]
    frames, bounds = _thinned(data.frames, bounds, most_frames)
    counts = -(-(bounds[:, 1] - bounds[:, 0]) // n)
    firsts = np.cumsum([0, *counts])
    within = np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)
    starts = np.repeat(bounds[:, 0], counts) + n * within
    lengths = np.minimum(n, np.repeat(bounds[:, 1], counts) - starts)
    buckets = []
    for group in groups_by_length(counts.tolist(), _BUCKET_LENGTHS):
        order, segment_mask = pad_rows([range(firsts[i], firsts[i + 1]) for i in group])
        query = _questions(data, [asked[videos[i]] for i in group], counts[group], codec)
        buckets.append(Bucket(order, segment_mask, query, torch.tensor([videos[i] for i in group])))
    windows = Windows(frames, torch.from_numpy(starts), torch.from_numpy(lengths), data.vectors)
    return Split(windows, None, tuple(buckets), repeats=False)


def _thinned(
    frames: torch.Tensor, bounds: np.ndarray[tuple[int, int], np.dtype[np.int64]], most: int
) -> tuple[torch.Tensor, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    """The same frames, but for videos longer than `most`: of these, so many evenly spaced."""
    lengths = bounds[:, 1] - bounds[:, 0]
    if (lengths <= most).all():
        return frames, bounds
    pieces, moved, total = [], [], 0
    for first, end in bounds.tolist():
        places = np.linspace(first, end - 1, min(most, end - first)).round().astype(np.int64)
        pieces.append(frames[torch.from_numpy(places)])
        moved.append([total, total := total + len(places)])
    return torch.cat(pieces), np.array(moved, dtype=np.int64)


def _questions(data: Videos, asked: list[list[int]], segments: np.ndarray, codec: FrameCodec) -> QueryBatch:
    most = max(map(len, asked))
    shape = (len(asked), most)
    texts = [codec.encode_words(tokenize(data.texts[i])) for each in asked for i in each]
    mask = torch.arange(most) < torch.tensor([len(each) for each in asked])[:, None]
    words, word_mask = pad_rows(texts)
    tokens, token_mask = (value.new_zeros(*shape, words.shape[1]) for value in (words, word_mask))
    tokens[mask], token_mask[mask] = words, word_mask
    token_mask[..., 0] = True  # a padded question is asked with one word
    answer, part = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    chosen = [i for each in asked for i in each]
    answer[mask] = torch.tensor([codec.answer_index.get(data.answers[i], UNSEEN_ANSWER) for i in chosen])
    part[mask] = torch.from_numpy(data.rows[chosen, 2])
    return QueryBatch(
        tokens=tokens,
        token_mask=token_mask,
        position=torch.from_numpy(segments)[:, None].expand(shape).contiguous(),
        answer=answer,
        mask=mask,
        part=part,
        evidence=torch.full(shape, -1),  # the files do not say when a video answers
    )


def count_answers(data: Videos, train: Sequence[int], test: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Right answers and questions of each kind, by a counter that never sees a video.

    It gives the most frequent training answer among questions that begin alike: with the longest beginning it has met.
    """
    met: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for i in train:
        words = tokenize(data.texts[i])
        for length in range(len(words) + 1):
            met[tuple(words[:length])][data.answers[i]] += 1
    found: dict[int, tuple[int, int]] = {}
    for i in test:
        words = tokenize(data.texts[i])
        length = max(length for length in range(len(words) + 1) if tuple(words[:length]) in met)
        counts = met[tuple(words[:length])]
        guess = min(counts, key=lambda answer: (-counts[answer], answer))
        right, total = found.get(kind := int(data.rows[i, 2]), (0, 0))
        found[kind] = (right + (guess == data.answers[i]), total + 1)
    return found
