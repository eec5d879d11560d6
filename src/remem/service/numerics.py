"""Canonical numerics: one way to compute a memory, so that the same events always give the same bits.

The last bits of a sum depend on how many threads add it up and on how many rows the batch has. So a memory is computed
by one thread, in batches of sizes that were tried and found alike, every segment padded to N, in float32. Libraries and
processors remain: they are named in the numerics id, together with the bits that a fixed stream gives here.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence

import torch
from safetensors.torch import load, save
from torch import Tensor

from remem.model.interface import State
from remem.service.errors import MemoryDamaged, SelfTestFailed

_Fold = Callable[[bytes, Sequence[Sequence[bytes]]], bytes]


def use_one_thread() -> None:
    """For the calling thread, and for all that start later: torch keeps one setting for the process."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def numerics_id(rows: tuple[int, int], golden: bytes) -> str:
    """All that decides the last bits here; `golden` is the memory that a fixed stream gives."""
    processor = torch.backends.cpu.get_cpu_capability().lower()
    found = hashlib.blake2b(golden, digest_size=6).hexdigest()
    return f"torch-{torch.__version__}/cpu/{processor}/float32/threads-1/rows-{rows[0]}-{rows[1]}/{found}"


def pack_state(state: State) -> bytes:
    """A method's state as the bytes of a safetensors file."""
    names = state._fields  # type: ignore[attr-defined]
    return save({name: part.detach().contiguous() for name, part in zip(names, state, strict=True)})


def unpack_state(data: bytes, like: State) -> State:
    """The state that `pack_state` wrote; it must have the parts and sizes of `like`."""
    try:
        tensors: dict[str, Tensor] = load(data)
        parts = [tensors[name] for name in like._fields]  # type: ignore[attr-defined]
    except Exception as error:  # safetensors has no public base of its errors
        raise MemoryDamaged(f"A stored memory can't be read ({error}).") from None
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(parts, like, strict=True)):
        raise MemoryDamaged("A stored memory has other sizes than this model's.")
    return type(like)(*parts)


def is_finite(state: State) -> bool:
    """Whether a state may be stored."""
    return all(bool(torch.isfinite(part).all()) for part in state if part.is_floating_point())


def require_same_bits(fold: _Fold, initial: bytes, segments: Sequence[Sequence[bytes]]) -> None:
    """At once, one by one through the stored form, again, and in another thread: the same memory, bit for bit."""
    whole = fold(initial, segments)
    singly = initial
    for segment in segments:
        singly = fold(singly, [segment])
    elsewhere: list[bytes] = []
    thread = threading.Thread(target=lambda: elsewhere.append(fold(initial, segments)))
    thread.start()
    thread.join()
    for way, memory in (("one by one", singly), ("again", fold(initial, segments)), ("elsewhere", *elsewhere)):
        if memory != whole:
            raise SelfTestFailed(
                f"The model gave another memory when the same segments were written {way}; bit-identical memories "
                "can't be promised on this machine."
            )
