"""Random numbers that are the same on every machine and under every numpy.

numpy promises stable streams only for the raw output of its bit generators, not for what `Generator` makes of it, so
everything here is derived from Philox's raw 64-bit words by integer arithmetic alone.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


class StableRandom:
    """Random integers addressed by a path: what `StableRandom(0, "train", 3)` gives depends on nothing else drawn."""

    def __init__(self, *path: int | str) -> None:
        digest = hashlib.sha256("/".join(map(str, path)).encode()).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def words(self, *shape: int) -> npt.NDArray[np.uint64]:
        """Raw 64-bit words."""
        return np.asarray(self._bits.random_raw(int(np.prod(shape)))).reshape(shape)

    def integers(self, high: int, *shape: int) -> npt.NDArray[np.int64]:
        """Integers in [0, high); the bias of the modulo is below high / 2**64."""
        return (self.words(*shape) % np.uint64(high)).astype(np.int64)

    def permutations(self, rows: int, n: int) -> npt.NDArray[np.int64]:
        """`rows` permutations of 0..n-1: the order of random words."""
        return np.argsort(self.words(rows, n), axis=1, kind="stable")

    def permutation(self, n: int) -> npt.NDArray[np.int64]:
        """One permutation of 0..n-1."""
        return self.permutations(1, n)[0]
