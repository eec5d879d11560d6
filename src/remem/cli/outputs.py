"""Where a command will write: refused before the work is done, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from remem.errors import BadInput


def require_writable(path: Path | None, *, folder: bool = False) -> None:
    """Refuse a file, or a folder of files, that could not be made there; leaves nothing behind."""
    if path is None:
        return
    if path.exists() and path.is_dir() != folder:
        raise BadInput(f"{path} is {'a file' if folder else 'a folder'}; expected a {'folder' if folder else 'file'}.")
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if nearest != path and not nearest.is_dir():
        raise BadInput(f"{path} can't be made, since {nearest} is no folder.")
    if not os.access(nearest, os.W_OK):
        raise BadInput(f"{path} can't be written to: {nearest} is read-only for this user.")
