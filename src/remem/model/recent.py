"""Rehearsal memory with a short-term store: the last few segments are kept as they are, older ones in the slots.

Not in the paper. Eq. 1 and 2 have to learn how to write before anything can be read, and what two facts say together is
hard to learn from slots that hold neither. Here R of the K rows are the last R segments, newest first, one vector each;
the others are slots of Eq. 1 and 2, to which every segment goes as well. Two stores, as in Atkinson & Shiffrin (1968),
where rehearsal is what brings something from the first into the second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from remem.data.batch import Segment
from remem.model.embed import PlacedSum
from remem.model.interface import EmbeddedStream, Trace, gather_rows
from remem.model.machine import SlotMachine


class RecentState(NamedTuple):
    """The slots, and the last R segments, newest first."""

    slots: Float[Tensor, "b l d"]
    recent: Float[Tensor, "b r d"]


class RecentMachine(SlotMachine):
    """Encodes and writes as `MemoryMachine` does, into K - R slots, and keeps the last R segments beside them.

    s^t = sum_n p_n * x_n / sqrt(N_t)     M^t = [s^t + a_1; ...; s^{t-R+1} + a_R; m_1; ...; m_{K-R}]

    The a_j are learned and say how long ago a segment was. Where nothing has been read yet, s is zero.
    """

    def __init__(
        self, *, recent: int, num_slots: int, item_dim: int, segment_len: int, place_std: float, **parts: Any
    ) -> None:
        super().__init__(num_slots=num_slots - recent, item_dim=item_dim, **parts)
        self.pool = PlacedSum(places=segment_len, dim=item_dim, std=place_std)
        self.ages = nn.Parameter(place_std * torch.randn(recent, item_dim))

    def initial_state(self, batch_size: int) -> RecentState:
        """Slots as they are learned, and nothing read."""
        nothing = self.ages.new_zeros(batch_size, *self.ages.shape)
        return RecentState(self.first_slots.expand(batch_size, -1, -1), nothing)

    def memory(self, state: RecentState) -> Float[Tensor, "b k d"]:
        """M: what was read last, marked by its age, and the slots."""
        return torch.cat([state.recent + self.ages, state.slots], dim=1)

    def write(self, state: RecentState, segment: Segment) -> RecentState:
        """M^{t+1} from M^t and the segment X^t."""
        features = self.features(segment.items, segment.mask)
        slots, _ = self.writer(state.slots, features, segment.mask)
        newest = self.pool(segment.items, segment.mask)[:, None]
        moved = torch.cat([newest, state.recent[:, :-1]], dim=1)
        return RecentState(slots, torch.where(segment.mask.any(dim=1)[:, None, None], moved, state.recent))

    def write_stream(self, state: RecentState, stream: EmbeddedStream) -> Trace:
        """The slots as ever; what was read last needs no memory, so all of it is found at once."""
        features = self.features(stream.items, stream.item_mask)
        slots, figures = self.scan(state.slots, features, stream)
        real = stream.item_mask.any(dim=1)[stream.order] & stream.segment_mask
        pooled = self.pool(stream.items, stream.item_mask)
        rows = pooled.index_select(0, stream.order.flatten()).unflatten(0, stream.order.shape)
        recent = last_rows(state.recent, rows, real)
        memories = torch.cat([recent + self.ages, slots], dim=2)
        return Trace(RecentState(slots[:, -1], recent[:, -1]), memories, figures, {})


def last_rows(
    before: Float[Tensor, "b r d"], rows: Float[Tensor, "b t d"], real: Bool[Tensor, "b t"]
) -> Float[Tensor, "b t+1 r d"]:
    """The last r rows at every moment, newest first, where `before` are those at the start; only real rows count."""
    (b, r, _), t = before.shape, rows.shape[1]
    read = F.pad(real.long().cumsum(dim=1), (1, 0))  # [b, t + 1], before each segment
    # where the first, second, ... real row stands; others are noted at a place that is not looked at
    place = torch.arange(t, device=real.device).expand(b, -1)
    found = torch.zeros(b, t + 1, dtype=torch.long, device=real.device)
    found.scatter_(1, torch.where(real, read[:, :-1], t), place)
    every = torch.cat([before.flip(1), gather_rows(rows, found[:, :t])], dim=1)  # [b, r + t, d], oldest first
    newest_first = torch.arange(r - 1, -1, -1, device=real.device)
    index = read[..., None] + newest_first  # [b, t + 1, r]
    return gather_rows(every, index.flatten(1)).unflatten(1, index.shape[1:])
