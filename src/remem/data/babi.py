"""bAbI as streams: a sentence is a segment, a story a stream, and one pass over it answers all its questions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from remem.data.babi_format import UNKNOWN_EVIDENCE, Story, Words
from remem.data.babi_store import read_manifest, read_stories
from remem.data.batch import UNSEEN_ANSWER, QueryBatch
from remem.data.codec import TextCodec, cut
from remem.data.dataset import Bucket, Split
from remem.errors import BadInput

_BUCKET_LENGTHS = (8, 16, 32, 64, 128, 256, 1 << 30)
_HELD_OUT = 10  # where no validation file was imported, every tenth training story is held out


@dataclass(frozen=True)
class TaskStories:
    """Stories with the number of the bAbI task they belong to."""

    task: int
    stories: list[Story]


def load_stories(folder: Path, tasks: tuple[int, ...], split: str) -> list[TaskStories]:
    """Stories of a split. Training stories are the 10k file less those moved to validation, as in en-valid-10k."""
    manifest = read_manifest(folder)
    if not manifest:
        raise BadInput(
            f"{folder} holds no prepared bAbI data; run `remem data import PATH` with the original folder or archive."
        )
    return [TaskStories(task, _stories_of(folder, task, split)) for task in tasks]


def _stories_of(folder: Path, task: int, split: str) -> list[Story]:
    if split == "test":
        return read_stories(folder, task, "test")
    train, valid = read_stories(folder, task, "train"), read_stories(folder, task, "valid")
    if not valid:
        valid = train[_HELD_OUT - 1 :: _HELD_OUT] or train[-1:][: len(train) - 1]
    if split == "valid":
        return valid
    # counted, not just named: short stories occur many times in the original files, and each copy moved only once
    moved = Counter(valid)
    return [story for story in train if not _take(moved, story)]


def _take(counts: Counter[Story], story: Story) -> bool:
    counts[story] -= 1
    return counts[story] >= 0


def build_codec(train: list[TaskStories], segment_len: int) -> TextCodec:
    """Vocabulary and answer classes of the training stories."""
    stories = [story for part in train for story in part.stories]
    words = {word for story in stories for sentence in story.sentences for word in sentence}
    words |= {word for story in stories for question in story.questions for word in question.words}
    answers = {question.answer for story in stories for question in story.questions}
    return TextCodec(segment_len=segment_len, words=sorted(words), answers=sorted(answers))


def as_split(parts: list[TaskStories], codec: TextCodec) -> Split:
    """Stories to padded tensors, in buckets of similar length."""
    table: dict[Words, int] = {}
    rows = [_Row.of(story, part.task, table, codec) for part in parts for story in part.stories]
    if not rows:
        raise BadInput("There is no story to read; import at least one bAbI task.")
    items, item_mask = _pad([list(codec.encode_words(segment)) for segment in table], width=codec.segment_len)
    groups: list[list[int]] = []
    lower = 0
    for upper in _BUCKET_LENGTHS:
        chosen = [i for i, row in enumerate(rows) if lower < len(row.order) <= upper]
        # a story alone has no neighbour to take replacement items from, and would never be trained on
        if groups and (len(chosen) == 1 or len(groups[-1]) == 1):
            groups[-1] = sorted(groups[-1] + chosen)
        elif chosen:
            groups.append(chosen)
        lower = upper
    buckets = [_bucket([rows[i] for i in group], group, codec) for group in groups]
    return Split(items, item_mask, tuple(buckets), repeats=True)


@dataclass(frozen=True)
class _Row:
    story: Story
    task: int
    order: list[int]
    first_segment: list[int]  # of each sentence, and the total last

    @classmethod
    def of(cls, story: Story, task: int, table: dict[Words, int], codec: TextCodec) -> _Row:
        order: list[int] = []
        first_segment = [0]
        for sentence in story.sentences:
            order += [table.setdefault(piece, len(table)) for piece in map(tuple, cut(sentence, codec.segment_len))]
            first_segment.append(len(order))
        return cls(story, task, order, first_segment)


def _bucket(rows: list[_Row], ids: list[int], codec: TextCodec) -> Bucket:
    order, segment_mask = _pad([row.order for row in rows])
    most = max(len(row.story.questions) for row in rows)
    width = max(len(q.words) for row in rows for q in row.story.questions)
    shape = (len(rows), most)
    tokens = np.zeros((*shape, width), dtype=np.int64)
    token_mask, mask = np.zeros((*shape, width), dtype=bool), np.zeros(shape, dtype=bool)
    position, answer, part = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    evidence = np.full(shape, UNKNOWN_EVIDENCE, dtype=np.int64)
    # a padded question is asked of the empty memory, with one word, and counts for nothing
    token_mask[:, :, 0] = True
    for i, row in enumerate(rows):
        for j, question in enumerate(row.story.questions):
            words = codec.encode_words(question.words)
            tokens[i, j, : len(words)] = words
            token_mask[i, j, : len(words)] = True
            position[i, j] = row.first_segment[question.position]
            answer[i, j] = codec.answer_index.get(question.answer, UNSEEN_ANSWER)
            part[i, j] = row.task - 1
            if question.evidence != UNKNOWN_EVIDENCE:
                evidence[i, j] = row.first_segment[question.evidence]
            mask[i, j] = True
    arrays = (tokens, token_mask, position, answer, mask, part, evidence)
    query = QueryBatch(*map(torch.from_numpy, arrays))  # type: ignore[arg-type]
    return Bucket(order, segment_mask, query, torch.tensor(ids))


def _pad(rows: list[list[int]], width: int = 0) -> tuple[Tensor, Tensor]:
    width = max(width, max(map(len, rows)))
    values, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        values[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = True
    return values, mask
