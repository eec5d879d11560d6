"""Which way an operation takes: the fast one if there is one, or the plain one to compare it with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

HAS_TRITON = find_spec("triton") is not None
_fast = True


def fast() -> bool:
    """Whether fast paths may be taken."""
    return _fast


@contextmanager
def reference_only() -> Iterator[None]:
    """Inside, every operation is plain PyTorch: what tests and benchmarks compare with."""
    global _fast
    before, _fast = _fast, False
    try:
        yield
    finally:
        _fast = before
