"""The bAbI task: error over tasks computed by hand, and a user's own stories read with a trained model's words."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch

from remem.data.babi_store import import_babi, read_manifest
from remem.data.babi_twin import write_twin
from remem.data.codec import TextCodec, UnknownItem
from remem.errors import BadInput
from remem.settings.tasks import BabiTask
from remem.tasks.babi import babi_task, errors, read_babi
from remem.tasks.base import Tally
from remem.tasks.load import load_task


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_twin(tmp_path_factory.mktemp("twin"), stories=24)


@pytest.fixture(scope="module")
def prepared(twin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    import_babi(twin, folder)
    return folder


@pytest.fixture(scope="module")
def codec(prepared: Path) -> TextCodec:
    codec = babi_task(BabiTask(data=prepared, tasks=(1, 6))).codec
    assert isinstance(codec, TextCodec)
    return codec


def test_mean_error_and_failed_tasks_are_those_computed_by_hand() -> None:
    # errors of 0, 5, 6 and 50 percent; one of exactly 5 does not fail
    tally = Tally({19: (50, 100), 0: (10, 10), 1: (95, 100), 2: (47, 50)})
    assert errors(tally) == {
        "error": 15.25,
        "failed_tasks": 2.0,
        "qa1": 0.0,
        "qa2": 5.0,
        "qa3": 6.0,
        "qa20": 50.0,
    }
    assert list(errors(tally))[2:] == ["qa1", "qa2", "qa3", "qa20"]


def test_each_task_weighs_alike_however_many_questions_it_has() -> None:
    assert errors(Tally({0: (0, 1), 1: (99, 99)}))["error"] == 50


def test_the_task_is_made_of_the_prepared_folder(prepared: Path) -> None:
    task = babi_task(BabiTask(name="babi-twin", data=prepared, tasks=(1, 6), segment_len=9))
    assert isinstance(task.codec, TextCodec)
    assert task.name == "babi-twin"
    assert task.codec.segment_len == 9
    assert task.codec.answers == ["garden", "hallway", "kitchen", "no", "office", "yes"]
    assert {"mary", "went", "where", "is", "in"} <= set(task.codec.words)
    assert task.chance == pytest.approx(100 / 6)
    assert task.part_names[0] == "qa1"
    assert task.part_names[19] == "qa20"
    assert task.sources == read_manifest(prepared)
    assert task.score({"error": 12.5, "failed_tasks": 1.0}) == -12.5


def test_its_splits_hold_the_stories_of_the_tasks_asked_for(prepared: Path) -> None:
    both, one = (babi_task(BabiTask(data=prepared, tasks=tasks)) for tasks in ((1, 6), (6,)))
    assert [len(both.load(split)) for split in ("train", "valid", "test")] == [48, 12, 12]
    assert [len(one.load(split)) for split in ("train", "valid", "test")] == [24, 6, 6]
    assert {int(part) for bucket in one.load("test").buckets for part in bucket.query.part.unique()} == {5}
    assert both.load("test").num_questions == 36


def test_a_story_is_asked_some_questions_in_training_and_all_of_them_elsewhere(prepared: Path) -> None:
    task = babi_task(BabiTask(data=prepared, tasks=(1,), questions=2))
    most = {split: task.load(split).batch(0, torch.arange(2)).query.mask.shape[1] for split in ("train", "test")}
    assert most["train"] == 2 < most["test"]
    with pytest.raises(BadInput, match=r"--task.questions is -1"):
        load_task(BabiTask(data=prepared, questions=-1))


def test_missing_training_data_is_refused_with_the_tasks_and_what_to_do(prepared: Path) -> None:
    with pytest.raises(BadInput) as refusal:
        babi_task(BabiTask(data=prepared, tasks=(1, 2, 20)))
    assert f"{prepared} has no training stories for task 2, 20; import them with" in str(refusal.value)
    assert "--task.tasks" in str(refusal.value)


def test_a_folder_without_data_is_refused_with_the_command_to_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no prepared bAbI data; run `remem data import PATH`"):
        babi_task(BabiTask(data=tmp_path / "none"))


def test_no_task_at_all_is_refused_with_a_sentence(prepared: Path) -> None:
    with pytest.raises(BadInput):
        babi_task(BabiTask(data=prepared, tasks=()))


def test_a_task_that_is_named_twice_is_refused(prepared: Path) -> None:
    with pytest.raises(BadInput, match=r"--task.tasks 1 2 1 names one twice"):
        babi_task(BabiTask(data=prepared, tasks=(1, 2, 1)))


def test_a_trained_model_brings_its_codec_and_needs_no_training_file(
    twin: Path, codec: TextCodec, tmp_path: Path
) -> None:
    import_babi(twin / "en-10k" / "qa1_single-supporting-fact_test.txt", tmp_path)
    task = babi_task(BabiTask(data=tmp_path, tasks=(1,)), codec)
    assert task.codec is codec
    assert len(task.load("test")) == 6
    # nor a folder, as long as nothing is loaded from it
    assert babi_task(BabiTask(data=tmp_path / "none"), codec).sources == {}


def test_own_stories_are_read_from_folder_archive_file_and_prepared_folder(
    twin: Path, prepared: Path, codec: TextCodec, tmp_path: Path
) -> None:
    archive = tmp_path / "own.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        out.add(twin, "own")
    whole = babi_task(BabiTask(data=prepared, tasks=(1, 6))).load("test").fingerprint()
    for path in (twin, archive, prepared):
        assert read_babi(path, codec).fingerprint() == whole
    single = read_babi(twin / "en-10k" / "qa6_yes-no-questions_test.txt", codec)
    assert len(single) == 6
    assert {int(part) for bucket in single.buckets for part in bucket.query.part.unique()} == {5}


def test_reading_own_stories_leaves_their_folder_alone(twin: Path, codec: TextCodec) -> None:
    before = sorted(path.as_posix() for path in twin.rglob("*"))
    read_babi(twin, codec)
    assert sorted(path.as_posix() for path in twin.rglob("*")) == before


def test_own_stories_may_lack_some_tasks(twin: Path, prepared: Path, codec: TextCodec, tmp_path: Path) -> None:
    import_babi(twin / "en-10k" / "qa6_yes-no-questions_test.txt", tmp_path)
    task = babi_task(BabiTask(data=prepared, tasks=(1, 6)))
    split = task.read(tmp_path)
    assert len(split) == 6
    assert split.num_questions == 18


def test_own_validation_stories_are_read_where_there_is_no_test_file(
    twin: Path, codec: TextCodec, tmp_path: Path
) -> None:
    import_babi(twin / "en-valid-10k" / "qa1_valid.txt", tmp_path)
    import_babi(twin / "en-10k" / "qa1_single-supporting-fact_train.txt", tmp_path)
    assert len(read_babi(tmp_path, codec)) == 6


def test_a_few_own_training_stories_are_all_read(codec: TextCodec, tmp_path: Path) -> None:
    path = tmp_path / "qa1_train.txt"
    path.write_text("1 Mary went to the garden.\n2 Where is Mary?\tgarden\t1\n" * 9)
    assert len(read_babi(path, codec)) == 9


def test_many_own_training_stories_are_all_read(codec: TextCodec, tmp_path: Path) -> None:
    path = tmp_path / "qa1_train.txt"
    path.write_text("1 Mary went to the garden.\n2 Where is Mary?\tgarden\t1\n" * 20)
    assert len(read_babi(path, codec)) == 20


def test_own_stories_with_an_unknown_word_are_refused_by_that_word(codec: TextCodec, tmp_path: Path) -> None:
    path = tmp_path / "qa1_test.txt"
    path.write_text("1 Zoe went to the garden.\n2 Where is Zoe?\tgarden\t1\n")
    with pytest.raises(UnknownItem, match="The word 'zoe' is not among"):
        read_babi(path, codec)


def test_own_stories_at_a_missing_path_are_refused(codec: TextCodec, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere does not exist"):
        read_babi(tmp_path / "nowhere", codec)


def test_words_change_places_in_training_alone(prepared: Path) -> None:
    plain = babi_task(BabiTask(data=prepared, tasks=(1, 6)))
    more = babi_task(BabiTask(data=prepared, tasks=(1, 6), exchanges=3))
    exchange = more.load("train").exchange
    assert plain.load("train").exchange is None
    assert exchange is not None
    assert exchange.words.shape == (20, 3, len(plain.codec.words))  # type: ignore[union-attr]
    for split in ("train", "valid", "test"):
        assert more.load(split).fingerprint() == plain.load(split).fingerprint()
    assert all(more.load(split).exchange is None for split in ("valid", "test"))
    assert more.codec == plain.codec
