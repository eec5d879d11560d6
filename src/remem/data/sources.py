"""The files a user has: a folder, an archive (tar or zip), or a single file, read one after another."""

from __future__ import annotations

import gzip
import json
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path, PurePosixPath
from typing import Any

from remem.data.babi_format import MalformedFile
from remem.errors import BadInput

TARS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
# zipfile raises RuntimeError for what is encrypted, or packed in a way it does not know
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError, RuntimeError)


def files_of(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, BufferedIOBase]]:
    """Name and content of each file whose name is wanted, one at a time; archives inside a folder are opened too.

    Names are paths inside the folder or archive, so that files of one name in different folders can be told apart.
    """
    if not path.exists():
        raise BadInput(f"{path} does not exist; give a folder, an archive or a file.")
    with _told_damage(path):
        # a Mac packs a file of its own beside each, with the same ending
        for name, content in _files(path, path.name, lambda name: not base(name).startswith("._") and wanted(name)):
            yield name, BufferedReader(_Content(content, path))


@contextmanager
def _told_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise BadInput(f"{error.filename} cannot be read ({error.strerror}).") from None
        raise BadInput(f"{path} is damaged or not what its name says ({error}); nothing was imported.") from None


class _Content(RawIOBase):
    """A file's content; it is read where it is used, far from whoever opened it, and most damage shows only then."""

    def __init__(self, file: BufferedIOBase, path: Path) -> None:
        self._file, self._path = file, path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        with _told_damage(self._path):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any, /) -> int:
        with _told_damage(self._path):
            read = self._file.read(len(buffer))
        buffer[: len(read)] = read
        return len(read)


def _files(path: Path, name: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, BufferedIOBase]]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file():
                yield from _files(file, file.relative_to(path).as_posix(), wanted)
    elif zipfile.is_zipfile(path) or path.suffix == ".zip":  # one that is cut off has lost its mark
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir() and wanted(entry.filename):
                    with archive.open(entry) as content:
                        yield entry.filename, content  # type: ignore[misc]  # a BufferedIOBase, as all of these
    elif path.name.endswith(TARS):
        with tarfile.open(path) as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() and wanted(member.name) else None
                if stream is not None:
                    yield member.name, stream  # type: ignore[misc]
            # tarfile stops at the end marker; only the compressor's own end checks its checksum
            while archive.fileobj and archive.fileobj.read(1 << 20):
                pass
    else:
        opener, plain = _opener(name)
        if wanted(plain):
            with opener(path, "rb") as content:
                yield plain, content


def _opener(name: str) -> tuple[Callable[..., Any], str]:
    for ending, opener in ((".gz", gzip.open), (".xz", lzma.open)):
        if name.endswith(ending):
            return opener, name.removesuffix(ending)
    return open, name


def base(name: str) -> str:
    """The last part of a file's name."""
    return PurePosixPath(name).name


def lines_of(file: BufferedIOBase, name: str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 text without their ends; never more than one line in memory."""
    for number, raw in enumerate(file, start=1):
        try:
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise MalformedFile(name, number, "the line is not UTF-8 text") from None


def json_of(file: BufferedIOBase, name: str) -> Any:
    """A JSON file; what is wrong with it is said with its line."""
    try:
        return json.loads(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise MalformedFile(name, error.object[: error.start].count(b"\n") + 1, "the text is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise MalformedFile(name, error.lineno, f"this is not JSON ({error.msg})") from None
    except RecursionError:
        raise MalformedFile(name, 1, "this is JSON in more layers than any of our files has") from None


@contextmanager
def entry_of(name: str, number: int) -> Iterator[None]:
    """Whatever breaks inside belongs to one entry of a JSON file, which has no lines of its own to name."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{name}, entry {number}: {error}") from None
    except KeyError as error:
        raise BadInput(f"{name}, entry {number}: the field {error} is missing.") from None
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadInput(f"{name}, entry {number}: a field is not of the kind it must be ({error}).") from None
