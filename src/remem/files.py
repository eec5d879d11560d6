"""Files that are whole or not there, written without torch."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from remem.errors import RememError


def write_file(path: Path, data: bytes) -> None:
    """Write so that a kill or a power cut leaves either the old file or the new one, whole."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()  # half a file is of no use, and a full disk needs its space
        raise RememError(
            f"{path} can't be written ({error.strerror}; {len(data):,} bytes); what was there before is kept. "
            "Make room, or choose another folder."
        ) from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
