"""Prepared data on disk: plain arrays that are mapped into memory, lists of text, and a manifest. Nothing that can run.

An import writes beside the folder and takes its place only when all is sound, so a failed one leaves what was there.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from remem.data.manifest import FORMAT, MANIFEST, REPLACED, read_prepared
from remem.errors import BadInput

Array = npt.NDArray[Any]


class Writer:
    """Appends rows to named arrays and lines to named lists; never more than one call's rows in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._arrays: dict[str, dict[str, Any]] = {}
        self._lists: dict[str, int] = {}

    def append(self, name: str, rows: Array) -> int:
        """Add rows to an array; returns how many it has now. All rows of an array have one type and one width."""
        entry = self._arrays.setdefault(name, {"dtype": rows.dtype.str, "shape": [0, *rows.shape[1:]]})
        if entry["dtype"] != rows.dtype.str or entry["shape"][1:] != list(rows.shape[1:]):
            raise BadInput(
                f"{name} has rows of {entry['dtype']} {entry['shape'][1:]}; "
                f"these are of {rows.dtype.str} {list(rows.shape[1:])}."
            )
        self._file(f"{name}.bin").write(np.ascontiguousarray(rows).tobytes())
        entry["shape"][0] += len(rows)
        return int(entry["shape"][0])

    def rows(self, name: str) -> int:
        """How many rows an array has so far."""
        return int(self._arrays[name]["shape"][0]) if name in self._arrays else 0

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """A list of texts, one a line; a line break inside one would be two."""
        self._lists[name] = 0
        for line in lines:
            if "\n" in line:
                raise BadInput(f"{line!r} holds a line break; names are kept one a line.")
            try:
                self._file(f"{name}.txt").write(line.encode() + b"\n")
            except UnicodeEncodeError:  # JSON can spell half of a character
                raise BadInput(f"{line!r} holds half a character (a lone surrogate), which is no text.") from None
            self._lists[name] += 1

    def finish(self, task: str, **facts: Any) -> dict[str, Any]:
        """Close everything and write the manifest; returns it."""
        self.close()
        manifest = {"format": FORMAT, "task": task, "arrays": self._arrays, "lists": self._lists, **facts}
        (self.folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        return manifest

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()

    def _file(self, name: str) -> IO[bytes]:
        if name not in self._files:
            self._files[name] = (self.folder / name).open("wb")
        return self._files[name]

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def replacing(folder: Path) -> Iterator[Writer]:
    """A writer into a new folder that takes the place of `folder` once nothing has gone wrong."""
    folder = folder.resolve()  # a folder named `.` or by a link has its neighbours elsewhere
    old, fresh = (folder.with_name(folder.name + ending) for ending in (REPLACED, ".importing"))
    if old.exists() and not folder.exists():  # an import was killed between its two renames
        old.rename(folder)
    _refuse_foreign(folder)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        with Writer(fresh) as writer:
            yield writer
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _refuse_foreign(folder: Path) -> None:
    """What lies in the folder will be removed, so nothing may lie there that an import did not write."""
    if not folder.exists():
        return
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        own = {
            MANIFEST,
            *(f"{name}.bin" for name in manifest["arrays"]),
            *(f"{name}.txt" for name in manifest["lists"]),
        }
    except OSError:
        own = set()
    except (ValueError, KeyError, TypeError):
        raise BadInput(
            f"{folder / MANIFEST} is damaged or of other data, so that what else lies there can't be told from files "
            "of your own; remove the folder, or name another one with --into."
        ) from None
    foreign = sorted({path.name for path in folder.iterdir()} - own) if folder.is_dir() else [folder.name]
    if foreign:
        raise BadInput(
            f"{folder} holds {foreign[0]!r}, which is no part of prepared data and would be removed; "
            "move it away, or name another folder with --into."
        )


class Prepared:
    """What an import left in a folder; opening it reads the manifest alone."""

    def __init__(self, folder: Path, task: str, how: str) -> None:
        self.manifest = read_prepared(folder, task, how)
        self.folder = folder

    def array(self, name: str) -> Tensor:
        """An array on disk as a tensor: what is used of it is read when it is used. Writing to it changes no file."""
        entry = self.manifest["arrays"].get(name)
        if entry is None:
            raise BadInput(f"{self.folder} has no array {name!r}; import the data again.")
        dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
        path = self.folder / f"{name}.bin"
        size = path.stat().st_size if path.exists() else -1
        if size != dtype.itemsize * math.prod(shape):
            raise BadInput(f"{path} has {size} bytes, not those of {shape} {dtype}; import the data again.")
        if not size:
            return torch.from_numpy(np.empty(shape, dtype))
        return torch.from_numpy(np.memmap(path, dtype=dtype, mode="c", shape=shape))

    def lines(self, name: str) -> list[str]:
        """A list of texts."""
        # not as text, where the carriage return inside a name would end a line, too
        lines = (self.folder / f"{name}.txt").read_bytes().decode("utf-8").split("\n")[:-1]
        if len(lines) != self.manifest["lists"].get(name):
            raise BadInput(
                f"{self.folder / name}.txt has {len(lines)} lines, not as many as were written; import again."
            )
        return lines
