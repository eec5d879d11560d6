"""bAbI as streams: which stories train, how sentences become segments, and what a padded question is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from remem.data.babi import TaskStories, as_split, build_codec, load_stories
from remem.data.babi_format import UNKNOWN_EVIDENCE, Story, parse_stories
from remem.data.babi_store import import_babi
from remem.data.babi_twin import write_twin
from remem.data.batch import UNSEEN_ANSWER
from remem.data.codec import TextCodec, UnknownItem
from remem.data.dataset import Bucket, Split, epoch_batches
from remem.errors import BadInput


def stories(text: str) -> list[Story]:
    return parse_stories(text.splitlines(), "test")


def numbered(numbers: list[int]) -> str:
    """One short story for each number, equal where numbers are."""
    return "".join(f"1 Mary went to room {n}.\n2 Where is Mary?\troom{n}\t1\n" for n in numbers)


def long_story(sentences: int) -> str:
    lines = [f"{i + 1} Mary went to room {i % 3}." for i in range(sentences)]
    return "\n".join([*lines, f"{sentences + 1} Where is Mary?\troom\t{sentences}"]) + "\n"


def rooms(parts: list[TaskStories]) -> list[str]:
    return [question.answer.removeprefix("room") for part in parts for s in part.stories for question in s.questions]


def prepare(tmp_path: Path, **files: str) -> Path:
    source = tmp_path / "own"
    source.mkdir()
    for name, text in files.items():
        (source / f"{name}.txt").write_text(text)
    import_babi(source, tmp_path / "babi")
    return tmp_path / "babi"


def split_of(text: str, *, task: int = 1, segment_len: int = 4, codec: TextCodec | None = None) -> Split:
    parts = [TaskStories(task, stories(text))]
    return as_split(parts, codec or build_codec(parts, segment_len))


def words_of_stream(split: Split, codec: TextCodec, bucket: Bucket, row: int) -> list[list[str]]:
    order = bucket.order[row][bucket.segment_mask[row]]
    return [[codec.words[i] for i in split.items[s][split.item_mask[s]].tolist()] for s in order]


def test_training_stories_are_those_not_moved_to_validation(tmp_path: Path) -> None:
    folder = prepare(tmp_path, qa1_train=numbered([1, 2, 3, 4, 5]), qa1_valid=numbered([4, 2]))
    assert rooms(load_stories(folder, (1,), "train")) == ["1", "3", "5"]
    assert rooms(load_stories(folder, (1,), "valid")) == ["4", "2"]


def test_equal_stories_are_moved_as_often_as_validation_holds_them(tmp_path: Path) -> None:
    # three copies of story 1, one of them moved; one copy of story 2, held twice by validation
    folder = prepare(tmp_path, qa1_train=numbered([1, 2, 1, 3, 1]), qa1_valid=numbered([2, 1, 2, 9]))
    assert Counter(rooms(load_stories(folder, (1,), "train"))) == {"1": 2, "3": 1}


def test_without_a_validation_file_every_tenth_training_story_is_held_out(tmp_path: Path) -> None:
    folder = prepare(tmp_path, qa1_train=numbered(list(range(25))))
    assert rooms(load_stories(folder, (1,), "valid")) == ["9", "19"]
    assert rooms(load_stories(folder, (1,), "train")) == [str(n) for n in range(25) if n not in (9, 19)]


def test_each_task_has_its_own_validation(tmp_path: Path) -> None:
    folder = prepare(
        tmp_path, qa1_train=numbered([1, 2]), qa1_valid=numbered([2]), qa6_train=numbered(list(range(1, 12)))
    )
    train = load_stories(folder, (6, 1), "train")
    assert [part.task for part in train] == [6, 1]
    assert [rooms([part]) for part in train] == [["1", "2", "3", "4", "5", "6", "7", "8", "9", "11"], ["1"]]
    assert [rooms([part]) for part in load_stories(folder, (6, 1), "valid")] == [["10"], ["2"]]


def test_a_few_training_stories_still_leave_one_to_validate_on(tmp_path: Path) -> None:
    folder = prepare(tmp_path, qa1_train=numbered(list(range(9))))
    assert len(rooms(load_stories(folder, (1,), "valid"))) == 1
    assert len(rooms(load_stories(folder, (1,), "train"))) == 8


def test_test_stories_are_read_as_they_are(tmp_path: Path) -> None:
    folder = prepare(tmp_path, qa1_train=numbered([1, 2]), qa1_valid=numbered([1]), qa1_test=numbered([1, 1, 2]))
    assert rooms(load_stories(folder, (1,), "test")) == ["1", "1", "2"]


def test_a_task_never_imported_has_no_stories(tmp_path: Path) -> None:
    folder = prepare(tmp_path, qa1_test=numbered([1]))
    for split, count in (("train", 0), ("valid", 0), ("test", 1)):
        parts = load_stories(folder, (1, 2), split)
        assert [len(part.stories) for part in parts] == [count, 0]


def test_a_folder_without_prepared_data_is_refused_with_the_command_to_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no prepared bAbI data; run `remem data import PATH`"):
        load_stories(tmp_path, (1,), "train")


def test_the_codec_holds_words_and_answers_of_all_training_stories() -> None:
    parts = [
        TaskStories(1, stories("1 Mary went.\n2 Where is she?\tgarden\t1\n")),
        TaskStories(2, stories(numbered([3]))),
    ]
    codec = build_codec(parts, 15)
    assert codec.words == ["3", "is", "mary", "room", "she", "to", "went", "where"]
    assert codec.answers == ["garden", "room3"]
    assert codec.segment_len == 15


def test_a_sentence_is_a_segment() -> None:
    text = "1 Mary went home.\n2 John left.\n3 Where is John?\thome\t2\n"
    split = split_of(text, task=7)
    codec = build_codec([TaskStories(7, stories(text))], 4)
    (bucket,) = split.buckets
    assert words_of_stream(split, codec, bucket, 0) == [["mary", "went", "home"], ["john", "left"]]
    assert split.items.shape == (2, 4)
    assert bucket.query.position.tolist() == [[2]]
    assert bucket.query.evidence.tolist() == [[1]]
    assert bucket.query.part.tolist() == [[6]]
    assert [codec.words[i] for i in bucket.query.tokens[0, 0]] == ["where", "is", "john"]
    assert codec.answers[int(bucket.query.answer[0, 0])] == "home"


def test_a_long_sentence_becomes_several_segments_and_positions_follow() -> None:
    text = (
        "1 a b c d e f g h i.\n2 j k.\n3 where a?\tx\t1\n4 l m n o p.\n5 where l?\ty\t4\n6 q.\n7 where q?\tz\t6 2\n"
        "8 where all?\tx\n"
    )
    split = split_of(text)
    codec = build_codec([TaskStories(1, stories(text))], 4)
    (bucket,) = split.buckets
    expected = ["a b c d", "e f g h", "i", "j k", "l m n o", "p", "q"]
    assert words_of_stream(split, codec, bucket, 0) == [piece.split() for piece in expected]
    # asked after sentences 2, 3, 4 and 4, which end with segments 4, 6, 7 and 7
    assert bucket.query.position.tolist() == [[4, 6, 7, 7]]
    # supported first by sentences 1, 3 and 2, which begin with segments 0, 4 and 3
    assert bucket.query.evidence.tolist() == [[0, 4, 3, UNKNOWN_EVIDENCE]]


def test_equal_sentences_share_a_segment() -> None:
    split = split_of("1 a b.\n2 c d.\n3 a b.\n4 where?\tx\t1\n1 c d.\n2 where?\tx\t1\n")
    assert split.repeats
    assert len(split.items) == 2
    assert split.buckets[0].order.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert split.buckets[0].segment_mask.tolist() == [[True, True, True], [True, False, False]]


def test_one_pass_holds_all_questions_of_a_story() -> None:
    split = split_of(
        long_story(3) + "1 a b.\n2 where a?\tx\t1\n3 where b?\ty\t1\n4 c.\n5 where c?\tz\t4\n", segment_len=5
    )
    assert len(split) == 2
    assert split.num_questions == 4
    assert split.buckets[0].query.mask.tolist() == [[True, False, False], [True, True, True]]
    assert split.buckets[0].query.position.tolist() == [[3, 0, 0], [1, 1, 2]]


def test_stories_of_similar_length_share_a_bucket() -> None:
    lengths = [16, 1, 8, 9, 300, 17, 32, 33, 257, 64, 129, 256]
    split = split_of("".join(map(long_story, lengths)), segment_len=5)
    found = [[lengths[i] for i in bucket.ids.tolist()] for bucket in split.buckets]
    assert found == [[1, 8], [16, 9], [17, 32], [33, 64], [129, 256], [300, 257]]
    assert [bucket.order.shape[1] for bucket in split.buckets] == [8, 16, 32, 64, 256, 300]
    for bucket in split.buckets:
        assert bucket.segment_mask.sum(dim=1).tolist() == [lengths[i] for i in bucket.ids.tolist()]


def test_length_counts_segments_and_not_sentences() -> None:
    split = split_of(2 * (long_story(8) + long_story(1)), segment_len=3)
    # eight sentences of five words, two segments each
    assert [bucket.order.shape for bucket in split.buckets] == [(2, 2), (2, 16)]


def test_a_story_longer_than_all_others_is_trained_on_in_some_epoch() -> None:
    split = split_of("".join(map(long_story, [3, 4, 5, 300])), segment_len=5)
    seen = set()
    for epoch in range(20):
        for bucket, rows in epoch_batches(split, 4, 0, epoch):
            seen |= set(split.buckets[bucket].ids[rows].tolist())
    assert seen == {0, 1, 2, 3}


def test_an_unseen_answer_is_a_class_of_its_own_that_no_model_gives() -> None:
    codec = TextCodec(segment_len=4, words=["a", "b", "where"], answers=["x"])
    split = split_of("1 a b.\n2 where?\tx\t1\n3 where?\tnever\t1\n", codec=codec)
    assert split.buckets[0].query.answer.tolist() == [[0, UNSEEN_ANSWER]]
    assert split.buckets[0].query.mask.all()


@pytest.mark.parametrize("text", ["1 a zebra.\n2 where?\tx\t1\n", "1 a b.\n2 where zebra?\tx\t1\n"])
def test_an_unknown_word_is_named(text: str) -> None:
    codec = TextCodec(segment_len=4, words=["a", "b", "where"], answers=["x"])
    with pytest.raises(UnknownItem, match="The word 'zebra' is not among the 3 words"):
        split_of(text, codec=codec)


def test_no_story_at_all_is_refused() -> None:
    with pytest.raises(BadInput, match="There is no story to read; import at least one bAbI task"):
        as_split([TaskStories(1, [])], TextCodec(segment_len=4, words=[], answers=[]))


def test_padding_is_consistent(tmp_path: Path) -> None:
    import_babi(write_twin(tmp_path / "twin", stories=12), tmp_path / "babi")
    parts = load_stories(tmp_path / "babi", (1, 6), "train")
    # stories of different length and number of questions
    parts.append(
        TaskStories(9, stories(2 * ("1 Mary went.\n2 Where is Mary?\tgarden\n" + long_story(5) + long_story(20))))
    )
    split = as_split(parts, build_codec(parts, 4))
    assert [len(bucket) for bucket in split.buckets] == [2, 26, 2]
    assert (split.items[~split.item_mask] == 0).all()
    assert split.item_mask.any(dim=1).all()
    for bucket in split.buckets:
        query = bucket.query
        assert (bucket.order[~bucket.segment_mask] == 0).all()
        # real values come first, so that lengths say all
        for mask in (split.item_mask, bucket.segment_mask, query.mask, query.token_mask.flatten(0, 1)):
            assert torch.equal(mask, mask.int().cummin(dim=1).values.bool())
        padded = ~query.mask
        assert (query.tokens[~query.token_mask] == 0).all()
        # a padded question has one word, so that no softmax over words is empty
        assert (query.token_mask[padded].sum(dim=-1) == 1).all()
        assert (query.tokens[padded] == 0).all()
        assert (query.position[padded] == 0).all()
        assert (query.answer[padded] == 0).all()
        assert (query.evidence[padded] == UNKNOWN_EVIDENCE).all()
        # a real one is asked within its stream, after its evidence
        real = query.mask
        lengths = bucket.segment_mask.sum(dim=1, keepdim=True).expand_as(query.position)
        assert (query.position[real] >= 1).all()
        assert (query.position <= lengths)[real].all()
        assert (query.evidence < query.position)[real].all()
    assert any((~bucket.query.mask).any() for bucket in split.buckets)
    assert split.num_questions == sum(len(story.questions) for part in parts for story in part.stories)


def test_ids_number_the_stories_in_order_over_all_tasks() -> None:
    parts = [
        TaskStories(1, stories(long_story(9) + long_story(2))),
        TaskStories(2, stories(long_story(3) + long_story(9))),
    ]
    split = as_split(parts, build_codec(parts, 5))
    assert [bucket.ids.tolist() for bucket in split.buckets] == [[1, 2], [0, 3]]
    assert split.buckets[0].query.part.tolist() == [[0], [1]]


def test_the_split_of_the_twin_is_bit_identical_everywhere(tmp_path: Path) -> None:
    import_babi(write_twin(tmp_path / "twin", stories=12), tmp_path / "babi")
    parts = load_stories(tmp_path / "babi", (1, 6), "train")
    assert as_split(parts, build_codec(parts, 15)).fingerprint() == "488727aed9e35502"
