"""`remem ask MODEL QUESTION... --story FILE`: read a story once, then answer questions from the slots alone."""

from __future__ import annotations

import json
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from remem.errors import BadInput
from remem.header import model_path, read_header

if TYPE_CHECKING:
    from remem.data.codec import Codec
    from remem.streaming.steps import Answer

_NUMBERED = re.compile(r"([0-9]+)\s+(\S.*)")  # a line of bAbI's own files: 'ID text'
_SENTENCE_END = re.compile(r"[.!?]")
_MOST_NAMED, _MOST_LINES = 10, 3  # a refusal stays readable, however long the story


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a story into a saved model's memory, then answer questions from the memory alone."""

    model: tyro.conf.Positional[Path]
    """Folder of a run or of a saved model."""
    questions: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="QUESTION ...")]
    """Such as "Where is Mary?"; for a model over item numbers, a query's number."""
    story: Path | None = None
    """Sentences, plain or in bAbI's numbered lines, or item numbers; - or nothing is standard input."""
    top: int = 5
    """How many of the likeliest answers to print."""
    format: Literal["text", "json"] = "text"
    """How to print them."""


class Story(NamedTuple):
    """What is written to the memory, each item with its line, and what the file holds besides."""

    items: list[tuple[int, Any]]
    skipped_questions: int = 0
    stories: int = 1


def main(argv: list[str]) -> None:
    """Read, check all of it, write, ask, print."""
    options = tyro.cli(Options, args=argv, prog="remem ask")
    if options.top < 1:
        raise BadInput(f"--top is {options.top}; expected at least 1.")
    if not options.questions:
        raise BadInput("There is no question; give at least one after the model, such as 'Where is Mary?'.")
    source, lines = read_lines(options.story)
    from remem.data.codec import codec_from_json

    # what can't be asked is refused before torch is loaded, which takes seconds
    codec = codec_from_json(read_header(model_path(options.model), "codec")["codec"])
    if codec.kind not in ("text", "ids", "clicks"):
        raise BadInput(
            f"{options.model} answers by candidates or reads vectors, which a command line can't give; "
            "use `StreamMemory` from Python."
        )
    questions = [question_for(question, codec) for question in options.questions]
    story = read_sentences(lines, source) if codec.kind == "text" else read_numbers(lines, source)
    refuse_unknown_items(story, source, codec)
    from remem.streaming.memory import StreamMemory

    memory = StreamMemory.open(options.model)
    memory.write_many(item for _, item in story.items)
    answers = [memory.query(question, top=options.top) for question in questions]
    tell_how_it_was_read(story, source)
    if options.format == "text":
        print("\n\n".join(map(answer_as_text, options.questions, answers)))
        return
    asked = [
        {"question": question, "answer": said.answer, "top": said.top}
        for question, said in zip(options.questions, answers, strict=True)
    ]
    print(json.dumps({"questions": asked, "segments": memory.state.segments, "items": memory.state.items}, indent=1))


def read_sentences(lines: list[str], source: str) -> Story:
    """Sentences of plain text; or of bAbI's format, if every line has a number, without its questions."""
    from remem.data.babi_format import words_of

    texts = {number: line.strip() for number, line in enumerate(lines, start=1) if line.strip()}
    numbered = {number: _NUMBERED.fullmatch(text) for number, text in texts.items()}
    skipped = stories = 0
    if all(numbered.values()):
        parts = {number: match.groups() for number, match in numbered.items() if match}
        texts = {number: text for number, (_, text) in parts.items() if "\t" not in text}
        skipped, stories = len(parts) - len(texts), sum(head == "1" for head, _ in parts.values())
    items = []
    for number, text in texts.items():
        for sentence in map(str.strip, _SENTENCE_END.split(text)):
            if words_of(sentence):
                items.append((number, sentence))
            elif any(map(str.isalnum, sentence)):  # not mere marks: to pass over it would lose a sentence
                raise BadInput(
                    f"{source}, line {number}: {_quoted(sentence)} holds no word that can be read; "
                    "expected words of the letters a to z and digits."
                )
    if not items:
        only = " but questions" if skipped else ""
        raise BadInput(f"{source} holds no sentence{only}; expected a story, such as 'Mary went to the garden.'")
    return Story(items, skipped, stories)


def read_passage(lines: list[str], source: str) -> Story:
    """Sentences of ordinary text, with their marks, as models that choose among candidates were trained on."""
    from remem.data.words import sentences, tokenize

    items = [
        (number, " ".join(words)) for number, line in enumerate(lines, start=1) for words in sentences(tokenize(line))
    ]
    if not items:
        raise BadInput(f"{source} holds no sentence; expected a text, such as 'The man went home.'")
    return Story(items)


def read_numbers(lines: list[str], source: str) -> Story:
    """Item numbers, separated by whitespace or commas."""
    rows = [(number, line.replace(",", " ").split()) for number, line in enumerate(lines, start=1)]
    items = [(number, as_number(entry)) for number, row in rows for entry in row]
    if not items:
        raise BadInput(f"{source} holds no item; expected numbers separated by spaces or commas.")
    return Story(items)


def read_lines(story: Path | None) -> tuple[str, list[str]]:
    """The story's name in messages, and its lines."""
    from remem.data.babi_store import decode_lines

    path = None if story is None or str(story) == "-" else story
    source = "standard input" if path is None else str(path)
    # a terminal would wait without a word; who writes `--story -` means to type
    if path is None and (sys.stdin is None or (story is None and sys.stdin.isatty())):
        raise BadInput("There is no story; expected a file named with --story, or text piped to standard input.")
    try:
        data = sys.stdin.buffer.read() if path is None else path.read_bytes()
    except OSError as error:
        reason = {FileNotFoundError: "does not exist", IsADirectoryError: "is a folder"}.get(
            type(error), f"cannot be read ({error.strerror})"
        )
        raise BadInput(f"{source} {reason}; expected a text file with the story.") from None
    return source, decode_lines(data.removeprefix(BOM_UTF8), source)


def as_number(entry: str) -> int | str:
    """The number; or the text as it is, which no codec of numbers accepts."""
    # int() would also take signs, underscores and other scripts' digits, and break off at thousands of them
    return int(entry) if entry.isascii() and entry.isdigit() and len(entry) < 20 else entry


def question_for(text: str, codec: Codec) -> Any:
    """The question as the codec takes it, refused here if it can't be asked."""
    from remem.data.babi_format import words_of

    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"The question {_quoted(text)} is not UTF-8 text.") from None
    if codec.kind != "text":
        codec.encode_question(number := as_number(text.strip()))
        return number
    if unknown := _unknown(((0, word) for word in words_of(text)), codec.word_index):
        named = _some([_quoted(word) for word in unknown])
        raise BadInput(f"The question {_quoted(text)} holds {_words(unknown)}: {named}. {_advice(codec)}")
    codec.encode_question(text)
    return text


def refuse_unknown_items(story: Story, source: str, codec: Codec) -> None:
    """Name everything the model can't read, with its lines."""
    from remem.data.babi_format import words_of

    if codec.kind == "text":
        words = ((number, word) for number, sentence in story.items for word in words_of(sentence))
        if unknown := _unknown(words, codec.word_index):
            raise BadInput(f"{source} holds {_words(unknown)}: {_with_lines(unknown)}. {_advice(codec)}")
    elif codec.kind in ("ids", "clicks") and (unknown := _unknown(story.items, range(codec.num_items or 0))):
        raise BadInput(
            f"{source} holds what is no item of this model: {_with_lines(unknown)}. "
            f"Expected integers from 0 to {codec.num_items - 1}, separated by spaces or commas."
        )


def _unknown(entries: Iterable[tuple[int, Any]], known: Container[Any]) -> dict[Any, list[int]]:
    """Entries that are not known, in order, each with the lines it stands on."""
    found: dict[Any, list[int]] = {}
    for number, entry in entries:
        if entry not in known and number not in (lines := found.setdefault(entry, []))[-1:]:
            lines.append(number)
    return found


def _words(unknown: dict[Any, list[int]]) -> str:
    return "a word this model does not know" if len(unknown) == 1 else f"{len(unknown)} words this model does not know"


def _advice(codec: Codec) -> str:
    return f"The model knows {codec.num_items} words; rephrase with them alone, or train on text that holds the others."


def _with_lines(unknown: dict[Any, list[int]]) -> str:
    return _some([f"{_quoted(entry)} ({_lines(numbers)})" for entry, numbers in unknown.items()])


def _lines(numbers: list[int]) -> str:
    shown = [str(number) for number in numbers[:_MOST_LINES]] + ["..."] * (len(numbers) > _MOST_LINES)
    return ("line " if len(numbers) == 1 else "lines ") + ", ".join(shown)


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _quoted(entry: Any) -> str:
    return repr(entry if not isinstance(entry, str) or len(entry) <= 60 else entry[:57] + "...")


def answer_as_text(question: str, said: Answer) -> str:
    """The question with its best answer, then the likeliest answers in two columns."""
    width = max(len(str(answer)) for answer, _ in said.top)
    rows = [f"  {answer!s:<{width}}  {probability:7.2%}" for answer, probability in said.top]
    return "\n".join([f"{' '.join(question.split())} -> {said.answer}", *rows])


def tell_how_it_was_read(story: Story, source: str) -> None:
    """What was passed over or joined, to the person at the terminal."""
    if story.skipped_questions:
        plural = "" if story.skipped_questions == 1 else "s"
        print(f"{source}: skipped {story.skipped_questions} question line{plural}.", file=sys.stderr)
    if story.stories > 1:
        print(f"{source}: {story.stories} stories, read as one stream.", file=sys.stderr)
