"""Segments as stretches of one row: the same items as a table written out, from memory or from disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from remem.data.batch import QueryBatch
from remem.data.dataset import Bucket, Split
from remem.data.prepared import Prepared, replacing
from remem.data.windows import Windows
from remem.errors import BadInput

VALUES = torch.tensor([4, 5, 6, 7, 8, 9], dtype=torch.int32)
WINDOWS = Windows(VALUES, torch.tensor([0, 2, 4]), torch.tensor([3, 3, 2]))


def test_a_window_holds_its_stretch_and_padding_is_zero() -> None:
    items, mask = WINDOWS.take(torch.tensor([1, 2, 1]), 3)
    assert items.tolist() == [[6, 7, 8], [8, 9, 0], [6, 7, 8]]
    assert mask.tolist() == [[True] * 3, [True, True, False], [True] * 3]
    assert items.dtype == torch.long


def test_values_may_be_numbers_of_vectors() -> None:
    vectors = torch.randn(10, 2, dtype=torch.float16)
    items, mask = replace(WINDOWS, vectors=vectors).take(torch.tensor([2]), 3)
    assert items.dtype == torch.float32
    assert torch.equal(items[0], torch.stack([vectors[8], vectors[9], torch.zeros(2)]).float())
    assert mask.tolist() == [[True, True, False]]


def split_of(windows: Windows) -> Split:
    zero = torch.zeros(1, 1, dtype=torch.long)
    query = QueryBatch(zero[None], zero[None] == 0, zero + 3, zero, zero == 0, zero, zero)
    bucket = Bucket(torch.tensor([[0, 1, 2]]), torch.tensor([[True, True, True]]), query, torch.tensor([0]))
    return Split(windows, None, (bucket,), repeats=False)


def test_a_split_of_windows_gives_the_batch_of_the_same_table() -> None:
    items, mask = WINDOWS.take(torch.arange(3), 3)
    table = replace(split_of(WINDOWS), items=items, item_mask=mask)
    one, other = (split.batch(0, torch.tensor([0])).stream for split in (split_of(WINDOWS), table))
    for name in ("items", "item_mask", "order", "segment_mask"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert one.most_items == other.most_items == 8


def test_the_fingerprint_sees_values_vectors_and_bounds() -> None:
    vectors = torch.randn(10, 2)
    changed = vectors.clone()
    changed[9, 1] += 1
    variants = [
        WINDOWS,
        replace(WINDOWS, values=VALUES + 1),
        replace(WINDOWS, start=WINDOWS.start.flip(0)),
        replace(WINDOWS, length=WINDOWS.length - 1),
        replace(WINDOWS, vectors=vectors),
        replace(WINDOWS, vectors=changed),
    ]
    prints = [split_of(windows).fingerprint() for windows in variants]
    assert len(set(prints)) == len(prints)
    # an item that no segment uses is nothing a model sees
    longer = replace(WINDOWS, values=torch.cat([VALUES, VALUES]))
    assert split_of(longer).fingerprint() == prints[0]


def write(folder: Path, rows: int) -> None:
    with replacing(folder) as writer:
        for first in range(0, rows, 4):
            writer.append("values", np.arange(first, min(rows, first + 4), dtype=np.int32))
        writer.write_lines("names", ["a", "ä b"])
        writer.finish("twin")


def test_prepared_arrays_and_lists_come_back_as_they_were(tmp_path: Path) -> None:
    write(tmp_path / "data", 10)
    prepared = Prepared(tmp_path / "data", "twin", "x")
    assert prepared.array("values").tolist() == list(range(10))
    assert prepared.lines("names") == ["a", "ä b"]
    values = prepared.array("values")
    values[0] = 99  # a copy of the page, not the file
    assert prepared.array("values")[0] == 0


def test_a_failed_import_leaves_what_was_there(tmp_path: Path) -> None:
    write(tmp_path / "data", 10)

    def mixed() -> None:
        with replacing(tmp_path / "data") as writer:
            writer.append("values", np.arange(3))
            writer.append("values", np.arange(3.0))

    with pytest.raises(BadInput, match="rows of"):
        mixed()
    assert Prepared(tmp_path / "data", "twin", "x").array("values").shape == (10,)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_an_import_that_was_killed_between_its_renames_lost_nothing(tmp_path: Path) -> None:
    write(tmp_path / "data", 10)
    (tmp_path / "data").rename(tmp_path / "data.replaced")
    with pytest.raises(BadInput, match=r"data holds no prepared twin data; .* is in .*data\.replaced: rename it"):
        Prepared(tmp_path / "data", "twin", "x")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "data"):  # the next one puts it back before it begins
        raise ZeroDivisionError
    assert Prepared(tmp_path / "data", "twin", "x").array("values").shape == (10,)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_an_import_removes_nothing_but_what_an_import_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may keep the files to import right where the prepared ones go."""
    write(tmp_path / "data", 10)
    (tmp_path / "data" / "archive.tar.xz").write_bytes(b"the only copy")
    with pytest.raises(BadInput, match=r"holds 'archive.tar.xz', which is no part of prepared data"):
        write(tmp_path / "data", 4)
    assert (tmp_path / "data" / "archive.tar.xz").read_bytes() == b"the only copy"
    (tmp_path / "data" / "archive.tar.xz").unlink()
    monkeypatch.chdir(tmp_path / "data")
    write(Path(), 4)  # what an import wrote is replaced, also from inside
    assert Prepared(tmp_path / "data", "twin", "x").array("values").shape == (4,)
    with pytest.raises(BadInput, match="holds 'data'"):
        write(tmp_path, 4)
    (tmp_path / "data" / "manifest.json").write_text("{")  # `values.bin` is still no file of the user's
    with pytest.raises(BadInput, match=r"manifest.json is damaged .*; remove the folder"):
        write(tmp_path / "data", 4)


def test_damaged_or_foreign_prepared_data_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no prepared twin data; make it with `how`"):
        Prepared(tmp_path, "twin", "how")
    write(tmp_path / "data", 10)
    with pytest.raises(BadInput, match="another kind than other"):
        Prepared(tmp_path / "data", "other", "how")
    prepared = Prepared(tmp_path / "data", "twin", "how")
    (tmp_path / "data" / "values.bin").write_bytes(b"123")
    with pytest.raises(BadInput, match="has 3 bytes"):
        prepared.array("values")
    (tmp_path / "data" / "names.txt").write_text("a\n")
    with pytest.raises(BadInput, match="has 1 lines"):
        prepared.lines("names")


def test_what_goes_to_a_device_is_what_its_segments_use() -> None:
    """The device here is one that keeps shapes alone; the numbers are those of the same steps on a CPU."""
    windows = Windows(torch.arange(20, dtype=torch.int32), torch.tensor([12, 4, 6]), torch.tensor([3, 3, 3]))
    values, start = windows._used_values()
    assert values.tolist() == [4, 5, 6, 7, 8, 12, 13, 14]
    moved = replace(windows, values=values, start=start)
    rows = torch.tensor([0, 1, 2, 1])
    assert torch.equal(moved.take(rows, 3)[0], windows.take(rows, 3)[0])
    far = replace(windows, vectors=torch.randn(20, 2)).to(torch.device("meta"))
    assert far.vectors is not None
    assert (far.values.shape, far.vectors.shape) == ((8,), (8, 2))
