"""A copy of a store file that is in use: of one moment, on the disk when this returns, whole or not there at all."""

from __future__ import annotations

import os
import secrets
import sqlite3
from pathlib import Path

from remem.service.errors import InvalidValue


def copy_store(connection: sqlite3.Connection, target: Path, *, replace: bool = False) -> int:
    """Copy what this connection sees, without the pages of what was deleted; returns the copy's bytes."""
    if not replace and target.exists():
        raise InvalidValue(f"{target.name} is there already; a backup replaces nothing.", path="target")
    beside = target.with_name(f"{target.name}.part" if replace else f"{target.name}.{secrets.token_hex(4)}.part")
    if replace:  # what a killed process left of its try
        beside.unlink(missing_ok=True)
    # like the store it is nobody else's to read; SQLite takes an empty file as a new one
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        connection.execute("VACUUM INTO ?", (str(beside),))
        sync(beside)
        size = beside.stat().st_size
        if replace:
            os.replace(beside, target)
        else:
            os.link(beside, target)  # refuses a name that was taken meanwhile
    except FileExistsError:
        raise InvalidValue(f"{target.name} is there already; a backup replaces nothing.", path="target") from None
    finally:
        beside.unlink(missing_ok=True)
    sync(target.parent)
    return size


def sync(path: Path) -> None:
    """A file's bytes, or a folder's names, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
