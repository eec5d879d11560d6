"""Click logs to prepared data: `remem data import PATH --task lastfm | assistments | xlong | clicks`.

All become the same: `events`, the items of all users one after another in time order; `users`, where each begins and
ends and whether it is kept for testing; for XLong also `targets`, an item that was clicked next and one that was not.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from io import BufferedIOBase
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from remem.data.babi_format import MalformedFile
from remem.data.prepared import Array, Writer, replacing
from remem.data.random import StableRandom
from remem.data.sources import base, files_of, lines_of
from remem.errors import BadInput

LARGEST = 2**31 - 2
Column = tuple[Sequence[Any] | Array, Array]  # the names there are, in order, and the number of each row's


class User(NamedTuple):
    """One user's items in time order, and whether the publishers keep the user for testing."""

    items: Array
    test: bool
    targets: tuple[int, int] | None = None


def import_clicks(task: str, paths: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Check the files of a task and prepare them in `folder`; returns the manifest. All or nothing is kept."""
    wanted, read, expected = _READERS[task]
    sources: dict[str, int] = {}
    with replacing(folder) as writer:
        largest, users, events, names, seen = 0, 0, 0, None, set[str]()
        for path in paths:
            for name, file in files_of(path, lambda found: bool(wanted.fullmatch(base(found)))):
                if names is not None:
                    raise BadInput(
                        f"{name} is a second log; give one file with all users, so that items have one number each."
                    )
                # an archive and what was unpacked beside it: every user twice, and one of the two may train
                if base(name) in seen:
                    raise BadInput(f"{name} of {path} is the second {base(name)}; give every file once.")
                seen.add(base(name))
                found = read(name, file)
                names = found.names if found.names is not None else names
                for user in found.users:
                    _put(writer, user)
                    largest, users, events = max(largest, int(user.items.max())), users + 1, events + len(user.items)
                    largest = max(largest, *(user.targets or (0,)))
                    sources[name] = sources.get(name, 0) + 1
        if not users:
            raise BadInput(f"{', '.join(map(str, paths))} holds no file of {task}; expected {expected}.")
        if names is not None:
            writer.write_lines("items", names)
        return writer.finish(
            "clicks", name=task, num_items=largest + 1, responses=task == "assistments",
            counts={"users": users, "events": events}, sources=sources,
        )  # fmt: skip


class Found(NamedTuple):
    """The users of a file, one after another, and the names of their items where those are no numbers."""

    users: Iterator[User]
    names: list[str] | None = None


def _put(writer: Writer, user: User) -> None:
    end = writer.append("events", user.items.astype(np.int32))
    writer.append("users", np.array([[end - len(user.items), end, user.test]], dtype=np.int64))
    if user.targets is not None:
        writer.append("targets", np.array([user.targets], dtype=np.int64))


def _numbers(text: str, separator: str | None, name: str, line: int, what: str, largest: int = LARGEST) -> Array:
    fields = text.split(separator)
    try:
        numbers = np.array(fields, dtype=np.int64)
    except OverflowError:
        raise MalformedFile(name, line, f"a {what} is not between 0 and {largest}") from None
    except ValueError:
        wrong = next(field for field in fields if not field.strip().isdecimal())
        raise MalformedFile(name, line, f"{wrong!r} is no {what}; expected a number of 0 or more") from None
    if not len(numbers):
        raise MalformedFile(name, line, f"there is no {what}")
    if numbers.min() < 0 or numbers.max() > largest:
        raise MalformedFile(name, line, f"a {what} is not between 0 and {largest}")
    return numbers


def _lastfm(name: str, file: BufferedIOBase) -> Found:
    """One line a user: item numbers separated by spaces."""

    def users() -> Iterator[User]:
        for number, line in lines_of(file, name):
            yield User(_numbers(line, None, name, number, "item"), test="test" in base(name))

    return Found(users())


def _assistments(name: str, file: BufferedIOBase) -> Found:
    """Four lines a student: who, problems, skills, right or wrong. An event is 2 problem + 1 if it was solved."""

    def users() -> Iterator[User]:
        lines = lines_of(file, name)
        for number, head in lines:
            _numbers(head, ",", name, number, "student")
            rows = []
            for what in ("problem", "skill", "response"):
                number, line = next(lines, (number + 1, ""))
                if not line:
                    raise MalformedFile(name, number, f"the student's {what}s are missing")
                rows.append(_numbers(line, ",", name, number, what, LARGEST // 2))
            if len({len(row) for row in rows}) > 1:
                raise MalformedFile(name, number, "a student has as many problems as skills and responses, here not")
            if rows[2].max() > 1:
                raise MalformedFile(name, number, f"{rows[2].max()} is no response; expected 0 or 1")
            # one of the five folds is kept for testing
            yield User(2 * rows[0] + rows[2], test="test5" in base(name))

    return Found(users())


def _xlong(name: str, file: BufferedIOBase) -> Found:
    """A line a user, tabs between: index, user, items, clicked item, other item, and two lists of users (not read)."""

    def users() -> Iterator[User]:
        for number, line in lines_of(file, name):
            fields = line.split("\t")
            if len(fields) < 5:
                raise MalformedFile(name, number, f"{len(fields)} fields; expected at least 5, with tabs in between")
            clicked, other = (int(_numbers(field, ",", name, number, "item")[0]) for field in fields[3:5])
            yield User(_numbers(fields[2], ",", name, number, "item"), "test" in base(name), (clicked, other))

    return Found(users())


class _Ids:
    """A column of names as numbers, in the order of the names; each name is kept once, however long and frequent."""

    def __init__(self) -> None:
        self._met: dict[str, int] = {}
        self._rows = array("i")

    def append(self, name: str) -> None:
        """The name of one more row."""
        self._rows.append(self._met.setdefault(name, len(self._met)))

    def finish(self) -> Column:
        """All names in order, and the number of every row's."""
        names = sorted(self._met)
        place = np.empty(len(names), dtype=np.int32)
        place[[self._met[name] for name in names]] = np.arange(len(names))
        return names, place[np.array(self._rows)]


def _own_log(name: str, file: BufferedIOBase) -> Found:
    """Rows of user, item and time in any order, as csv or parquet; users are split by lot."""
    read = _parquet_columns if name.endswith(".parquet") else _csv_columns
    (users, user), (items, item), times = read(name, file)
    order = np.lexsort((np.arange(len(user)), times, user))
    bounds = np.searchsorted(user[order], np.arange(len(users) + 1))
    held = set(StableRandom("clicks", "test").permutation(len(users))[: len(users) // 5].tolist())
    found = (
        User(item[order[first:end]], test=number in held)
        for number, (first, end) in enumerate(pairwise(bounds.tolist()))
    )
    return Found(found, [str(each) for each in items])


def _csv_columns(name: str, file: BufferedIOBase) -> tuple[Column, Column, Array]:
    users, items, times = _Ids(), _Ids(), array("d")
    reader = csv.reader((line + "\n" for _, line in lines_of(file, name)), strict=True)
    try:
        header = next(reader, [])
        columns = [header.index(column) if column in header else -1 for column in ("user", "item", "time")]
        if -1 in columns:
            raise MalformedFile(name, 1, "expected a header with the columns user, item and time")
        for row in reader:
            if len(row) != len(header):
                raise MalformedFile(name, reader.line_num, f"{len(row)} fields; expected {len(header)}")
            user, item, time = (row[column] for column in columns)
            if not user or not item:
                raise MalformedFile(name, reader.line_num, f"the {'item' if user else 'user'} is missing")
            users.append(user)
            items.append(item)
            times.append(_time(time, name, reader.line_num))
    except csv.Error as error:
        raise MalformedFile(name, reader.line_num, f"this is not a csv row ({error})") from None
    if not times:
        raise MalformedFile(name, 2, "there is no event")
    return users.finish(), items.finish(), np.array(times)


def _time(text: str, name: str, line: int) -> float:
    try:
        return _seconds(text)
    except ValueError:
        raise MalformedFile(name, line, f"{text!r} is no time; expected a number or 2021-07-18T12:00:00") from None


def _seconds(text: str) -> float:
    """A number, or a date as seconds; numpy would also read nothing at all, and the word `now`, as dates."""
    try:
        value = float(text)
    except ValueError:
        if not text.strip()[:4].isdigit():
            raise
        value = float(np.datetime64(text.strip().removesuffix("Z"), "us").astype(np.int64)) / 1e6
    if value != value:
        raise ValueError("not a number")
    return value


def _parquet_columns(name: str, file: BufferedIOBase) -> tuple[Column, Column, Array]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadInput(
            "Reading parquet files needs pyarrow: pip install 'remem[data]', or give the log as csv."
        ) from None
    # pyarrow reads ahead in threads of its own: one that still asks Python for bytes while it exits aborts the process
    source = pyarrow.BufferReader(file.read())
    try:
        table = parquet.read_table(source, columns=["user", "item", "time"])
    except (pyarrow.ArrowException, KeyError, OSError) as error:  # OSError is what damage is told by
        raise BadInput(f"{name} is not a parquet file with the columns user, item and time ({error}).") from None
    if not len(table):
        raise BadInput(f"{name} holds no event.")
    users, items, times = (_parquet_column(name, column, table[column]) for column in ("user", "item", "time"))
    if times.dtype == object and isinstance(times[0], str):  # as words 10 would come before 9
        times = np.array([_time(text, name, row) for row, text in enumerate(times.tolist(), start=1)])
    return np.unique(users, return_inverse=True), np.unique(items, return_inverse=True), times


def _parquet_column(name: str, column: str, found: Any) -> Array:
    """Its values, none of them empty: a missing id would become one more user, or item, of that name."""
    from pyarrow import types

    kind = found.type.value_type if types.is_dictionary(found.type) else found.type
    allowed = [types.is_integer, types.is_floating, types.is_string, types.is_large_string]
    if column == "time":
        allowed += [types.is_temporal, types.is_decimal]
    if not any(each(kind) for each in allowed):
        raise BadInput(f"{name}: the column {column!r} is of type {kind}; expected numbers or text.")
    if found.null_count:
        raise BadInput(f"{name}: the column {column!r} has {found.null_count} empty values.")
    values: Array = found.to_numpy()
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise BadInput(f"{name}: the column {column!r} holds what is not a number.")
    if values.dtype == object and (values == "").any():
        raise BadInput(f"{name}: the column {column!r} has {(values == '').sum()} empty values.")
    return values


_READERS: dict[str, tuple[re.Pattern[str], Callable[[str, BufferedIOBase], Found], str]] = {
    "lastfm": (re.compile(r"event-(train|test)\.txt"), _lastfm, "event-train.txt and event-test.txt"),
    "assistments": (re.compile(r"assist2017_pid_test[1-5]\.csv"), _assistments, "assist2017_pid_test1.csv to 5"),
    "xlong": (
        re.compile(r"(train|test)_corpus_total_dual\.txt"), _xlong,
        "train_corpus_total_dual.txt and test_corpus_total_dual.txt",
    ),
    "clicks": (re.compile(r".*\.(csv|parquet)"), _own_log, "a .csv or .parquet with the columns user, item and time"),
}  # fmt: skip
