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
        """The same segments with their items on `device`."""
        vectors = None if self.vectors is None else self.vectors.to(device)
        return Windows(self.values.to(device), self.start.to(device), self.length.to(device), vectors)

    def tensors(self) -> Iterator[Tensor]:
        """All that a model can see, in pieces that never fill the memory."""
        yield self.start
        yield self.length
        yield from self.values.split(_CHUNK)
        if self.vectors is not None:
            yield from self.vectors.split(max(1, _CHUNK // self.vectors.shape[1]))
