"""The tiny twin of bAbI: files as the originals lay them out, with answers that follow from the story."""

from __future__ import annotations

from pathlib import Path

from remem.data.babi_format import Story, parse_stories
from remem.data.babi_twin import write_twin

FILES = {
    "en-10k/qa1_single-supporting-fact_train.txt": 8,
    "en-10k/qa1_single-supporting-fact_test.txt": 2,
    "en-valid-10k/qa1_valid.txt": 2,
    "en-10k/qa6_yes-no-questions_train.txt": 8,
    "en-10k/qa6_yes-no-questions_test.txt": 2,
    "en-valid-10k/qa6_valid.txt": 2,
}


def stories_of(path: Path) -> list[Story]:
    return parse_stories(path.read_text().splitlines(), path.name)


def test_the_twin_has_the_files_of_the_original_archive(tmp_path: Path) -> None:
    folder = write_twin(tmp_path, stories=8, num_questions=2)
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.txt")}
    assert {name: len(stories_of(path)) for name, path in found.items()} == FILES
    assert all(len(story.questions) == 2 for path in found.values() for story in stories_of(path))


def test_answers_follow_from_the_last_move_of_who_is_asked_about(tmp_path: Path) -> None:
    folder = write_twin(tmp_path, stories=20)
    checked = 0
    for name in FILES:
        for story in stories_of(folder / name):
            for question in story.questions:
                person = question.words[2] if question.words[0] == "where" else question.words[1]
                moves = [i for i, s in enumerate(story.sentences[: question.position]) if s[0] == person]
                room = story.sentences[moves[-1]][-1]
                asked = question.words[-1]
                expected = room if question.words[0] == "where" else "yes" if room == asked else "no"
                assert (question.answer, question.evidence) == (expected, moves[-1])
                checked += 1
    assert checked == 2 * (20 + 5 + 5) * 3


def test_the_twin_is_a_function_of_its_seed(tmp_path: Path) -> None:
    one, two, other = (write_twin(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in FILES)
    assert all((one / name).read_bytes() != (other / name).read_bytes() for name in FILES)
