"""Questions that a text asks by itself: a sentence with words left out, and which rare one stood in the gap.

Nobody has to write them, so unlabelled texts ask them, too. Whoever answers has found the sentence by the words that
are left, and read the missing one there; what people ask about summaries takes as much and more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from remem.data.random import StableRandom

UNKNOWN = 0  # stands in the gap
_KEPT = 6  # of ten of a sentence's other words
_FEWEST = 2  # candidates; a single one would be no choice

Segments = Sequence[tuple[int, int]]
Question = list[int]  # as prepared questions are: from where to where question and answers stand, and the evidence


class GapMaker:
    """Makes the questions of one text after another, and collects their words, which go behind those of all texts."""

    def __init__(self, values: Int[Tensor, " w"], first_rare: int) -> None:
        self._values, self._first_rare = values, first_rare
        self._more: list[int] = []

    @property
    def values(self) -> Int[Tensor, " w"]:
        """The words of all texts, then those of the questions made so far."""
        return torch.cat([self._values, torch.tensor(self._more, dtype=self._values.dtype)])

    def questions(self, number: int, segments: Segments, most: int) -> list[Question]:
        """At most so many questions about a text, each about another rare word; their answers are the candidates."""
        random, begin = StableRandom("gaps", number), segments[0][0]
        sentences = [(first, self._values[first : first + length].tolist()) for first, length in segments]
        places: dict[int, list[tuple[int, int]]] = {}
        for turn, (_, words) in enumerate(sentences):
            for place, code in enumerate(words):
                if code >= self._first_rare:
                    places.setdefault(code, []).append((turn, place))
        rare, asked = sorted(places), []
        if len(rare) < _FEWEST:
            return []
        for code in (rare[i] for i in random.permutation(len(rare))[:most].tolist()):
            turn, gap = places[code][int(random.integers(len(places[code]), 1)[0])]
            first, words = sentences[turn]
            kept = random.integers(10, len(words)) < _KEPT
            left = [
                UNKNOWN if place == gap else word
                for place, word in enumerate(words)
                if place == gap or (kept[place] and word != code)
            ]
            start = len(self._values) + len(self._more)
            end = start + len(left)
            self._more += [*left, code]
            asked.append([start, end, end, end + 1, end, end + 1, first - begin])
        return asked
