"""Products of matrices in float32 on a CPU: by oneDNN while training, which on many processors has them sooner.

Torch takes MKL's for float32, which on an AMD EPYC with AVX-512 were less than half as fast as oneDNN's. Torch hands
float32 to oneDNN once it may round to bf16, and oneDNN rounds where that pays: with AMX. Elsewhere it computes in
float32 all the same. So it is asked whether it rounds, and where it does not, it is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from remem.ops.paths import fast

_PROBED = 256  # rows and columns; very small products stay Torch's own
_taken = False


@contextmanager
def products_by_onednn(device: torch.device) -> Iterator[None]:
    """Inside, products on a CPU are oneDNN's, if it is there and keeps all bits. What is served never comes here: a
    memory must not depend on which library computed it."""
    global _taken
    if device.type != "cpu" or not fast() or not keeps_all_bits():
        yield
        return
    before, was_taken = torch.get_float32_matmul_precision(), _taken
    torch.set_float32_matmul_precision("medium")
    _taken = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        _taken = was_taken


def taken() -> bool:
    """Whether products are oneDNN's just now. Torch's own attention is slow then, asking for one tiny one at a time."""
    return _taken


@cache
def keeps_all_bits() -> bool:
    """Whether oneDNN is there and, allowed to round, does not: a product with ones on the diagonal gives all back."""
    if not torch.backends.mkldnn.is_available():
        return False
    # all 24 bits of a fraction are in use
    values = torch.arange(1, _PROBED * _PROBED + 1, dtype=torch.float64).sqrt().float().view(_PROBED, _PROBED)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        return torch.equal(values @ torch.eye(_PROBED), values)
    finally:
        torch.set_float32_matmul_precision(before)
