"""A power cut loses no acknowledged event with `durability="fsync"`; the weaker setting fails the same test.

A real run of the store is recorded, write by write and sync by sync. What a disk may hold after a cut at any moment is
all that was synced, and of the rest some writes whole, some torn at a sector, some not at all.

`REMEM_CUTS=1000` for the full count (about a minute).
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from kill_driver import STREAMS
from kill_driver import answer_of as compute_answer
from service_parts import SEED, HashChain

from remem.service import MemoryEngine
from remem.service.errors import ServiceError, UnknownStream
from remem.service.store import Durability

CUTS = int(os.environ.get("REMEM_CUTS", "80"))
APPENDS = 120
SECTOR = 512
answer_of = cache(compute_answer)


@dataclass(frozen=True)
class Operation:
    kind: str
    name: str
    offset: int
    data: bytes

    def apply(self, file: bytearray, share: float = 1.0) -> None:
        """Do it to a file's bytes; a torn write gets as far as a sector."""
        if self.kind == "t":
            del file[self.offset :]
            file.extend(bytes(self.offset - len(file)))
            return
        data = self.data if share == 1.0 else self.data[: int(share * len(self.data)) // SECTOR * SECTOR]
        file.extend(bytes(max(0, self.offset - len(file))))
        file[self.offset : self.offset + len(data)] = data


@dataclass
class Disk:
    """Bytes that would survive, and operations that may or may not."""

    files: dict[str, bytearray]
    unsynced: dict[str, list[Operation]] = field(default_factory=dict)

    def take(self, operation: Operation) -> None:
        if operation.kind == "s":
            for each in self.unsynced.pop(operation.name, []):
                each.apply(self.files.setdefault(operation.name, bytearray()))
        else:
            self.unsynced.setdefault(operation.name, []).append(operation)

    def after_a_cut(self, chance: random.Random) -> dict[str, bytearray]:
        files = {name: bytearray(data) for name, data in self.files.items()}
        for name, operations in self.unsynced.items():
            for operation in operations:
                fate = chance.random()
                if fate < 0.6:  # 40 % reach the disk, 20 % in part
                    share = 1.0 if fate < 0.4 else chance.random()
                    operation.apply(files.setdefault(name, bytearray()), share)
        return files


def read_log(path: Path) -> Iterator[Operation]:
    with path.open("rb") as log:
        while head := log.read(32):
            kind, name_size, offset, size = struct.unpack("<4Q", head)
            name = log.read(name_size).decode()
            yield Operation(chr(kind), name, offset, log.read(size) if chr(kind) == "w" else b"")


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that records, compiled once."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("recording writes needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("recorder") / "record_writes.so"
    source = Path(__file__).with_name("record_writes.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def record(recorder: Path, folder: Path, durability: Durability) -> tuple[Disk, list[Operation]]:
    """A new store, and all that a process then does to its files."""
    store, log = folder / "store", folder / "log"
    store.mkdir(parents=True)
    MemoryEngine.open(store / "memories.db", HashChain(), durability=durability).close()
    disk = Disk({path.name: bytearray(path.read_bytes()) for path in store.iterdir()})
    environment = os.environ | {
        "LD_PRELOAD": str(recorder),
        "REMEM_RECORD_FOLDER": str(store.resolve()),
        "REMEM_RECORD_LOG": str(log),
    }
    child = Path(__file__).with_name("power_child.py")
    subprocess.run([sys.executable, str(child), str(store), durability, str(APPENDS)], check=True, env=environment)
    return disk, list(read_log(log))


@dataclass
class Losses:
    cuts: int = 0
    lossy: int = 0
    damaged: int = 0
    acknowledged: int = 0


def cut_the_power(recorder: Path, folder: Path, durability: Durability, cuts: int, seed: int) -> Losses:
    disk, operations = record(recorder, folder, durability)
    chance, losses = random.Random(seed), Losses()
    # two in three within a few operations of an acknowledgement, where there is most to lose
    replies = [index for index, operation in enumerate(operations) if operation.name == "acknowledged"]
    near = [min(len(operations) - 1, chance.choice(replies) + chance.randrange(4)) for _ in range(cuts * 2 // 3)]
    moments = sorted([*near, *(chance.randrange(len(operations)) for _ in range(cuts - len(near)))])
    acknowledged: dict[str, int] = {}
    done = 0
    for moment in moments:
        for operation in operations[done : moment + 1]:
            if operation.name == "acknowledged":
                stream, next_seq = operation.data.decode().split()
                acknowledged[stream] = int(next_seq)
            elif not operation.name.endswith((".lock", "-shm")):
                disk.take(operation)
        done = max(done, moment + 1)
        image = folder / "image"
        image.mkdir()
        for name, data in disk.after_a_cut(chance).items():
            (image / name).write_bytes(data)
        losses.cuts += 1
        losses.acknowledged += sum(acknowledged.values())
        judge(image / "memories.db", acknowledged, losses)
        shutil.rmtree(image)
    return losses


def judge(path: Path, acknowledged: dict[str, int], losses: Losses) -> None:
    try:
        with MemoryEngine.open(path, HashChain(), durability="os") as engine:
            lost = 0
            for stream in STREAMS:
                try:
                    said = engine.query(stream, "?")
                except UnknownStream:
                    lost += acknowledged.get(stream, 0)
                    continue
                lost += max(0, acknowledged.get(stream, 0) - said.as_of_seq)
                losses.damaged += said.answer != answer_of(stream, said.as_of_seq)
            losses.lossy += lost > 0
            losses.damaged += not engine.verify().clean
    except ServiceError:
        losses.damaged += 1


def test_a_power_cut_loses_nothing_and_damages_nothing(recorder: Path, tmp_path: Path) -> None:
    losses = cut_the_power(recorder, tmp_path, "fsync", CUTS, SEED)
    print(f"seed {SEED}: {losses}")
    assert losses.acknowledged > CUTS
    assert (losses.cuts, losses.lossy, losses.damaged) == (CUTS, 0, 0), f"seed {SEED}: {losses}"


def test_without_syncs_the_same_cuts_lose_events(recorder: Path, tmp_path: Path) -> None:
    losses = cut_the_power(recorder, tmp_path, "os", max(20, CUTS // 4), seed=0)
    print(losses)
    assert losses.lossy > losses.cuts // 2  # otherwise the test above proves nothing
