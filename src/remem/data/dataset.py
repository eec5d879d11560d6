"""A split of a task: all its streams as padded tensors, in buckets of similar length, and the order of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from remem.data.batch import Batch, QueryBatch, StreamBatch, to_device
from remem.data.random import StableRandom
from remem.data.windows import Windows
from remem.errors import BadInput

NO_STREAM = -1  # the number of a row that only fills a batch


@dataclass(frozen=True)
class Bucket:
    """Streams padded to one length: rows of segment numbers, and their questions."""

    order: Int[Tensor, "b t"]
    segment_mask: Bool[Tensor, "b t"]
    query: QueryBatch
    ids: Int[Tensor, " b"]

    def __len__(self) -> int:
        return len(self.ids)


class Table(NamedTuple):
    """The segments of a bucket: which rows of the split's table, the streams in numbers of these, the longest."""

    used: Int[Tensor, " s"] | None
    order: Int[Tensor, "b t"]
    width: int


class Exchange(NamedTuple):
    """Ways in which words may change places, for each part of a task: the stand-in of every word and every answer.

    Where answers are a stream's own candidates, these are told in the same way, and their places stay.
    """

    words: Int[Tensor, "p e v"]
    answers: Int[Tensor, "p e a"] | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Every stream told in a way drawn for it. The streams' segments must be in turn."""
        stream, query = batch.stream, batch.query
        part = query.part[:, 0]
        way = torch.randint(self.words.shape[1], part.shape, device=part.device)
        words = self.words[part, way]

        def told(numbers: Tensor) -> Tensor:
            return words.gather(1, numbers.view(len(part), -1)).view_as(numbers)

        query = query._replace(tokens=told(query.tokens))
        if query.candidates is not None:
            query = query._replace(candidates=query.candidates._replace(tokens=told(query.candidates.tokens)))
        if self.answers is not None:
            answer = self.answers[part, way].gather(1, query.answer.clamp(min=0))
            query = query._replace(answer=torch.where(query.answer >= 0, answer, query.answer))
        return batch._replace(stream=stream._replace(items=told(stream.items)), query=query)


@dataclass(frozen=True)
class Split:
    """Streams of one split. `items` is the table of distinct segments that every bucket's `order` points into.

    It is a tensor with its mask, or `Windows` of a longer row, which need no mask beside them.
    """

    items: Int[Tensor, "s n"] | Windows
    item_mask: Bool[Tensor, "s n"] | None
    buckets: tuple[Bucket, ...]
    repeats: bool
    """Whether streams share segments; where they don't, a batch need not look for the distinct ones."""
    exchange: Exchange | None = None
    """Words that change places each time a stream is drawn; for training only."""
    questions: int = 0
    """How many questions of a stream are drawn with it, for training only; 0 takes all."""

    def __len__(self) -> int:
        return sum(len(b) for b in self.buckets)

    @property
    def num_questions(self) -> int:
        """Questions in all buckets."""
        return sum(int(b.query.mask.sum()) for b in self.buckets)

    @cached_property
    def lengths(self) -> Int[Tensor, " s"]:
        """Real items of each segment."""
        if isinstance(self.items, Windows):
            return self.items.length
        assert self.item_mask is not None
        return self.item_mask.sum(dim=1)

    @cached_property
    def most_items(self) -> tuple[int, ...]:
        """Real items of the longest stream of each bucket; asked of the device once, not in every batch."""
        lengths = self.lengths
        return tuple(int((lengths[b.order] * b.segment_mask).sum(dim=1).max()) for b in self.buckets)

    @cached_property
    def after_all(self) -> tuple[bool, ...]:
        """Whether all questions of a bucket come after their streams' last segments; asked once, too."""
        ends = ((b.query.position == b.segment_mask.sum(dim=1, keepdim=True)) | ~b.query.mask for b in self.buckets)
        return tuple(bool(at_end.all()) for at_end in ends)

    def to(self, device: torch.device) -> Split:
        """The same split with its tensors on `device`, so that batches are gathered there."""
        buckets = tuple(
            Bucket(b.order.to(device), b.segment_mask.to(device), to_device(b.query, device), b.ids.to(device))
            for b in self.buckets
        )
        exchange = self.exchange and to_device(self.exchange, device)
        item_mask = None if self.item_mask is None else self.item_mask.to(device)
        return Split(self.items.to(device), item_mask, buckets, self.repeats, exchange, self.questions)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """What each bucket needs of the table: long stories are made of few and short sentences."""
        lengths = self.lengths
        if not self.repeats:
            width = int(lengths.max())
            return tuple(Table(None, b.order, width) for b in self.buckets)
        tables = []
        for bucket in self.buckets:
            used, compact = _distinct(bucket.order, bucket.segment_mask)
            tables.append(Table(used, compact, int(lengths[used].max())))
        return tuple(tables)

    def batch(self, bucket: int, rows: Int[Tensor, " b"]) -> Batch:
        """The given rows of a bucket, with the segments they use.

        On a GPU a captured step gathers its own batches, so their shapes must not depend on what is in them: where
        streams share segments that is the bucket's table, or every use of a segment where those are fewer, or where
        each stream has words of its own.
        """
        source, table = self.buckets[bucket], self.tables[bucket]
        rows = rows.to(source.ids.device)
        order, segment_mask, in_turn = source.order[rows], source.segment_mask[rows], False
        repeats = table.used is not None and self.exchange is None
        if repeats and not order.is_cuda:
            used, compact = _distinct(order, segment_mask)
        elif repeats and table.used is not None and order.numel() >= len(table.used):
            used, compact = table.used, table.order[rows]
        else:
            used, compact = order.flatten(), torch.arange(order.numel(), device=order.device).view_as(order)
            in_turn = True
        stream = StreamBatch(
            *self._segments(used, table.width), compact, segment_mask, in_turn, self.most_items[bucket]
        )
        query = source.query.rows(rows)._replace(after_all=self.after_all[bucket])
        if 0 < self.questions < query.mask.shape[1]:
            query = some_questions(query, self.questions)
        batch = Batch(stream, query, source.ids[rows])
        return batch if self.exchange is None else self.exchange(batch)

    def places(self, bucket: int, rows: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Where rows of a bucket stand among all streams, bucket by bucket; their own numbers may have gaps."""
        return rows + sum(len(b) for b in self.buckets[:bucket])

    def _segments(self, used: Int[Tensor, " s"], width: int) -> tuple[Tensor, Tensor]:
        if isinstance(self.items, Windows):
            return self.items.take(used, width)
        assert self.item_mask is not None
        return self.items[used, :width].long(), self.item_mask[used, :width]

    def fingerprint(self) -> str:
        """SHA-256 of all that a model can see: equal on every machine, different if one item differs."""
        digest = hashlib.sha256()
        for tensor in self._tensors():
            array = tensor.cpu().contiguous().numpy()
            digest.update(f"{array.dtype.str.lstrip('<|')} {array.shape};".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def _tensors(self) -> Iterator[Tensor]:
        if isinstance(self.items, Windows):
            yield from self.items.tensors()
        else:
            assert self.item_mask is not None
            yield from (self.items, self.item_mask)
        for bucket in self.buckets:
            *each_question, candidates, _ = bucket.query
            yield from (bucket.order, bucket.segment_mask, *each_question, *(candidates or ()))


def some_questions(query: QueryBatch, count: int) -> QueryBatch:
    """`count` questions of each stream, drawn anew each time; padding only where a stream has no more."""
    lot = torch.rand(query.mask.shape, device=query.mask.device) + query.mask
    chosen = lot.topk(count, dim=1).indices
    return query.each(lambda value: value.take_along_dim(chosen[:, :, None] if value.ndim > 2 else chosen, dim=1))


def _distinct(order: Int[Tensor, "b t"], real: Bool[Tensor, "b t"]) -> tuple[Int[Tensor, " s"], Int[Tensor, "b t"]]:
    """The segments that occur, and the streams in numbers of these; padding points to the first."""
    used, numbers = torch.unique(order[real], return_inverse=True)
    compact = torch.zeros_like(order)
    compact[real] = numbers
    return used, compact


def epoch_batches(split: Split, batch_size: int, seed: int, epoch: int) -> list[tuple[int, Int[Tensor, " b"]]]:
    """All batches of an epoch, as (bucket, rows); a function of its arguments alone, so that a run can resume anywhere.

    A bucket's last batch is filled up with rows of its first, so that all have one shape; a bucket too small for that
    is one batch of its own, unless it is a single stream, which has no neighbour to take replacement items from.
    """
    batches: list[tuple[int, Tensor]] = []
    for number, bucket in enumerate(split.buckets):
        rows = torch.from_numpy(StableRandom(seed, "rows", epoch, number).permutation(len(bucket)))
        missing = -len(rows) % batch_size if len(rows) > batch_size else 0
        batches += [(number, chunk) for chunk in torch.cat([rows, rows[:missing]]).split(batch_size) if len(chunk) > 1]
    return [batches[i] for i in StableRandom(seed, "batches", epoch).permutation(len(batches))]


def training_batches(split: Split, batch_size: int, seed: int, first_step: int) -> Iterator[tuple[int, Tensor]]:
    """Endless (bucket, rows), starting at any step as if all earlier ones had been drawn."""
    per_epoch = len(epoch_batches(split, batch_size, seed, 0))
    if not per_epoch:
        raise BadInput(
            f"A split of {len(split)} streams has no batch; training needs at least two streams"
            + (" and a batch_size of at least two." if batch_size < 2 else ".")
        )
    epoch, skip = divmod(first_step, per_epoch)
    while True:
        yield from epoch_batches(split, batch_size, seed, epoch)[skip:]
        epoch, skip = epoch + 1, 0


def evaluation_batches(split: Split, batch_size: int, *, fill: bool = False) -> Iterator[Batch]:
    """Every stream once, in order; with `fill` each batch is full, with streams that ask nothing and have no number."""
    for number, bucket in enumerate(split.buckets):
        for rows in torch.arange(len(bucket)).split(batch_size):
            missing = batch_size - len(rows) if fill else 0
            batch = split.batch(number, torch.cat([rows, rows[:1].expand(missing)]))
            if missing:
                batch.query.mask[len(rows) :] = False
                batch.ids[len(rows) :] = NO_STREAM
            yield batch
