"""Kernels in C: compiled once, shared by processes, and not missed where they cannot be had."""

from __future__ import annotations

import ctypes
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remem.ops import native

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
ELEMENTWISE = '#include "vector_math.h"\n' + "\n".join(
    f"void each_{name}(long n, float *x) {{ for (long i = 0; i < n; i++) x[i] = v{name}(x[i]); }}"
    for name in ("exp", "tanh", "sigmoid")
)


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native.library.cache_clear()
    yield tmp_path / "cache" / "remem"
    native.library.cache_clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "elementwise" / "cpu.c"
    path.parent.mkdir()
    path.write_text(ELEMENTWISE)
    return path


def apply(library: ctypes.CDLL, name: str, values: list[float]) -> list[float]:
    array = (ctypes.c_float * len(values))(*values)
    getattr(library, f"each_{name}")(ctypes.c_long(len(values)), array)
    return list(array)


@pytest.mark.parametrize(
    ("name", "truth", "tolerance"),
    [
        ("exp", math.exp, lambda y: 5e-7 * y),
        ("tanh", math.tanh, lambda _: 2e-7),
        ("sigmoid", lambda x: 1 / (1 + math.exp(-x)), lambda _: 2e-7),
    ],
)
def test_elementary_functions_are_as_exact_as_they_say(
    source: Path, name: str, truth: Callable[[float], float], tolerance: Callable[[float], float]
) -> None:
    library = native.library(source)
    assert library is not None
    values = [ctypes.c_float(0.0137 * i - 80.0).value for i in range(11_000)]
    for x, found in zip(values, apply(library, name, values), strict=True):
        assert abs(found - truth(x)) <= tolerance(truth(x)), x
    assert all(math.isnan(y) for y in apply(library, name, [math.nan] * 19))


def test_a_kernel_is_compiled_once_and_left_alone_after(source: Path, fresh_cache: Path) -> None:
    assert native.library(source) is not None
    (made,) = fresh_cache.glob("*.so")
    before = made.stat()
    native.library.cache_clear()
    assert native.library(source) is not None
    assert made.stat().st_mtime_ns == before.st_mtime_ns
    source.write_text(ELEMENTWISE + "\n/* changed */\n")
    native.library.cache_clear()
    assert native.library(source) is not None
    assert len(list(fresh_cache.glob("*.so"))) == 2
    assert not [path for path in fresh_cache.iterdir() if path.suffix != ".so"], "nothing half-made is left"


@pytest.mark.parametrize("reason", ["switched off", "no compiler", "does not compile", "nowhere to write", "no home"])
def test_without_kernels_nothing_fails(
    reason: str, source: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "switched off":
        monkeypatch.setenv("REMEM_NATIVE", "0")
    elif reason == "no compiler":
        monkeypatch.setenv("CC", "no-such-compiler")
    elif reason == "does not compile":
        source.write_text("this is no C")
    elif reason == "no home":  # of a user that a container made up, who is in no list
        for name in ("XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    else:
        fresh_cache.parent.write_text("a file where the folder should be")
    assert native.library(source) is None
