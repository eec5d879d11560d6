"""What all networks with torch share: states as bytes, streams folded side by side, and the test that this is allowed.

A product with one row may take another path through the libraries than one with several, and give other last bits;
batches of two rows and more are alike on the machines we know. So a stream is never folded alone: it shares its batch
with others, or with a copy of itself. Every size of batch is tried before the first fold, and one row that differs is
enough to fold all streams one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from remem.data.codec import cut
from remem.model.interface import Memorizer, State, detach_state
from remem.service.network import Ask, Fold, NotFinite
from remem.service.numerics import is_finite, numerics_id, pack_state, require_same_bits, unpack_state, use_one_thread
from remem.service.recent import Recent

_LEAST_ROWS, _MOST_ROWS = 2, 16
_RECENT_BYTES = 64 * 2**20
"""For memories with their tails written to them, which the next question need not do again."""
_NOT_FINITE = "The memory came out with NaN or infinity in it."


class TorchNetwork(ABC):
    """A memorizer behind the engine; a subclass says what its events are and how a row of them is written."""

    def __init__(self, memorizer: Memorizer, fingerprint: str) -> None:
        use_one_thread()
        self._memorizer, self.fingerprint = memorizer, fingerprint
        self._tested = False
        self._recent: Recent[Fold, State] = Recent(_RECENT_BYTES)
        with torch.no_grad():
            self._empty = detach_state(memorizer.initial_state(1))

    @abstractmethod
    def _pieces(self, segment: Sequence[bytes]) -> Sequence[Any]:
        """A segment's items, in pieces that are written at once: at most N items each."""

    @abstractmethod
    def _written(self, state: State, pieces: Sequence[Any]) -> State:
        """The state of several streams after one more piece of each."""

    @abstractmethod
    def _answers(self, slots: Sequence[Float[Tensor, "1 k d"]], asks: Sequence[Ask]) -> list[Any]:
        """An answer from each memory."""

    @abstractmethod
    def _test_segments(self) -> list[list[bytes]]:
        """A fixed stream with segments of several lengths."""

    @cached_property
    def numerics(self) -> str:
        """Libraries, processor, and the bits of a fixed stream."""
        return numerics_id(self.rows, self.fold(self.initial_memory(), self._test_segments()))

    @cached_property
    def rows(self) -> tuple[int, int]:
        """The fewest and the most streams in one batch, such that a stream's bits depend on itself alone."""
        use_one_thread()
        return (_LEAST_ROWS, _MOST_ROWS) if self._rows_are_alike() else (1, 1)

    def initial_memory(self) -> bytes:
        """The memorizer's own."""
        return pack_state(self._empty)

    def fold(self, memory: bytes, segments: Sequence[Sequence[bytes]]) -> bytes:
        """One stream."""
        (result,) = self.fold_many([Fold(memory, segments)])
        if isinstance(result, NotFinite):
            raise result
        return result

    def fold_many(self, folds: Sequence[Fold]) -> list[bytes | NotFinite]:
        """Streams side by side, as many as may share a batch."""
        return [NotFinite(_NOT_FINITE) if state is None else pack_state(state) for state in self._folded(folds)]

    def ask_many(self, asks: Sequence[Ask]) -> list[Any | NotFinite]:
        """Streams folded side by side, and answered from so."""
        states = {fold: self._recent.get(fold) for fold in dict.fromkeys(ask.fold for ask in asks)}
        missing = [fold for fold, state in states.items() if state is None]
        # what is thrown away after the answer need not have the bits of what is kept, so one may go alone
        for fold, folded in zip(missing, self._folded(missing, least=1), strict=True):
            states[fold] = folded
            if fold.segments and folded is not None:
                self._recent.keep(fold, folded, _size_of(fold, folded))
        results: list[Any | NotFinite] = [NotFinite(_NOT_FINITE) for _ in asks]
        finite = [place for place, ask in enumerate(asks) if states[ask.fold] is not None]
        if finite:
            with torch.no_grad():
                slots = [self._memorizer.memory(states[asks[place].fold]) for place in finite]
                answers = self._answers(slots, [asks[place] for place in finite])
            for place, answer in zip(finite, answers, strict=True):
                results[place] = answer
        return results

    def _folded(self, folds: Sequence[Fold], least: int | None = None) -> list[State | None]:
        """Each stream's state, None where it is not finite; on one thread, without a trace for gradients."""
        use_one_thread()
        fewest, most = self.rows
        least = least or fewest
        states = [unpack_state(fold.memory, self._empty) for fold in folds]
        pieces = [[piece for segment in fold.segments for piece in self._pieces(segment)] for fold in folds]
        with torch.no_grad():
            for turn in range(max(map(len, pieces), default=0)):
                waiting = [number for number, each in enumerate(pieces) if turn < len(each)]
                for group in cut(waiting, most):
                    padded = [*group, *[group[-1]] * (least - len(group))]
                    written = self._side_by_side([states[n] for n in padded], [pieces[n][turn] for n in padded])
                    for number, state in zip(group, written, strict=False):
                        states[number] = state
        return [state if is_finite(state) else None for state in states]

    def describe(self, memory: bytes) -> dict[str, Any]:
        """Sizes, and the norm of each slot."""
        with torch.no_grad():
            slots = self._memorizer.memory(unpack_state(memory, self._empty))[0]
        norms = [round(float(norm), 4) for norm in slots.norm(dim=-1)]
        return {"slots": slots.shape[0], "dim": slots.shape[1], "slot_norms": norms}

    def self_test(self) -> None:
        """A fixed stream in several ways; once for a network."""
        if not self._tested:
            require_same_bits(self.fold, self.initial_memory(), self._test_segments())
            self._tested = True

    @torch.no_grad()
    def _rows_are_alike(self) -> bool:
        """Whether a stream gets the same bits in every size of batch, at either end of it, as beside itself alone."""
        pieces = [piece for segment in self._test_segments() for piece in self._pieces(segment)]
        states = [self._empty]
        for turn in range(_MOST_ROWS):
            states += self._side_by_side(states[-1:], [pieces[turn % len(pieces)]])
        last = [pieces[(3 * row + 1) % len(pieces)] for row in range(_MOST_ROWS)]
        pairs = zip(states[:_MOST_ROWS], last, strict=True)
        wanted = [self._side_by_side([state] * _LEAST_ROWS, [piece] * _LEAST_ROWS)[0] for state, piece in pairs]
        for size in range(_LEAST_ROWS, _MOST_ROWS + 1):
            forward = self._side_by_side(states[:size], last[:size])
            backward = self._side_by_side(states[:size][::-1], last[:size][::-1])[::-1]
            for written in (forward, backward):
                rows = zip(written, wanted, strict=False)
                if not all(torch.equal(a, b) for row, want in rows for a, b in zip(row, want, strict=True)):
                    return False
        return True

    def _side_by_side(self, states: Sequence[State], pieces: Sequence[Any]) -> list[State]:
        kind = type(self._empty)
        together = kind(*(torch.cat(parts) for parts in zip(*states, strict=True)))
        written = self._written(together, pieces)
        return [kind(*parts) for parts in zip(*(part.split(1) for part in written), strict=True)]


def _size_of(fold: Fold, state: State) -> int:
    events = sum(len(payload) for segment in fold.segments for payload in segment)
    return len(fold.memory) + events + sum(part.nbytes for part in state)
