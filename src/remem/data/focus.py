"""Batches that dwell on what is not learned yet: parts of a task with many wrong answers are drawn more often."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from remem.data.dataset import Split
from remem.data.random import StableRandom

FULL_FOCUS = 20.0  # percent of wrong answers from which on a part gets all of the focus


def unlearned(errors: Mapping[int, float], parts: int) -> list[float]:
    """From 0 for a part without an error, or not asked about, to 1 for one with a fifth of its answers wrong."""
    return [min(errors.get(part, 0.0) / FULL_FOCUS, 1.0) for part in range(parts)]


def part_weights(errors: Mapping[int, float], focus: float, parts: int, always: Collection[int] = ()) -> list[float]:
    """How often each part is drawn against one without an error; those of `always` as if all of it were wrong."""
    return [1 + focus * (1.0 if part in always else share) for part, share in enumerate(unlearned(errors, parts))]


def focused_batches(
    split: Split,
    errors: Mapping[int, float],
    focus: float,
    batch_size: int,
    count: int,
    seed: int,
    turn: int,
    first: Collection[int] = (),
    share: float = 1.0,
    always: Collection[int] = (),
    brevity: float = 0.5,
    missed: np.ndarray | None = None,
    focus_streams: float = 0.0,
) -> list[tuple[int, Int[Tensor, " b"]]]:
    """`count` batches as (bucket, rows), a function of the arguments alone.

    Parts without errors have equal shares, however many streams they have, but for their length to the power of
    `brevity`: at a half, streams four times as long come half as often, between as many streams and as much to read.
    A stream is drawn as often as its weight says, up to one, and streams of a bucket come in a new order every turn.
    Where `first` names parts, `share` of the streams is theirs. `missed` says how wrong each stream was of late, from 0
    to 1, bucket by bucket: within a part that is learned one that was has 1 + `focus_streams` times the weight of one
    that was not. In a part that is still guessed at they have the weight of others: drawn apart, those missed teach
    whatever was not guessed, and then those that this misses teach it back.
    """
    part_of = [bucket.query.part[:, 0].cpu().numpy() for bucket in split.buckets]
    segments = [bucket.segment_mask.sum(dim=1).cpu().numpy() for bucket in split.buckets]
    streams, read = (np.bincount(np.concatenate(part_of), w) for w in (None, np.concatenate(segments)))
    found, streams = streams, np.maximum(streams, 1)
    often = np.array(part_weights(errors, focus, len(streams), always))
    each = often / streams / np.maximum(read / streams, 1) ** brevity
    if first:
        ahead = np.isin(np.arange(len(each)), list(first))
        total = each * found
        each = np.where(ahead, share * each / total[ahead].sum(), (1 - share) * each / max(total[~ahead].sum(), 1e-30))
    weights = [each[parts] for parts in part_of]
    if missed is not None and focus_streams:
        ends = np.cumsum([len(bucket) for bucket in split.buckets])
        learned = 1 - np.array(unlearned(errors, len(streams)))
        harder = np.split(1 + focus_streams * missed * learned[np.concatenate(part_of)], ends[:-1])
        mean = np.bincount(np.concatenate(part_of), np.concatenate(harder), minlength=len(streams)) / streams
        weights = [w * h / mean[parts] for w, h, parts in zip(weights, harder, part_of, strict=True)]
    random = StableRandom(seed, "focus", turn)
    # a bucket of one stream has no neighbour to take replacement items from
    wanted = np.array([weight.sum() if len(weight) > 1 else 0.0 for weight in weights])
    bucket_of = _spread(wanted, count, random)
    batches: list[tuple[int, Tensor]] = []
    for number, weight in enumerate(weights):
        chosen = int((bucket_of == number).sum())
        if not chosen:
            continue
        order = random.permutation(len(weight))
        rows = order[_spread(weight[order], chosen * batch_size, random)]
        rows = torch.from_numpy(rows[random.permutation(len(rows))])
        batches += [(number, chunk) for chunk in rows.split(batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def _spread(weights: np.ndarray, count: int, random: StableRandom) -> np.ndarray:
    """`count` numbers below len(weights), each as often as its weight says, up to one, in ascending order."""
    ends = np.cumsum(weights)
    start = int(random.integers(1 << 32, 1)[0]) / (1 << 32)
    points = (np.arange(count) + start) * (ends[-1] / max(count, 1))
    return np.minimum(np.searchsorted(ends, points, side="right"), len(weights) - 1)
