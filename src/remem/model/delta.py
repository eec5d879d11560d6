"""Rehearsal memory whose slots take what they lack: of an item that they hold already, nothing is written again.

Not in the paper. Eq. 1 hands an item out among the slots each time it comes, so that those that come often drown the
others. Here the slots answer for what they hold, and an item hands out what is missing: the delta rule (Widrow & Hoff,
1960; for fast weights Schlag, Irie & Schmidhuber, 2021).

What was met can be told from such slots, and by how much of it has faded how long ago, but not what came first among
items that all came again: the smallest task of `remem check` is beyond it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.data.batch import Candidates, Segment
from remem.model.interface import EmbeddedStream, Trace
from remem.model.machine import SlotState
from remem.model.packing import without_padding
from remem.ops.precision import at_least_float32

_FIRST_GAIN = 2.0  # nearly all of an item then goes to one or two slots of twenty


class Addressed(NamedTuple):
    """Items of length one, and their shares in the slots, whose squares sum to one."""

    items: Float[Tensor, "*b n d"]
    shares: Float[Tensor, "*b n k"]


class Addresses(nn.Module):
    """x_n = f_n / |f_n|     a_n = softmax_k((s_k . x_n)^2) / |...|

    Where an item goes is its own affair, whatever the slots hold, so that whoever asks for it knows where to look. By
    squares, since s_k . x_n itself would be positive for most of what a slot gets: something that all items share, and
    that slots would hold of those never met.
    """

    def __init__(self, *, item_dim: int, num_slots: int) -> None:
        super().__init__()
        self.directions = nn.Parameter(_FIRST_GAIN * torch.randn(num_slots, item_dim))  # s_k

    def forward(self, features: Float[Tensor, "*b n d"]) -> Addressed:
        with torch.autocast(features.device.type, enabled=False):
            items = F.normalize(at_least_float32(features), dim=-1)
            return Addressed(items, F.normalize((items @ self.directions.mT).square().softmax(dim=-1), dim=-1))


def held(slots: Float[Tensor, "*b k d"], found: Addressed) -> Float[Tensor, "*b n"]:
    """r_n = sum_k a_nk m_k . x_n: how much of an item the slots hold, 1 right after it was written."""
    with torch.autocast(slots.device.type, enabled=False):
        return ((found.items @ slots.mT) * found.shares).sum(dim=-1)


def one_after_another(found: Addressed, mask: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b n n"]:
    """T, by which what a segment's items lack of the slots as they were becomes what each adds in its turn.

    With the delta rule u_n = 1 - r_n - sum_{j<n} (a_j . a_n) (x_j . x_n) u_j, a triangular system that knows nothing of
    the slots, so that those of all segments are solved at once. Padding adds nothing.
    """
    with torch.autocast(found.items.device.type, enabled=False):
        alike = (found.items @ found.items.mT) * (found.shares @ found.shares.mT)
        both = mask[..., None] & mask[..., None, :]
        before = torch.where(both, alike, torch.zeros_like(alike)).tril(-1)
        eye = torch.eye(mask.shape[-1], dtype=before.dtype, device=before.device).expand_as(before)
        return torch.linalg.solve_triangular(before + eye, eye, upper=False, unitriangular=True) * mask[..., None, :]


class DeltaMachine(nn.Module):
    """m_k <- lambda m_k, once a segment; then for each item in turn m_k <- m_k + a_nk (1 - r_n) x_n.

    The state is the slots alone. They start from what is learned, at first nothing. Items are taken as they are, with
    no encoder: what an item is must not depend on its neighbours, or it would not be known again.
    """

    def __init__(self, *, item_dim: int, num_slots: int, keep_bias: float) -> None:
        super().__init__()
        self.addresses = Addresses(item_dim=item_dim, num_slots=num_slots)
        self.keep = nn.Parameter(torch.tensor(keep_bias))  # lambda = sigmoid(keep)
        self.first_slots = nn.Parameter(torch.zeros(num_slots, item_dim))

    def initial_state(self, batch_size: int) -> SlotState:
        """M^1, the same for every stream."""
        return SlotState(self.first_slots.expand(batch_size, -1, -1))

    def memory(self, state: SlotState) -> Float[Tensor, "b k d"]:
        """M: the slots themselves."""
        return state.slots

    def _write(
        self, slots: Float[Tensor, "b k d"], found: Addressed, turns: Float[Tensor, "b n n"], real: Bool[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b k d"], Float[Tensor, "b n"]]:
        """The slots after a segment, and how much of each item was new."""
        faded = torch.where(real[:, None, None], torch.sigmoid(self.keep) * slots, slots)
        with torch.autocast(slots.device.type, enabled=False):
            new = (turns @ (1 - held(faded, found))[..., None]).squeeze(-1) * real[:, None]
            return faded + (found.shares * new[..., None]).mT @ found.items, new

    def write(self, state: SlotState, segment: Segment) -> SlotState:
        """M^{t+1} from M^t and the segment X^t."""
        found = self.addresses(without_padding(*segment))
        turns = one_after_another(found, segment.mask)
        return SlotState(self._write(state.slots, found, turns, segment.mask.any(dim=1))[0])

    def write_stream(self, state: SlotState, stream: EmbeddedStream) -> Trace:
        """All segments in turn; but for what the slots hold, all is found in one call."""
        found = self.addresses(without_padding(stream.items, stream.item_mask))
        turns = one_after_another(found, stream.item_mask)
        real = stream.item_mask.any(dim=1)[stream.order] & stream.segment_mask
        slots, memories, new = state.slots, [state.slots], list[Tensor]()
        items, shares, solved = (stream.turns(table) for table in (*found, turns))
        for here, inverse, now in zip(map(Addressed, items, shares), solved, real.unbind(1), strict=True):
            slots, added = self._write(slots, here, inverse, now)
            memories.append(slots)
            new.append(added.detach().sum())
        count = (stream.item_mask.sum(dim=1)[stream.order] * stream.segment_mask).sum().clamp(min=1)
        added = torch.stack(new or [slots.new_zeros(())])  # of no segment, nothing
        figures = {"new_share": added.sum() / count, "keep": torch.sigmoid(self.keep.detach())}
        return Trace(SlotState(slots), torch.stack(memories, dim=1), figures, {})

    def compile_parts(self, backend: str) -> None:
        """Nothing: a segment is a handful of products."""


class ItemMatch(nn.Module):
    """e^beta (r - 1/2) for a target: how much of it the slots hold, by the addresses they were written with."""

    def __init__(self, *, items: nn.Embedding, addresses: Addresses) -> None:
        super().__init__()
        self.items, self.addresses = items, addresses
        self.strength = nn.Parameter(torch.tensor(2.0))  # beta

    def forward(
        self,
        memory: Float[Tensor, "b q k d"],
        tokens: Int[Tensor, "b q w"],
        token_mask: Bool[Tensor, "b q w"],
        candidates: Candidates | None,
    ) -> Float[Tensor, "b q 1"]:
        found = self.addresses(self.items(tokens[..., :1]))  # [b, q, 1, d]
        return self.strength.exp() * (held(at_least_float32(memory), found) - 0.5)
