"""From the files a user has to a folder the loader reads: `remem data import` for bAbI.

The prepared folder holds one checked, gzipped file for each task and split, in the original format, and a manifest with
their sources, counts and hashes. Files can be imported one after another; a later one replaces its own task and split.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from remem.data.babi_format import MalformedFile, Story, parse_stories
from remem.data.sources import TARS
from remem.errors import BadInput

_NAME = re.compile(r"^qa(\d{1,2})_(?:.*_)?(train|valid|test)(\.partial|_regenerated)?\.txt(\.gz|\.xz)?$")
# The original archive holds several editions. The paper's is en-10k, and en-valid-10k adds its validation stories; a
# user with only the 1k edition gets that one. Hindi and shuffled editions are never mixed in.
_EDITIONS = ("en-10k", "en-valid-10k", "", "en", "en-valid")
MANIFEST = "manifest.json"
Checked = tuple[bytes, dict[str, Any]]  # a sound file, and its entry in the manifest


class _Source(NamedTuple):
    task: int
    split: str
    edition: str
    partial: bool
    name: str
    read: Callable[[], bytes]

    @property
    def rank(self) -> tuple[int, bool, bool, int]:
        edition = _EDITIONS.index(self.edition)
        # a part of the 10k edition has fewer stories than a whole file of no edition, and more than all of the 1k one
        place = max(edition, _EDITIONS.index("")) if self.partial else edition
        return place, self.partial, "_regenerated" in self.name, edition


def _source(path: PurePosixPath, read: Callable[[], bytes]) -> _Source | None:
    match = _NAME.match(path.name)
    if match is None or not 1 <= int(match[1]) <= 20:
        return None
    parent = path.parent.name
    edition = parent if re.fullmatch(r"(en|hn|shuffled)(-valid)?(-10k)?", parent) else ""
    return (
        _Source(int(match[1]), match[2], edition, match[3] == ".partial", path.name, read)
        if edition in _EDITIONS
        else None
    )


def _unpack(data: bytes, name: str) -> bytes:
    try:
        if name.endswith(".gz"):
            return gzip.decompress(data)
        return lzma.decompress(data) if name.endswith(".xz") else data
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise MalformedFile(name, 1, f"the compressed file is damaged ({error})") from None


def _sources(path: Path) -> Iterator[_Source]:
    """Every bAbI file below a folder and in the archives there, inside an archive (tar or zip), or the file itself."""
    if path.is_dir():
        for file in sorted(each for each in path.rglob("*") if each.is_file()):
            if file.name.endswith((*TARS, ".zip")):
                yield from _sources(file)
            elif source := _source(PurePosixPath(file.relative_to(path.parent).as_posix()), file.read_bytes):
                yield source
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                stream = archive.extractfile(member) if member.isfile() else None
                if stream and (source := _source(PurePosixPath(member.name), stream.read)):
                    # read now: the archive will be closed when the best edition of each file is known
                    yield source._replace(read=partial(bytes, stream.read()))
            # tarfile stops at the end marker; only the compressor's own end checks its checksum
            while archive.fileobj and archive.fileobj.read(1 << 20):
                pass
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            for entry in packed.infolist():
                if source := _source(PurePosixPath(entry.filename), partial(packed.read, entry)):
                    yield source._replace(read=partial(bytes, source.read()))
    elif source := _source(PurePosixPath(path.name), path.read_bytes):
        yield source


def import_babi(path: Path, folder: Path, *more: Path) -> dict[str, Any]:
    """Check all bAbI files at `path`, and at more, and add them to the prepared `folder`; returns what was added.

    Nothing is written unless every file is sound. What a later path has replaces what an earlier one had, but for a
    part of a file that is there whole.
    """
    checked = _checked(path)
    for other in more:
        for key, found in _checked(other).items():
            if key not in checked or _is_whole(found) or not _is_whole(checked[key]):
                checked[key] = found
    folder.mkdir(parents=True, exist_ok=True)
    manifest = read_manifest(folder)
    for (task, split), (data, entry) in checked.items():
        _write(folder / f"qa{task}_{split}.txt.gz", gzip.compress(data, mtime=0))
        manifest[f"qa{task}_{split}"] = entry
    _write(folder / MANIFEST, json.dumps(dict(sorted(manifest.items())), indent=1).encode())
    return {f"qa{task}_{split}": entry for (task, split), (_, entry) in checked.items()}


def _is_whole(found: Checked) -> bool:
    return ".partial." not in found[1]["source"]


def _checked(path: Path) -> dict[tuple[int, str], Checked]:
    """The best file of each task and split at a path, with its entry in the manifest."""
    if not path.exists():
        raise BadInput(f"{path} does not exist; give a folder, a .tar.gz archive or a qaN_..._train.txt file.")
    best: dict[tuple[int, str], _Source] = {}
    try:
        for source in _sources(path):
            key = (source.task, source.split)
            if key not in best or source.rank < best[key].rank:
                best[key] = source
    # zipfile raises RuntimeError for what is encrypted, or packed in a way it does not know
    except (
        tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError, RuntimeError,
    ) as error:  # fmt: skip
        which = f"An archive in {path}" if path.is_dir() else str(path)
        raise BadInput(f"{which} is not a sound archive ({error}); nothing was imported.") from None
    if not best:
        raise BadInput(f"{path} holds no bAbI file; expected names such as qa1_single-supporting-fact_train.txt.")
    return {key: _check(source) for key, source in sorted(best.items())}


def _check(source: _Source) -> Checked:
    data = _unpack(source.read(), source.name)
    stories = parse_stories(decode_lines(data, source.name), source.name)
    entry = {
        "source": f"{source.edition}/{source.name}".lstrip("/"),
        "stories": len(stories),
        "questions": sum(len(s.questions) for s in stories),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return data, entry


def decode_lines(data: bytes, name: str) -> list[str]:
    """Lines of a UTF-8 text; other bytes are refused with the line they are on."""
    try:
        return data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise MalformedFile(name, data[: error.start].count(b"\n") + 1, "the line is not UTF-8 text") from None


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the prepared folder holds; empty if there is none yet."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise BadInput(f"{path} is damaged ({error}); import the data again into an empty folder.") from None
    if "task" in manifest:  # as other tasks write it
        raise BadInput(f"{folder} holds prepared data of another kind than bAbI's; name another folder, or the --task.")
    return manifest


def need_manifest(folder: Path) -> dict[str, Any]:
    """The same, refused if nothing was imported into the folder."""
    manifest = read_manifest(folder)
    if not manifest:
        raise BadInput(
            f"{folder} holds no prepared bAbI data; run `remem data import PATH` with the original folder or archive."
        )
    return manifest


def read_stories(folder: Path, task: int, split: str) -> list[Story]:
    """Stories of one task and split; none if that file was never imported."""
    path = folder / f"qa{task}_{split}.txt.gz"
    if not path.exists():
        return []
    return parse_stories(decode_lines(_unpack(path.read_bytes(), path.name), path.name), path.name)
