"""Kernels in C for the CPU, compiled where they are first used; without a compiler there are none, and nothing fails.

A kernel is a C file beside its reference, and no part of Torch's headers is needed: a second of compiling, once for a
machine. The result is kept in `~/.cache/remem` (or `$XDG_CACHE_HOME/remem`) under a name that depends on the source,
the compiler and the processor. `REMEM_NATIVE=0` turns all of them off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

HEADER = Path(__file__).with_name("vector_math.h")
# sums may be reordered, or no dot product could be vectorised; NaN and infinity keep their meaning
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
         "-fassociative-math", "-ffp-contract=fast", "-shared", "-fPIC", "-std=c11")  # fmt: skip
_PREFERRED = "-mprefer-vector-width=512"  # of processors that have it; not every compiler knows the flag


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """The compiled kernels of a C file; None where they cannot be had."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if os.environ.get("REMEM_NATIVE") == "0" or compiler is None or platform.system() != "Linux":
        return None
    try:
        return ctypes.CDLL(str(_compiled(source, compiler)))
    except (OSError, subprocess.SubprocessError, RuntimeError):  # the last where a user has no home folder
        return None


# or torch.compile would look inside, where it must give up
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def there(source: Path) -> bool:
    """Whether the kernels of a C file can be had."""
    return library(source) is not None


def _compiled(source: Path, compiler: str) -> Path:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    key = hashlib.sha256()
    for part in (source.read_text(), HEADER.read_text(), version, _processor(), " ".join(FLAGS), _PREFERRED):
        key.update(part.encode())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remem"
    path = folder / f"{source.parent.name}-{key.hexdigest()[:16]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # under another name first: several processes may be at it, and none may load half a file
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            command = [compiler, *FLAGS, f"-I{HEADER.parent}", str(source), "-o", str(made), "-lm"]
            if subprocess.run([*command, _PREFERRED], capture_output=True, timeout=120).returncode:
                subprocess.run(command, capture_output=True, check=True, timeout=120)
            made.replace(path)
    return path


def _processor() -> str:
    """What `-march=native` looks at: a cache may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return "\n".join(line for line in lines if line.startswith(("flags", "model name", "Features")))[:20_000]


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Where a tensor begins, as a C function takes it."""
    return ctypes.c_void_p(tensor.data_ptr())


def sizes(*values: int) -> list[ctypes.c_long]:
    """Numbers as a C function takes them."""
    return [ctypes.c_long(value) for value in values]
