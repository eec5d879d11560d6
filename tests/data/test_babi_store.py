"""Import of bAbI files: from any form a user has them in, all or nothing, and the same bytes every time."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from remem.cli.data import main as data_command
from remem.data.babi_format import MalformedFile, parse_stories
from remem.data.babi_store import MANIFEST, import_babi, read_manifest, read_stories
from remem.data.babi_twin import write_twin
from remem.data.click_files import import_clicks
from remem.data.long_twins import write_clicks
from remem.errors import BadInput

KEYS = ["qa1_test", "qa1_train", "qa1_valid", "qa6_test", "qa6_train", "qa6_valid"]
TRAIN_1 = "en-10k/qa1_single-supporting-fact_train.txt"


def story(answer: str) -> str:
    """One story whose answer tells which file it came from."""
    return f"1 Mary went to the {answer}.\n2 Where is Mary?\t{answer}\t1\n"


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def archive_of(folder: Path, path: Path, names: list[str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names or sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.txt")):
            archive.add(folder / name, f"tasks_1-20_v1-2/{name}", filter=_without_time)
    return path


def _without_time(member: tarfile.TarInfo) -> tarfile.TarInfo:
    # the same bytes in every run, so that a changed byte always does the same damage
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def answers_in(folder: Path, task: int, split: str) -> list[str]:
    return [question.answer for story in read_stories(folder, task, split) for question in story.questions]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    return write_twin(tmp_path / "tasks_1-20_v1-2", stories=6)


def test_a_folder_is_imported_with_sources_counts_and_hashes(twin: Path, tmp_path: Path) -> None:
    added = import_babi(twin, tmp_path / "babi")
    assert list(added) == KEYS
    assert added == read_manifest(tmp_path / "babi")
    assert added["qa1_train"] == {
        "source": TRAIN_1,
        "stories": 6,
        "questions": 18,
        "sha256": hashlib.sha256((twin / TRAIN_1).read_bytes()).hexdigest(),
    }
    assert added["qa6_valid"]["source"] == "en-valid-10k/qa6_valid.txt"
    assert sorted(bytes_of(tmp_path / "babi")) == sorted([MANIFEST, *(f"{key}.txt.gz" for key in KEYS)])


def test_imported_stories_are_those_of_the_file(twin: Path, tmp_path: Path) -> None:
    import_babi(twin, tmp_path / "babi")
    original = parse_stories((twin / TRAIN_1).read_text().splitlines(), "original")
    assert read_stories(tmp_path / "babi", 1, "train") == original
    assert gzip.decompress((tmp_path / "babi" / "qa1_train.txt.gz").read_bytes()) == (twin / TRAIN_1).read_bytes()


def test_an_archive_gives_the_same_prepared_folder_as_its_unpacked_files(twin: Path, tmp_path: Path) -> None:
    import_babi(twin, tmp_path / "from_folder")
    import_babi(archive_of(twin, tmp_path / "tasks.tar.gz"), tmp_path / "from_archive")
    assert bytes_of(tmp_path / "from_archive") == bytes_of(tmp_path / "from_folder")


def test_prepared_bytes_are_the_same_every_time(twin: Path, tmp_path: Path) -> None:
    import_babi(twin, tmp_path / "one")
    import_babi(twin, tmp_path / "two")
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    # gzip's header keeps a time unless told not to, and a slow clock would hide it from the line above
    assert (tmp_path / "one" / "qa1_train.txt.gz").read_bytes()[4:8] == b"\0\0\0\0"


def test_a_prepared_folder_can_itself_be_imported(twin: Path, tmp_path: Path) -> None:
    first = import_babi(twin, tmp_path / "one")
    second = import_babi(tmp_path / "one", tmp_path / "two")
    assert {key: entry["sha256"] for key, entry in second.items()} == {k: e["sha256"] for k, e in first.items()}


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("qa2_two-supporting-facts_train.txt", story("garden").encode()),
        ("qa2_train.txt", story("garden").encode()),
        ("qa2_two-supporting-facts_train.txt.xz", lzma.compress(story("garden").encode())),
        ("qa2_two-supporting-facts_train.txt.gz", gzip.compress(story("garden").encode(), mtime=0)),
        ("qa2_two-supporting-facts_train_regenerated.txt.xz", lzma.compress(story("garden").encode())),
        ("qa2_two-supporting-facts_train.partial.txt", story("garden").encode()),
    ],
)
def test_a_single_file_is_imported_plain_or_compressed(name: str, packed: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(packed)
    added = import_babi(tmp_path / name, tmp_path / "babi")
    assert added == {
        "qa2_train": {
            "source": name,
            "stories": 1,
            "questions": 1,
            "sha256": hashlib.sha256(story("garden").encode()).hexdigest(),
        }
    }
    assert answers_in(tmp_path / "babi", 2, "train") == ["garden"]


EDITIONS = {
    "en/qa1_a_train.txt": story("small"),
    "en/qa1_a_test.txt": story("small"),
    "en-valid/qa1_valid.txt": story("small"),
    "en-10k/qa1_a_train.txt": story("large"),
    "en-10k/qa1_a_test.txt": story("large"),
    "en-valid-10k/qa1_train.txt": story("cut"),
    "en-valid-10k/qa1_valid.txt": story("moved"),
    "en-valid-10k/qa1_test.txt": story("cut"),
    "hn/qa1_a_train.txt": story("hindi"),
    "hn-10k/qa1_a_train.txt": story("hindi"),
    "hn-10k/qa2_b_train.txt": story("hindi"),
    "shuffled/qa1_a_train.txt": story("shuffled"),
    "shuffled-10k/qa1_a_test.txt": story("shuffled"),
    "shuffled-10k/qa3_c_test.txt": story("shuffled"),
    "README.txt": "bAbI",
}


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_the_large_english_edition_is_preferred_and_its_validation_stories_added(packed: bool, tmp_path: Path) -> None:
    source = put(tmp_path / "tasks", EDITIONS)
    added = import_babi(archive_of(source, tmp_path / "t.tar.gz") if packed else source, tmp_path / "babi")
    assert {key: entry["source"] for key, entry in added.items()} == {
        "qa1_train": "en-10k/qa1_a_train.txt",
        "qa1_test": "en-10k/qa1_a_test.txt",
        "qa1_valid": "en-valid-10k/qa1_valid.txt",
    }
    assert [answers_in(tmp_path / "babi", 1, split) for split in ("train", "valid", "test")] == [
        ["large"],
        ["moved"],
        ["large"],
    ]


def test_an_archive_in_any_order_gives_the_same_editions(tmp_path: Path) -> None:
    source = put(tmp_path / "tasks", EDITIONS)
    forward, backward = sorted(EDITIONS), sorted(EDITIONS, reverse=True)
    one = import_babi(archive_of(source, tmp_path / "one.tar.gz", forward), tmp_path / "one")
    two = import_babi(archive_of(source, tmp_path / "two.tar.gz", backward), tmp_path / "two")
    assert one == two


def test_the_small_edition_is_taken_where_it_is_all_there_is(tmp_path: Path) -> None:
    source = put(tmp_path / "tasks", {name: text for name, text in EDITIONS.items() if "10k" not in name})
    import_babi(source, tmp_path / "babi")
    assert [answers_in(tmp_path / "babi", 1, split) for split in ("train", "valid", "test")] == [["small"]] * 3


def test_an_edition_folder_given_by_itself_is_known_by_its_name(tmp_path: Path) -> None:
    source = put(tmp_path / "tasks", EDITIONS)
    assert import_babi(source / "en-10k", tmp_path / "babi")["qa1_train"]["source"] == "en-10k/qa1_a_train.txt"
    with pytest.raises(BadInput, match="holds no bAbI file"):
        import_babi(source / "hn-10k", tmp_path / "babi")


def test_a_whole_file_is_preferred_to_a_partial_one_of_its_edition(tmp_path: Path) -> None:
    files = {"en-10k/qa3_c_train.partial.txt": story("part"), "en-10k/qa3_c_train.txt": story("whole")}
    import_babi(put(tmp_path / "both", files), tmp_path / "babi")
    assert answers_in(tmp_path / "babi", 3, "train") == ["whole"]
    files = {"en-10k/qa3_c_train.partial.txt": story("part"), "en/qa3_c_train.txt": story("small")}
    import_babi(put(tmp_path / "large_part", files), tmp_path / "babi")
    assert answers_in(tmp_path / "babi", 3, "train") == ["part"]


def test_of_several_paths_the_later_wins_but_a_part_never_takes_the_place_of_a_whole_file(tmp_path: Path) -> None:
    whole, part, other = (
        put(tmp_path / told, {f"qa3_c_train{kind}.txt": story(told)}) / f"qa3_c_train{kind}.txt"
        for told, kind in (("whole", "_regenerated"), ("part", ".partial"), ("other", ""))
    )
    for number, (kept, *paths) in enumerate((["whole", whole, part], ["whole", part, whole], ["other", part, other])):
        import_babi(paths[0], tmp_path / str(number), *paths[1:])
        assert answers_in(tmp_path / str(number), 3, "train") == [kept]
    import_babi(whole, tmp_path / "last", other)
    assert answers_in(tmp_path / "last", 3, "train") == ["other"]


def test_in_one_folder_a_part_gives_way_to_a_whole_file_beside_it_but_not_to_the_1k_edition(tmp_path: Path) -> None:
    files = {"tasks/en-10k/qa3_c_train.partial.txt": story("part"), "tasks/en/qa3_c_train.txt": story("short")}
    import_babi(put(tmp_path / "before", files), tmp_path / "first")
    assert answers_in(tmp_path / "first", 3, "train") == ["part"]
    import_babi(put(tmp_path / "after", files | {"qa3_c_train_regenerated.txt": story("whole")}), tmp_path / "second")
    assert answers_in(tmp_path / "second", 3, "train") == ["whole"]


def test_archives_of_a_folder_are_opened_and_their_files_are_some_among_the_others(tmp_path: Path) -> None:
    files = {"en-10k/qa3_c_train.partial.txt": story("part"), "en-10k/qa1_a_train.txt": story("kitchen")}
    source, both = put(tmp_path / "tasks", files), tmp_path / "both"
    put(both, {"qa3_c_train_regenerated.txt": story("whole")})
    archive = archive_of(source, both / "t.tar.gz", list(files))
    import_babi(both, tmp_path / "babi")
    assert [answers_in(tmp_path / "babi", task, "train") for task in (1, 3)] == [["kitchen"], ["whole"]]
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"An archive in .*both is not a sound archive"):
        import_babi(both, tmp_path / "babi")


def test_an_original_file_is_preferred_to_a_regenerated_one_in_any_order(tmp_path: Path) -> None:
    names = ["en-10k/qa3_c_train_regenerated.txt", "en-10k/qa3_c_train.txt"]
    source = put(tmp_path / "tasks", {names[0]: story("ours"), names[1]: story("original")})
    import_babi(archive_of(source, tmp_path / "t.tar.gz", names), tmp_path / "babi")
    assert answers_in(tmp_path / "babi", 3, "train") == ["original"]


def test_files_with_other_names_are_passed_over(tmp_path: Path) -> None:
    files = {
        "qa21_x_train.txt": "none of ours",
        "qa0_x_train.txt": "none of ours",
        "qa1_x_train.md": "none of ours",
        "notes.txt": "none of ours",
        "qa4_d_train.txt": story("garden"),
    }
    assert list(import_babi(put(tmp_path / "own", files), tmp_path / "babi")) == ["qa4_train"]


def test_a_later_import_replaces_its_own_task_and_split_only(twin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "babi"
    import_babi(twin, folder)
    before, manifest = bytes_of(folder), read_manifest(folder)
    own = put(tmp_path, {"qa6_yes-no-questions_test.txt": story("garden")}) / "qa6_yes-no-questions_test.txt"
    added = import_babi(own, folder)
    after = bytes_of(folder)
    assert {name for name in after if after[name] != before[name]} == {MANIFEST, "qa6_test.txt.gz"}
    assert read_manifest(folder) == {**manifest, **added}
    assert answers_in(folder, 6, "test") == ["garden"]


def test_a_later_import_adds_to_what_is_there(tmp_path: Path) -> None:
    for task in (5, 2):
        import_babi(put(tmp_path / str(task), {f"qa{task}_train.txt": story("garden")}), tmp_path / "babi")
    assert list(read_manifest(tmp_path / "babi")) == ["qa2_train", "qa5_train"]


def test_a_zip_archive_gives_what_its_folder_gives(twin: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tasks.zip", "w") as archive:
        for file in sorted(twin.rglob("*.txt")):
            archive.write(file, file.relative_to(tmp_path))
    import_babi(twin, tmp_path / "from_folder")
    import_babi(tmp_path / "tasks.zip", tmp_path / "from_archive")
    assert bytes_of(tmp_path / "from_archive") == bytes_of(tmp_path / "from_folder")


def test_nothing_is_written_when_one_of_several_paths_is_malformed(twin: Path, tmp_path: Path) -> None:
    own = put(tmp_path / "own", {"qa2_a_train.txt": "no story\n"})
    with pytest.raises(MalformedFile, match="qa2_a_train"):
        data_command(["import", str(twin), str(own), "--into", str(tmp_path / "babi")])
    assert not (tmp_path / "babi").exists()
    put(own, {"qa2_a_train.txt": story("garden")})
    data_command(["import", str(twin), str(own), "--into", str(tmp_path / "babi")])
    assert sorted(read_manifest(tmp_path / "babi")) == sorted([*KEYS, "qa2_train"])


def test_prepared_data_of_another_task_is_not_taken_for_stories(twin: Path, tmp_path: Path) -> None:
    write_clicks(tmp_path / "raw", "lastfm")
    import_clicks("lastfm", [tmp_path / "raw"], tmp_path / "lastfm")
    before = bytes_of(tmp_path / "lastfm")
    for use in (lambda: data_command(["show", "--data", str(tmp_path / "lastfm")]),
                lambda: import_babi(twin, tmp_path / "lastfm")):  # fmt: skip
        with pytest.raises(BadInput, match="holds prepared data of another kind than bAbI's"):
            use()
    assert bytes_of(tmp_path / "lastfm") == before


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_nothing_is_written_when_one_file_is_malformed(packed: bool, twin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "babi"
    import_babi(put(tmp_path / "own", {"qa1_train.txt": story("garden")}), folder)
    before = bytes_of(folder)
    # the last file in order, so that all others have been read by then
    broken = twin / "en-valid-10k" / "qa6_valid.txt"
    broken.write_text(broken.read_text() + "7 out of order.\n")
    path = archive_of(twin, tmp_path / "t.tar.gz") if packed else twin
    with pytest.raises(MalformedFile, match=r"qa6_valid\.txt, line 19: the sentence has number 7"):
        import_babi(path, folder)
    assert bytes_of(folder) == before
    with pytest.raises(MalformedFile):
        import_babi(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "line 1: the file holds no story"),
        (b"1 Mary went.\n2 Where is caf\xe9?\tx\t1\n", "line 2: the line is not UTF-8 text"),
        (b"1 Mary went.\n", "line 1: the story that ends here asks no question"),
    ],
)
def test_a_malformed_single_file_is_refused_by_name(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "qa1_train.txt").write_bytes(data)
    with pytest.raises(MalformedFile, match=rf"^qa1_train\.txt, {reason}"):
        import_babi(tmp_path / "qa1_train.txt", tmp_path / "babi")
    assert not (tmp_path / "babi").exists()


def test_a_missing_path_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere does not exist; give a folder, a \.tar\.gz archive or a qaN_"):
        import_babi(tmp_path / "nowhere", tmp_path / "babi")


@pytest.mark.parametrize("name", ["empty_folder", "story.txt", "qa1_notes.txt"])
def test_a_path_without_bAbI_files_is_refused_with_the_names_expected(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty_folder").mkdir()
    put(tmp_path, {"story.txt": story("garden"), "qa1_notes.txt": story("garden")})
    with pytest.raises(BadInput, match=rf"{name} holds no bAbI file; expected names such as qa1_"):
        import_babi(tmp_path / name, tmp_path / "babi")


@pytest.mark.parametrize("kept", [5, 100, 0.3, 0.9])
def test_an_archive_that_is_cut_off_is_refused(kept: float, twin: Path, tmp_path: Path) -> None:
    path = archive_of(twin, tmp_path / "t.tar.gz")
    data = path.read_bytes()
    path.write_bytes(data[: int(kept if kept > 1 else kept * len(data))])
    with pytest.raises(BadInput, match=r"t\.tar\.gz is not a sound archive .*; nothing was imported"):
        import_babi(path, tmp_path / "babi")
    assert not (tmp_path / "babi").exists()


def test_an_archive_with_a_changed_byte_is_refused_as_damaged(twin: Path, tmp_path: Path) -> None:
    path = archive_of(twin, tmp_path / "t.tar.gz")
    data = path.read_bytes()
    for place in range(40, len(data) - 8, 23):
        path.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
        with pytest.raises(BadInput):
            import_babi(path, tmp_path / "babi")
    assert not (tmp_path / "babi").exists()


@pytest.mark.parametrize("name", ["qa1_train.txt.gz", "qa1_train.txt.xz"])
def test_a_compressed_file_that_is_cut_off_is_refused(name: str, tmp_path: Path) -> None:
    text = story("garden").encode() * 50
    packed = gzip.compress(text) if name.endswith("gz") else lzma.compress(text)
    for damaged in (packed[: len(packed) // 2], b"not compressed at all", b""):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(BadInput, match=name):
            import_babi(tmp_path / name, tmp_path / "babi")
    assert not (tmp_path / "babi").exists()


def test_a_gzip_file_with_changed_bytes_is_refused(twin: Path, tmp_path: Path) -> None:
    packed = gzip.compress((twin / TRAIN_1).read_bytes())
    path = tmp_path / "qa1_train.txt.gz"
    for place in range(20, len(packed), 7):
        path.write_bytes(packed[:place] + bytes([packed[place] ^ 255]) + packed[place + 1 :])
        with pytest.raises(BadInput, match="the compressed file is damaged"):
            import_babi(path, tmp_path / "babi")
    assert not (tmp_path / "babi").exists()


def test_a_folder_without_a_manifest_holds_nothing(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == {}
    assert read_stories(tmp_path, 1, "train") == []


def test_a_damaged_manifest_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(BadInput, match=MANIFEST):
        read_manifest(tmp_path)


def test_a_prepared_file_that_is_damaged_is_refused_by_name(twin: Path, tmp_path: Path) -> None:
    import_babi(twin, tmp_path / "babi")
    path = tmp_path / "babi" / "qa1_test.txt.gz"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(MalformedFile, match=r"qa1_test\.txt\.gz, line 1: the compressed file is damaged"):
        read_stories(tmp_path / "babi", 1, "test")
