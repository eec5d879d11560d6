"""NarrativeQA's files to prepared data: `remem data import PATH --task narrativeqa`.

Read are the official `summaries.csv` and `qaps.csv`, and dumps of one JSON list a split (`dev.json`, `test.json`: a
question with its summary an entry). Both hold their text already cut into words, which are kept but for
the case of letters. Summaries without words (raw text) and stories of FairytaleQA become unlabelled documents, cut into
words by `remem.data.words`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np

from remem.data.babi_format import MalformedFile
from remem.data.prepared import Writer, replacing
from remem.data.sources import base, entry_of, files_of, json_of, lines_of
from remem.data.words import tokenize
from remem.errors import BadInput

SPLITS = ("train", "valid", "test", "unlabelled")
UNKNOWN_EVIDENCE = -1
_DUMPS = {"train.json": "train", "dev.json": "valid", "valid.json": "valid", "test.json": "test"}
_STORY = re.compile(r".*-story\.csv$")
_TWICE = "another file has asked about this document before; give every file once"
_SETS = {"train": "train", "valid": "valid", "dev": "valid", "val": "valid", "test": "test"}


@dataclass
class Asked:
    """A question with both answers, and the first word of the summary that is one of them."""

    question: list[str]
    answers: tuple[list[str], list[str]]
    evidence: int = UNKNOWN_EVIDENCE


@dataclass
class Document:
    """The words of a summary, and what is asked about it."""

    split: str
    words: list[str]
    questions: list[Asked] = field(default_factory=list)


def import_narrativeqa(paths: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Check all files at `paths` and prepare them in `folder`; returns the manifest. All or nothing is kept."""
    documents: dict[str, Document] = {}
    asked: dict[str, list[Asked]] = {}
    kept: dict[str, int] = {}
    for path in paths:
        for name, file in files_of(path, _is_ours):
            # hundreds of stories have a file each
            source = "*-story.csv" if _STORY.match(name) else name
            kept[source] = kept.get(source, 0) + _read(name, file, documents, asked)
    for identity, questions in asked.items():
        # what a dump asks about a document is what the official file asks; the dump also tells where the answer stands
        if identity in documents and not documents[identity].questions:
            documents[identity].questions += questions
    if not any(document.questions for document in documents.values()):
        given = ", ".join(map(str, paths))
        raise BadInput(
            f"{given}: no question of NarrativeQA there; expected summaries.csv and qaps.csv, or dev.json, test.json."
        )
    for identity, document in list(documents.items()):
        if not document.questions:
            # the summaries kept for testing are not to be seen before, with or without their questions
            if document.split in ("train", "unlabelled"):
                document.split = "unlabelled"
            else:
                del documents[identity]
    with replacing(folder) as writer:
        counts = _write(writer, documents)
        without = sum(len(questions) for identity, questions in asked.items() if identity not in documents)
        return writer.finish("narrativeqa", counts=counts, sources=kept, questions_without_summary=without)


def _is_ours(name: str) -> bool:
    file = base(name)
    return file in _DUMPS or file in ("summaries.csv", "qaps.csv") or bool(_STORY.match(file))


def _read(name: str, file: BufferedIOBase, documents: dict[str, Document], asked: dict[str, list[Asked]]) -> int:
    kind = base(name)
    if kind in _DUMPS:
        return _read_dump(name, file, _DUMPS[kind], documents)
    if kind == "qaps.csv":
        return _read_questions(name, file, asked)
    if kind == "summaries.csv":
        return _read_summaries(name, file, documents)
    return _read_story(name, file, documents)


def _read_questions(name: str, file: BufferedIOBase, asked: dict[str, list[Asked]]) -> int:
    rows, earlier, columns = 0, set(asked), ("question_tokenized", "answer1_tokenized", "answer2_tokenized")
    for number, row in _table(name, file, "document_id", *columns):
        words = [row[column].lower().split() for column in columns]
        if not all(words):
            raise MalformedFile(name, number, "a question or an answer has no word")
        if row["document_id"] in earlier:
            raise MalformedFile(name, number, _TWICE)
        asked.setdefault(row["document_id"], []).append(Asked(words[0], (words[1], words[2])))
        rows += 1
    return rows


def _read_dump(name: str, file: BufferedIOBase, split: str, documents: dict[str, Document]) -> int:
    entries = json_of(file, name)
    if not isinstance(entries, list):
        raise MalformedFile(name, 1, "expected a list of questions")
    earlier = {identity for identity, document in documents.items() if document.questions}
    for number, entry in enumerate(entries, start=1):
        with entry_of(name, number):
            if not isinstance(entry["_id"], str):
                raise BadInput(f"_id is {entry['_id']!r}; expected text.")
            if entry["_id"] in earlier:
                raise BadInput(f"{_TWICE}.")
            words = entry["context.tokens"].lower().split()
            if not words:
                raise BadInput("the summary has no word.")
            document = documents.setdefault(entry["_id"], Document(split, words))
            if not document.questions:  # an unlabelled copy of the summary may have come first
                document.split, document.words = split, words
            if document.words != words:
                raise BadInput("its summary differs from that of an earlier question of the same document.")
            first, second = (text.lower().split() for text in entry["ground_truths"])
            question = entry["question.tokens"].lower().split()
            if not question or not first or not second:
                raise BadInput("a question or an answer has no word.")
            evidence = _evidence(entry.get("answers"), words, (first, second))
            document.questions.append(Asked(question, (first, second), evidence))
    return len(entries)


def _evidence(span: Any, words: list[str], answers: tuple[list[str], list[str]]) -> int:
    """Where the answer stands, if the dump's best span is an answer word for word and stands nowhere else."""
    if span is None:
        return UNKNOWN_EVIDENCE
    (text, places) = span
    plain = _content(text.lower().split())
    if len(places) != 1 or not plain or plain not in map(_content, answers):
        return UNKNOWN_EVIDENCE
    first = int(places[0][0])
    if not 0 <= first < len(words):
        raise BadInput(f"its answer begins at word {first} of {len(words)}.")
    return first


def _content(words: list[str]) -> list[str]:
    return [word for word in words if word not in ("the", "a", "an") and any(map(str.isalnum, word))]


def _read_summaries(name: str, file: BufferedIOBase, documents: dict[str, Document]) -> int:
    rows = 0
    for number, row in _table(name, file, "document_id", "set", "summary"):
        if row["set"] not in _SETS:
            raise MalformedFile(name, number, f"set is {row['set']!r}; expected train, valid or test")
        published = row.get("summary_tokenized")
        words = published.lower().split() if published else tokenize(row["summary"])
        if not words:
            raise MalformedFile(name, number, "the summary has no word")
        identity = row["document_id"]
        if identity not in documents or not documents[identity].questions:
            documents[identity] = Document(_SETS[row["set"]], words)
        rows += 1
    return rows


def _read_story(name: str, file: BufferedIOBase, documents: dict[str, Document]) -> int:
    words: list[str] = []
    rows = 0
    for _, row in _table(name, file, "section", "text"):
        words += tokenize(row["text"])
        rows += 1
    if not words:
        raise MalformedFile(name, 1, "the story has no word")
    documents[f"fairytale/{base(name)}"] = Document("unlabelled", words)
    return rows


def _table(name: str, file: BufferedIOBase, *columns: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a csv file with the number of the line they end on."""
    reader = csv.DictReader((line + "\n" for _, line in lines_of(file, name)), strict=True)
    try:
        missing = [column for column in columns if column not in (reader.fieldnames or [])]
        if missing:
            raise MalformedFile(name, 1, f"the column {missing[0]!r} is missing")
        for row in reader:
            if None in row or None in row.values():
                raise MalformedFile(name, reader.line_num, "the row has more or fewer fields than the header")
            yield reader.line_num, row
    except csv.Error as error:
        raise MalformedFile(name, reader.line_num, f"this is not a csv row ({error})") from None


def _write(writer: Writer, documents: dict[str, Document]) -> dict[str, dict[str, int]]:
    """`tokens` holds every text one after another; `documents` and `questions` say where each begins and ends."""
    numbers: dict[str, int] = {}
    counts = {split: {"documents": 0, "questions": 0} for split in SPLITS}

    def put(words: list[str]) -> list[int]:
        codes = np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int32)
        end = writer.append("tokens", codes)
        return [end - len(words), end]

    for number, (_, document) in enumerate(sorted(documents.items())):
        row = [*put(document.words), SPLITS.index(document.split)]
        writer.append("documents", np.array([row], dtype=np.int64))
        for q in document.questions:
            row = [number, *put(q.question), *put(q.answers[0]), *put(q.answers[1]), q.evidence]
            writer.append("questions", np.array([row], dtype=np.int64))
        counts[document.split]["documents"] += 1
        counts[document.split]["questions"] += len(document.questions)
    writer.write_lines("words", numbers)
    return {split: found for split, found in counts.items() if found["documents"]}
