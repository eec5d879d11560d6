"""Click logs as files: csv, parquet and archives, and what is refused."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from remem.data.click_files import import_clicks
from remem.data.clicks import ClickLog
from remem.data.long_twins import write_clicks
from remem.errors import BadInput


def prepared(folder: Path, name: str) -> ClickLog:
    write_clicks(folder / "raw", name)
    import_clicks(name, [folder / "raw"], folder / "data")
    return ClickLog(folder / "data", name)


def test_csv_and_parquet_logs_are_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    log = prepared(tmp_path, "clicks")
    rows = [line.split(",") for line in (tmp_path / "raw" / "log.csv").read_text().splitlines()[1:]]
    columns = [list(column) for column in zip(*rows, strict=True)]
    table = pyarrow.table({"user": columns[0], "item": columns[1], "time": [float(t) for t in columns[2]]})
    parquet.write_table(table, tmp_path / "log.parquet")
    import_clicks("clicks", [tmp_path / "log.parquet"], tmp_path / "other")
    other = ClickLog(tmp_path / "other", "clicks")
    assert torch.equal(other.events, log.events)
    assert np.array_equal(other.users, log.users)
    parquet.write_table(table.drop_columns(["time"]), tmp_path / "log.parquet")
    with pytest.raises(BadInput, match="columns user, item and time"):
        import_clicks("clicks", [tmp_path / "log.parquet"], tmp_path / "other")


def test_times_may_be_dates(tmp_path: Path) -> None:
    rows = ["a,x,2021-07-18T12:00:01Z", "a,y,2021-07-18T12:00:00", "b,x,2021-07-18", "c,x,2021-07-19", "d,x,2020-01-01"]
    (tmp_path / "log.csv").write_text("user,item,time\n" + "\n".join(rows) + "\n")
    import_clicks("clicks", [tmp_path / "log.csv"], tmp_path / "data")
    log = ClickLog(tmp_path / "data", "clicks")
    assert [log.prepared.lines("items")[i] for i in log.history(0)] == ["y", "x"]


def test_times_of_a_parquet_log_may_be_words_and_are_in_order_as_times(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {"user": ["a"] * 3, "item": ["x", "y", "z"], "time": ["10", "9", "11"]}
    parquet.write_table(pyarrow.table(table), tmp_path / "log.parquet")
    import_clicks("clicks", [tmp_path / "log.parquet"], tmp_path / "data")
    log = ClickLog(tmp_path / "data", "clicks")
    assert [log.prepared.lines("items")[i] for i in log.history(0)] == ["y", "x", "z"]
    parquet.write_table(pyarrow.table(table | {"time": [1.0, float("nan"), 2.0]}), tmp_path / "log.parquet")
    with pytest.raises(BadInput, match="the column 'time' holds what is not a number"):
        import_clicks("clicks", [tmp_path / "log.parquet"], tmp_path / "data")


def test_a_damaged_parquet_log_or_one_with_strange_or_missing_ids_is_refused_with_a_sentence(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, good = tmp_path / "log.parquet", {"user": ["a", "b"], "item": ["x", "y"], "time": [1, 2]}
    cases = {
        "'item' is of type list": {"item": [["x"], ["y"]]},
        "'user' is of type struct": {"user": [{"n": 1}, {"n": 2}]},
        "'time' is of type bool": {"time": [True, False]},
        "'item' holds what is not a number": {"item": [1.0, float("nan")]},
        "'user' has 1 empty values": {"user": ["a", ""]},
        "'item' has 1 empty values": {"item": ["x", None]},
    }
    for message, column in cases.items():
        parquet.write_table(pyarrow.table(good | column), path)
        with pytest.raises(BadInput, match=message):
            import_clicks("clicks", [path], tmp_path / "data")
    parquet.write_table(pyarrow.table(good), path)
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[-8:-4], "little")
    content[-8 - length : -8] = b"\xff" * length
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"log.parquet is not a parquet file"):
        import_clicks("clicks", [path], tmp_path / "data")


def test_one_long_name_costs_its_own_length_and_not_that_of_every_row(tmp_path: Path) -> None:
    rows = [f"{'u' * 100_000},x,0", *(f"u{i % 9},i{i % 7},{i}" for i in range(3000))]
    (tmp_path / "log.csv").write_text("user,item,time\n" + "\n".join(rows) + "\n")
    tracemalloc.start()
    import_clicks("clicks", [tmp_path / "log.csv"], tmp_path / "data")
    _, top = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert top < 10_000_000  # 3,001 rows as wide as the longest are 1.2 GB


def test_a_carriage_return_inside_a_name_ends_no_line(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(b'user,item,time\na,"x\ry",1\na,z,2\n')
    import_clicks("clicks", [tmp_path / "log.csv"], tmp_path / "data")
    assert ClickLog(tmp_path / "data", "clicks").prepared.lines("items") == ["x\ry", "z"]


def test_what_a_mac_puts_beside_each_file_of_an_archive_is_passed_over(tmp_path: Path) -> None:
    write_clicks(tmp_path / "raw", "clicks")
    with zipfile.ZipFile(tmp_path / "log.zip", "w") as archive:
        archive.write(tmp_path / "raw" / "log.csv", "log.csv")
        archive.writestr("__MACOSX/._log.csv", b"\0\5\x16\7\0\2\0\0Mac OS X")
    assert import_clicks("clicks", [tmp_path / "log.zip"], tmp_path / "data")["sources"] == {"log.csv": 12}


MALFORMED = {
    "a word": ("lastfm", "event-train.txt", "1 2 x\n", r"event-train.txt, line 1: 'x' is no item"),
    "a negative number": ("lastfm", "event-train.txt", "1 2\n1 -3\n", r"event-train.txt, line 2: .* between 0"),
    "a huge number": ("lastfm", "event-train.txt", f"1 {10**20}\n", r"event-train.txt, line 1: .* between 0"),
    "a huge problem": (
        "assistments", "assist2017_pid_test1.csv", "1,2\n3,1500000000\n1,1\n0,1\n", r"line 2: a problem is not between"
    ),
    "an empty line": ("lastfm", "event-train.txt", "1 2\n\n", r"event-train.txt, line 2: there is no item"),
    "a missing row": ("assistments", "assist2017_pid_test1.csv", "1,2\n3,4\n", r"line 3: the student's skills"),
    "rows unlike": ("assistments", "assist2017_pid_test1.csv", "1,2\n3,4\n3,4\n1\n", r"line 4: a student has as many"),
    "no response": ("assistments", "assist2017_pid_test1.csv", "1,2\n3,4\n3,4\n1,2\n", r"line 4: 2 is no response"),
    "few fields": ("xlong", "train_corpus_total_dual.txt", "1\t2\t3,4\t5\n", r"line 1: 4 fields"),
    "no header": ("clicks", "log.csv", "a,b,1\n", r"log.csv, line 1: expected a header"),
    "a short row": ("clicks", "log.csv", "user,item,time\na,b,1\na,b\n", r"log.csv, line 3: 2 fields"),
    "no time": ("clicks", "log.csv", "user,item,time\na,b,noon\n", r"log.csv, line 2: 'noon' is no time"),
    "an empty time": ("clicks", "log.csv", "user,item,time\na,b,1\na,b,\n", r"log.csv, line 3: '' is no time"),
    "nan": ("clicks", "log.csv", "user,item,time\na,b,nan\n", r"log.csv, line 2: 'nan' is no time"),
    "an empty user": ("clicks", "log.csv", "user,item,time\n,b,1\n", r"log.csv, line 2: the user is missing"),
    "an open quote": ("clicks", "log.csv", 'user,"item,time\na,b,1\n', r"log.csv, line 2: this is not a csv row"),
    "no event": ("clicks", "log.csv", "user,item,time\n", r"log.csv, line 2: there is no event"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_log_is_refused_with_its_line(tmp_path: Path, case: str) -> None:
    name, file, content, message = MALFORMED[case]
    (tmp_path / file).write_text(content)
    with pytest.raises(BadInput, match=message):
        import_clicks(name, [tmp_path], tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("kind", ["gz", "xz", "tar", "tar.gz", "tar.xz", "zip"])
def test_a_file_that_was_cut_off_is_refused_as_damaged(tmp_path: Path, kind: str) -> None:
    """Damage may show only while lines are read, long after the archive was opened."""
    # numbers that do not pack well, so that half the bytes are some of the lines
    lines = [" ".join(map(str, np.random.default_rng(user).integers(1 << 30, size=200))) for user in range(200)]
    log = tmp_path / "event-train.txt"
    log.write_text("\n".join(lines) + "\n")
    path = tmp_path / (f"event-train.txt.{kind}" if kind in ("gz", "xz") else f"log.{kind}")
    if kind in ("gz", "xz"):
        path.write_bytes(gzip.compress(log.read_bytes()) if kind == "gz" else lzma.compress(log.read_bytes()))
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(log, log.name)
    else:
        with tarfile.open(path, {"tar": "w", "tar.gz": "w:gz", "tar.xz": "w:xz"}[kind]) as packed:  # type: ignore[call-overload]
            packed.add(log, log.name)
    import_clicks("lastfm", [path], tmp_path / "data")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadInput, match=r"is damaged or not what its name says .*; nothing was imported"):
        import_clicks("lastfm", [path], tmp_path / "data")
    assert len(ClickLog(tmp_path / "data", "lastfm").users) == 200


def test_an_archive_beside_what_was_unpacked_from_it_is_refused(tmp_path: Path) -> None:
    """Every user would be there twice, and one of the two might be trained on while the other is held out."""
    write_clicks(tmp_path / "raw", "lastfm")
    with tarfile.open(tmp_path / "log.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "raw", "lastfm")
    (tmp_path / "log.tar.gz").rename(tmp_path / "raw" / "log.tar.gz")
    with pytest.raises(BadInput, match=r"is the second event-test.txt; give every file once"):
        import_clicks("lastfm", [tmp_path / "raw"], tmp_path / "data")


def test_an_encrypted_archive_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "log.zip", "w") as archive:
        archive.writestr("event-train.txt", "1 2 3\n")
    content = bytearray((tmp_path / "log.zip").read_bytes())
    content[6] |= 1  # the mark of encryption, before the file and in the list of files
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "log.zip").write_bytes(content)
    with pytest.raises(BadInput, match="is encrypted"):
        import_clicks("lastfm", [tmp_path / "log.zip"], tmp_path / "data")


def test_a_folder_without_the_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"holds no file of lastfm; expected event-train.txt"):
        import_clicks("lastfm", [tmp_path], tmp_path / "data")
