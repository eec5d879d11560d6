"""`remem ask`: a story from a file or a pipe, answers from the slots alone, and refusals that say where and why."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from remem import StreamMemory, save_bundle
from remem.build import build_model
from remem.cli.ask import read_sentences
from remem.cli.main import main
from remem.data.babi import build_codec, load_stories
from remem.data.babi_format import parse_stories
from remem.data.babi_store import import_babi
from remem.data.babi_twin import write_twin
from remem.experiments.models import RM
from remem.settings.run import Run
from remem.settings.tasks import BabiTask

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
SENTENCES = ["Mary went to the kitchen", "John moved to the garden", "Mary journeyed to the office"]
PLAIN = "".join(f"{sentence}.\n" for sentence in SENTENCES)
BABI = f"""1 {SENTENCES[0]}.
2 {SENTENCES[1]}.
3 Where is Mary?\tkitchen\t1
4 {SENTENCES[2]}.
5 Is Mary in the office?\tyes\t4
"""
WHERE, WHETHER = "Where is Mary?", "Is John in the garden?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model for the twin's words, with segments shorter than its sentences of five words."""
    folder = tmp_path_factory.mktemp("ask")
    import_babi(write_twin(folder / "raw", stories=12), folder / "prepared")
    codec = build_codec(load_stories(folder / "prepared", (1, 6), "train"), segment_len=4)
    small = replace(RM, item_dim=16, model_dim=16, machine=replace(RM.machine, num_slots=3, encoder_layers=1))
    torch.manual_seed(0)
    save_bundle(folder / "model", build_model(small, codec), Run(task=BabiTask(segment_len=4), model=small), codec)
    return folder / "model"


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for the story, which the commands call story.txt."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "story.txt"


class Terminal(io.StringIO):
    """Standard input that nobody has redirected."""

    def isatty(self) -> bool:
        return True


def ask(*arguments: str | Path) -> int:
    return main(["ask", *map(str, arguments)])


def pipe(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    data = text.encode() if isinstance(text, str) else text
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def direct(model: Path, items: list[Any], question: Any, top: int = 5) -> list[list[Any]]:
    """What the library answers, as JSON writes it."""
    memory = StreamMemory.open(model)
    memory.write_many(items)
    return [[answer, probability] for answer, probability in memory.query(question, top=top).top]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line on stderr of a command that exits with 2 and prints nothing else."""
    assert ask(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("remem: ")
    assert shown.err.count("\n") == 1
    assert shown.err.endswith((".\n", ".'\n"))
    return shown.err


def test_answers_are_those_of_the_stream_memory(model: Path, story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story.write_text(PLAIN)
    assert ask(model, "--story", "story.txt", WHERE, WHETHER, "--format", "json") == 0
    shown = capsys.readouterr()
    tops = {question: direct(model, SENTENCES, question) for question in (WHERE, WHETHER)}
    assert json.loads(shown.out) == {
        "questions": [{"question": q, "answer": top[0][0], "top": top} for q, top in tops.items()],
        "segments": 6,  # each sentence of five words takes two segments of four
        "items": 3,
    }
    assert shown.err == ""


def test_text_is_the_best_answer_then_an_aligned_list(
    model: Path, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story.write_text(PLAIN)
    assert ask(model, WHERE, WHETHER, "--story", story) == 0
    first, second = (block.splitlines() for block in capsys.readouterr().out.split("\n\n"))
    for question, (head, *rows) in ((WHERE, first), (WHETHER, second)):
        top = direct(model, SENTENCES, question)
        assert head == f"{question} -> {top[0][0]}"
        assert [row.split() for row in rows] == [[answer, f"{p:.2%}"] for answer, p in top]
        assert len(rows) == 5
        assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("flags", [[], ["--story", "-"]], ids=["no --story", "--story -"])
def test_a_story_can_be_piped(
    flags: list[str], model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, PLAIN)
    assert ask(model, *flags, WHERE, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["questions"][0]["top"] == direct(model, SENTENCES, WHERE)


@pytest.mark.parametrize(
    "text",
    [
        "Mary went to the kitchen. John moved to the garden!\n\n  Mary journeyed to the office",
        "Mary went to the kitchen... John moved to the garden?Mary journeyed to the office?! ---\n\n",
        PLAIN.replace("\n", "\r\n"),
        "\ufeff" + BABI,
        BABI.replace("1 Mary", "7 Mary"),
        "\n".join(line for line in BABI.splitlines() if "\t" not in line),
    ],
    ids=[
        "several a line",
        "runs of marks",
        "windows",
        "babi with a BOM",
        "babi from its middle",
        "babi statements",
    ],
)
def test_every_way_to_write_a_story_gives_the_same_answers(
    text: str, model: Path, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story.write_text(text, newline="")
    assert ask(model, "--story", story, WHERE, "--format", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["questions"][0]["top"] == direct(model, SENTENCES, WHERE)
    assert (shown["items"], shown["segments"]) == (3, 6)


def test_questions_of_a_babi_file_are_skipped_and_counted(
    model: Path, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story.write_text(BABI)
    assert ask(model, "--story", "story.txt", WHERE) == 0
    assert capsys.readouterr().err == "story.txt: skipped 2 question lines.\n"
    story.write_text(BABI + BABI)
    assert ask(model, "--story", "story.txt", WHERE) == 0
    assert capsys.readouterr().err == (
        "story.txt: skipped 4 question lines.\nstory.txt: 2 stories, read as one stream.\n"
    )


def test_a_babi_file_is_read_as_in_training(tmp_path: Path) -> None:
    path = write_twin(tmp_path, stories=4) / "en-10k" / "qa6_yes-no-questions_train.txt"
    lines = path.read_text().splitlines()
    stories = parse_stories(lines, path.name)
    read = read_sentences(lines, path.name)
    assert [tuple(text.lower().split()) for _, text in read.items] == [s for story in stories for s in story.sentences]
    assert (read.skipped_questions, read.stories) == (sum(len(story.questions) for story in stories), 4)


def test_one_line_without_a_number_makes_it_plain_text() -> None:
    read = read_sentences(["2 men went home.", "Mary slept. 1 dog stayed."], "story.txt")
    assert read.items == [(1, "2 men went home"), (2, "Mary slept"), (2, "1 dog stayed")]
    assert read.skipped_questions == 0


def test_item_numbers_are_asked_with_a_number(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [4, 17, 2, 95, 9, 0, 13, 5, 61, 18, 7, 3]
    story.write_text("4 17, 2,95\n9\t0 13 005 61,\n\n18 7 3")
    assert ask(DEMO, "--story", "story.txt", "2", " 0 ", "--format", "json", "--top", "2") == 0
    tops = [direct(DEMO, items, question, top=2) for question in (2, 0)]
    assert json.loads(capsys.readouterr().out) == {
        "questions": [{"question": q, "answer": t[0][0], "top": t} for q, t in zip(("2", " 0 "), tops, strict=True)],
        "segments": 1,
        "items": 12,
    }
    assert ask(DEMO, "--story", "story.txt", "2", "--top", "1") == 0
    answer, probability = tops[0][0]
    assert capsys.readouterr().out == f"2 -> {answer}\n  {answer}  {probability:7.2%}\n"


@pytest.mark.parametrize(("top", "shown"), [(1, 1), (3, 3), (99, 6)])
def test_top_says_how_many_answers(
    top: int, shown: int, model: Path, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story.write_text(PLAIN)
    assert ask(model, "--story", story, WHERE, "--format", "json", "--top", str(top)) == 0
    ranked = json.loads(capsys.readouterr().out)["questions"][0]["top"]
    assert ranked == direct(model, SENTENCES, WHERE, top=top)
    assert len(ranked) == shown


def test_unknown_words_of_a_story_are_named_with_their_lines(
    model: Path, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = len(StreamMemory.open(model).codec.words)  # type: ignore[union-attr]
    story.write_text(
        "Bob went to the attic. Bob moved.\n\nMary fled to the garden.\n" + "Bob went to the office.\n" * 4
    )
    assert refusal(capsys, model, "--story", "story.txt", WHERE) == (
        "remem: story.txt holds 3 words this model does not know: "
        "'bob' (lines 1, 4, 5, ...), 'attic' (line 1), 'fled' (line 3). "
        f"The model knows {words} words; rephrase with them alone, or train on text that holds the others.\n"
    )
    story.write_text(BABI.replace("office.", "attic."))
    assert "a word this model does not know: 'attic' (line 4)." in refusal(capsys, model, "--story", story, WHERE)
    story.write_text(" ".join(f"word{i}" for i in range(14)))
    said = refusal(capsys, model, "--story", story, WHERE)
    assert "'word9' (line 1) and 4 more." in said
    assert "word10" not in said


def test_unknown_words_of_a_question_are_named(model: Path, story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story.write_text(PLAIN)
    said = refusal(capsys, model, "--story", story, WHERE, "Where did Bob go to?")
    assert "The question 'Where did Bob go to?' holds 3 words this model does not know: 'did', 'bob', 'go'." in said
    assert "The model knows" in said


def test_what_is_no_item_is_named_with_its_lines(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story.write_text(f"4 96\n-1 Mary 96 1_0 ٣\n{'9' * 5000}")
    said = refusal(capsys, DEMO, "--story", "story.txt", "2")
    assert "96 (lines 1, 2), '-1' (line 2), 'Mary' (line 2), '1_0' (line 2), '٣' (line 2), '999" in said
    assert said.endswith("...' (line 3). Expected integers from 0 to 95, separated by spaces or commas.\n")


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("", [WHERE], "story.txt holds no sentence; expected a story"),
        (" \n...\n - \n", [WHERE], "story.txt holds no sentence; expected a story"),
        ("1 Where is Mary?\toffice\t1\n", [WHERE], "story.txt holds no sentence but questions"),
        (f"{PLAIN}Мэри дома.", [WHERE], "story.txt, line 4: 'Мэри дома' holds no word that can be read"),
        (PLAIN, [WHERE, "--top", "0"], "--top is 0; expected at least 1"),
        (PLAIN, [WHERE, "--top", "-3"], "--top is -3"),
        (PLAIN, [], "There is no question"),
        (PLAIN, ["?!"], "'?!' holds no word"),
        (PLAIN, [""], "'' holds no word"),
        (PLAIN, ["Where is \udcff Mary?"], "is not UTF-8 text"),
        (PLAIN, [WHERE, "--story", "nowhere.txt"], "nowhere.txt does not exist; expected a text file"),
        (PLAIN, [WHERE, "--story", "."], ". is a folder; expected a text file"),
        (PLAIN, [WHERE, "--story", "story.txt/more"], "story.txt/more cannot be read (Not a directory)"),
    ],
)
def test_what_cannot_be_read_or_asked_is_refused(
    text: str, flags: list[str], said: str, model: Path, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story.write_text(text)
    place = [] if "--story" in flags else ["--story", "story.txt"]
    assert said in refusal(capsys, model, *flags, *place)


@pytest.mark.parametrize(
    ("text", "question", "said"),
    [
        (" ,\n", "2", "holds no item; expected numbers"),
        ("4", "4", "4 is no query of this model; expected an integer from 0 to 3"),
        ("4", WHERE, "'Where is Mary?' is no query of this model"),
    ],
)
def test_a_model_over_numbers_refuses_what_is_none(
    text: str, question: str, said: str, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story.write_text(text)
    assert said in refusal(capsys, DEMO, "--story", story, question)


def test_bytes_that_are_no_text_are_refused_with_their_line(
    model: Path, story: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    story.write_bytes(PLAIN.encode() + b"Mary \xff.\n")
    assert "story.txt, line 4: the line is not UTF-8 text" in refusal(capsys, model, "--story", "story.txt", WHERE)
    pipe(monkeypatch, b"\xff\xfe")
    assert "standard input, line 1: the line is not UTF-8 text" in refusal(capsys, model, WHERE)


def test_nobody_waits_at_a_silent_terminal(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stdin in (Terminal(), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert "There is no story; expected a file named with --story" in refusal(capsys, model, WHERE)


def test_a_missing_model_is_refused(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story.write_text(PLAIN)
    assert "nowhere/model.safetensors does not exist" in refusal(capsys, "nowhere", "--story", story, WHERE)


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        ask("--help")
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("QUESTION", "--story", "--top", "--format {text,json}", "standard input"))
