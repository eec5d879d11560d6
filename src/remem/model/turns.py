"""Rehearsal memory whose slots take turns: what stands together in the stream is kept together.

Not in the paper. Eq. 1 sends every item where its own score says, so the words of a sentence part, and whether two of
them stood in one sentence is lost. Here slot k is raised in Eq. 1 for the segments t with floor(t / turns) mod K = k.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.data.batch import Segment
from remem.model.interface import EmbeddedStream, Trace
from remem.model.machine import SlotMachine
from remem.ops.write_scan import reference

_FIRST_GAIN = 6.0  # above what the first scores differ by


class TurnState(NamedTuple):
    """The slots, and how many segments were read, modulo a whole round."""

    slots: Float[Tensor, "b k d"]
    read: Int[Tensor, " b"]


class TurnMachine(SlotMachine):
    """Encodes as `MemoryMachine` does, and writes with a learned bonus for the slot whose turn it is.

    Slots start empty: they are told apart by their turns. The scan is the plain one, as no kernel knows of turns.
    """

    def __init__(self, *, turns: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.turns = turns
        self.turn_gain = nn.Parameter(torch.tensor(_FIRST_GAIN))
        width = self.first_slots.shape[1]
        with torch.no_grad():
            self.first_slots.zero_()
            # all that is kept fades alike, and of a slot that gets nothing, nothing is left but what it held
            self.writer.cell.weight_ih[: 2 * width] = 0.0
            self.writer.cell.weight_hh[: 2 * width] = 0.0
            self.writer.cell.bias_ih[2 * width :] = 0.0
            self.writer.cell.bias_hh[2 * width :] = 0.0

    @property
    def _round(self) -> int:
        return self.turns * len(self.first_slots)

    def initial_state(self, batch_size: int) -> TurnState:
        """No slot holds anything, and the first one's turn begins."""
        none = torch.zeros(batch_size, dtype=torch.long, device=self.first_slots.device)
        return TurnState(self.first_slots.expand(batch_size, -1, -1), none)

    def memory(self, state: TurnState) -> Float[Tensor, "b k d"]:
        """M: the slots themselves."""
        return state.slots

    def _write(
        self, state: TurnState, features: Float[Tensor, "b n d"], item_side: Float[Tensor, "b n m"],
        mask: Bool[Tensor, "b n"],
    ) -> tuple[TurnState, Float[Tensor, "b k n"]]:  # fmt: skip
        every = torch.arange(len(self.first_slots), device=state.read.device)
        turn = (state.read // self.turns)[:, None] == every  # [b, k]
        slots, shares = reference.write_segment(
            state.slots, features, item_side, mask, self.writer.weights, self.writer.aligned_gain, self.turn_gain * turn
        )
        return TurnState(slots, (state.read + mask.any(dim=1)) % self._round), shares

    def write(self, state: TurnState, segment: Segment) -> TurnState:
        """M^{t+1} from M^t and the segment X^t."""
        features = self.features(segment.items, segment.mask)
        return self._write(state, features, reference.project(features, self.writer.weights), segment.mask)[0]

    def write_stream(self, state: TurnState, stream: EmbeddedStream) -> Trace:
        """All segments in turn: encoded in one call, so that only the write itself is sequential."""
        features = self.features(stream.items, stream.item_mask)
        item_side = reference.project(features, self.writer.weights)
        real = stream.item_mask[stream.order] & stream.segment_mask[..., None]
        memories, entropy = [state.slots], features.new_zeros((), dtype=torch.float32)
        for items, sides, now in zip(stream.turns(features), stream.turns(item_side), real.unbind(1), strict=True):
            state, shares = self._write(state, items, sides, now)
            memories.append(state.slots)
            entropy = entropy + torch.special.entr(shares.detach()).sum()
        figures = {"write_entropy": entropy / real.sum().clamp(min=1), "turn_gain": self.turn_gain.detach()}
        return Trace(state, torch.stack(memories, dim=1), figures, {})
