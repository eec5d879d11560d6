"""Rows of different lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor


def pad_rows(rows: Sequence[Sequence[int]], *, width: int = 1) -> tuple[Int[Tensor, "r w"], Bool[Tensor, "r w"]]:
    """Rows padded with zeros to the longest, at least to `width`, and which numbers are real."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    width = max(width, int(lengths.max(initial=0)))
    mask = np.arange(width) < lengths[:, None]
    values = np.zeros(mask.shape, dtype=np.int64)
    values[mask] = np.fromiter((number for row in rows for number in row), dtype=np.int64, count=int(lengths.sum()))
    return torch.from_numpy(values), torch.from_numpy(mask)


def groups_by_length(lengths: Sequence[int], limits: Sequence[int]) -> list[list[int]]:
    """Numbers of rows in groups of similar length; none is a single row, which has no neighbour to learn against."""
    groups: list[list[int]] = []
    lower = 0
    for upper in (*limits, 1 << 30):
        chosen = [i for i, length in enumerate(lengths) if lower < length <= upper]
        if groups and (len(chosen) == 1 or len(groups[-1]) == 1):
            groups[-1] = sorted(groups[-1] + chosen)
        elif chosen:
            groups.append(chosen)
        lower = upper
    return groups
