"""What deleted rows leave in a store file although `secure_delete` is on: gaps in its pages, overwritten with zeros.

A row is zeroed where it lies when it is deleted. But rows move when pages are split or joined, and what they leave in a
page's unused middle stays there: neither SQLite nor a delete looks at it again. https://www.sqlite.org/fileformat2.html
"""

from __future__ import annotations

import os
import struct
import threading
from collections import Counter
from pathlib import Path

# of pages that hold rows, inside a tree and at its leaves: where the pointers to the rows begin
_POINTERS = {2: 12, 5: 12, 10: 8, 13: 8}
_CHUNK_PAGES = 256
_PIECE = 2**25  # bytes; somebody who wants to write waits for one piece, not for the file
# other pages begin with a page's number, which up to here is none of the kinds above
_MOST_PAGES = 2**25


# closing any descriptor of a file ends all locks that this process has on it, also those of SQLite in other stores: so
# whoever leaves last does that
_guard = threading.Lock()
_users: Counter[Path] = Counter()
_left: dict[Path, list[int]] = {}


def enter(path: Path) -> None:
    """Before SQLite opens a store file here."""
    with _guard:
        _users[path] += 1


def leave(path: Path) -> None:
    """After it was closed."""
    with _guard:
        _users[path] -= 1
        if not _users[path]:
            del _users[path]
            for file in _left.pop(path, []):
                os.close(file)


class Gaps:
    """The store file beside SQLite."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def clear(self, first: int) -> int | None:
        """Overwrite those of a piece of the file, from a page on; while nobody writes, and the log is empty.

        The page to go on from: 0 after the last one, None if the file is of a kind not known.
        """
        head = os.pread(self._file, 100, 0)
        (size,) = struct.unpack(">H", head[16:18])
        size = 2**16 if size == 1 else size
        pages = os.fstat(self._file).st_size // size
        if pages >= _MOST_PAGES or head[52:56] != bytes(4):  # with auto-vacuum some pages are maps of others
            return None
        end = min(first + max(_PIECE // size, 1), pages)
        for place in range(first, end, _CHUNK_PAGES):
            chunk = os.pread(self._file, min(_CHUNK_PAGES, end - place) * size, place * size)
            for start in range(0, len(chunk), size):
                self._clear_page(place * size, chunk, start, start + size)
        os.fsync(self._file)
        return end if end < pages else 0

    def _clear_page(self, place: int, chunk: bytes, start: int, end: int) -> None:
        head = start if place + start else 100  # the first page begins with the file's own header
        if (pointers := _POINTERS.get(chunk[head])) is None:
            return
        rows, content = struct.unpack_from(">HH", chunk, head + 3)
        gap, used = head + pointers + 2 * rows, start + (content or 2**16)
        if gap < used <= end and chunk[gap:used] != bytes(used - gap):
            os.pwrite(self._file, bytes(used - gap), place + gap)

    def close(self) -> None:
        """Once nobody in this process uses the file any more."""
        with _guard:
            _left.setdefault(self._path, []).append(self._file)
