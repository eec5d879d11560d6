"""Segments that are stretches of one long row of items: the row may lie on disk, and only what a batch uses is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Windows:
    """A table of segments that is never written out: segment i is `values[start[i] : start[i] + length[i]]`.

    Histories of a user that end at different moments share their items, and a video's frames their vectors. With
    `vectors`, a value is the number of one of them.
    """

    values: Int[Tensor, " r"]
    start: Int[Tensor, " s"]
    length: Int[Tensor, " s"]
    vectors: Float[Tensor, "v e"] | None = None

    def take(
        self, rows: Int[Tensor, " s"], width: int
    ) -> tuple[Int[Tensor, "s n"] | Float[Tensor, "s n e"], Bool[Tensor, "s n"]]:
        """The items of some segments, and which of them are real. Shapes depend on shapes alone."""
        place = torch.arange(width, device=self.values.device)
        mask = place < self.length[rows][:, None]
        # what stands beyond the end of a segment is masked, but has to be somewhere
        items = self.values[(self.start[rows][:, None] + place).clamp(max=len(self.values) - 1)].long()
        items = items.masked_fill(~mask, 0)
        if self.vectors is None:
            return items, mask
        return self.vectors[items].float().masked_fill(~mask[..., None], 0.0), mask

    def to(self, device: torch.device) -> Windows:
        """The same segments on `device`; what they don't use stays where it is, as it belongs to other splits."""
        if device == self.values.device:
            return self
        values, start = self._used_values()
        vectors = None
        if self.vectors is not None:
            numbers, values = torch.unique(values, return_inverse=True)
            vectors = torch.empty(len(numbers), self.vectors.shape[1], dtype=self.vectors.dtype, device=device)
            # piece by piece, so that a file larger than the memory can pass through it
            for piece, part in zip(vectors.split(_rows(vectors)), numbers.split(_rows(vectors)), strict=True):
                piece.copy_(self.vectors[part.long()])
        return Windows(values.to(device), start.to(device), self.length.to(device), vectors)

    def _used_values(self) -> tuple[Int[Tensor, " r"], Int[Tensor, " s"]]:
        """The values that lie in any window, and where each window begins among them."""
        edges = torch.zeros(len(self.values) + 1, dtype=torch.int32, device=self.values.device)
        edges.index_add_(0, self.start, torch.ones_like(self.start, dtype=torch.int32))
        edges.index_add_(0, self.start + self.length, -torch.ones_like(self.start, dtype=torch.int32))
        used = edges.cumsum(0)[:-1] > 0
        place = used.long().cumsum(0) - 1
        return self.values[used], place[self.start]

    def tensors(self) -> Iterator[Tensor]:
        """All that a model can see, in pieces that never fill the memory, and the same wherever the items lie."""
        yield self.length
        width = int(self.length.max())
        size = width * (1 if self.vectors is None else self.vectors.shape[1])
        for rows in torch.arange(len(self.start), device=self.start.device).split(max(1, _CHUNK // size)):
            items, mask = self.take(rows, width)
            yield items[mask]


def _rows(vectors: Tensor) -> int:
    return max(1, _CHUNK // vectors.shape[1])
