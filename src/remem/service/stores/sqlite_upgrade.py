"""Older store files, brought to this release's format: one step for each format there was, all in one transaction."""

from __future__ import annotations

import sqlite3

from remem.service.records import STORE_VERSION

STEPS: dict[object, tuple[str, ...]] = {
    # streams got a time to live, and calls keys; rows without either keep the checks they have
    1: (
        "ALTER TABLE streams ADD COLUMN ttl REAL NOT NULL DEFAULT 0",
        "ALTER TABLE streams ADD COLUMN keyed BLOB NOT NULL DEFAULT x''",
        "CREATE INDEX expiring ON streams (updated + ttl) WHERE ttl > 0",
    ),
}
"""For each older format, what makes the next one of it."""


def upgrade(connection: sqlite3.Connection, found: object) -> None:
    """Take every step from the format found; the caller commits."""
    for version in range(int(str(found)), STORE_VERSION):
        for statement in STEPS[version]:
            connection.execute(statement)
    connection.execute("UPDATE meta SET value = ? WHERE name = 'format_version'", (STORE_VERSION,))
