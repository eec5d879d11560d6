"""Tiny twins of the long tasks for tests and trials: generated files in the published formats.

They pass through the same imports and loaders as the originals, and what they ask can be learned from what they hold.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from remem.data.random import StableRandom

_NAMES = ("Anna", "Boris", "Clara", "Dmitri", "Elsa", "Felix", "Greta", "Hugo")
_PLACES = ("harbour", "mill", "old castle", "market", "forest", "river bank", "chapel", "inn")
_ACTIONS = ("dancing", "swimming", "painting", "cooking", "running")


def _summary(random: StableRandom, questions: int) -> tuple[list[str], list[tuple[str, str, int]]]:
    """Sentences, and for some of the people where they went, with the number of the sentence that says so."""
    people, places = random.permutation(len(_NAMES)), random.permutation(len(_PLACES))
    sentences, asked = [], []
    for person, place in zip(people[: questions + 1], places, strict=False):
        name, where = _NAMES[person], _PLACES[place]
        sentences += [f"One day {name} left the town and walked to the {where} .", "It was late , and nobody knew ."]
        asked.append((name, where, len(sentences) - 2))
    return sentences, asked[:questions]


def write_narrativeqa(folder: Path, *, documents: int = 6, questions: int = 4, form: str = "dumps") -> None:
    """Summaries of the splits valid and test (and train, as csv) in one of the two published forms."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = ("valid", "test") if form == "dumps" else ("train", "valid", "test")
    entries: dict[str, list[dict[str, Any]]] = {split: [] for split in splits}
    summaries, qaps = [], []
    for split in splits:
        for number in range(documents):
            sentences, asked = _summary(StableRandom("narrativeqa twin", split, number), questions)
            text, identity = " ".join(sentences), f"{split}{number}"
            summaries.append([identity, split, text, text])
            for name, where, place in asked:
                first = (
                    len(" ".join(sentences[:place]).split()) + len(sentences[place].split()) - 1 - len(where.split())
                )
                question, answers = f"Where did {name} walk ?", [f"The {where} .", where]
                entries[split].append(
                    {
                        "_id": identity, "context.tokens": text, "question.tokens": question, "ground_truths": answers,
                        "answers": [where, [[first, first + len(where.split()) - 1]]],
                    }
                )  # fmt: skip
                qaps.append([identity, split, question, *answers, question, *answers])
    if form == "dumps":
        for split, name in (("valid", "dev.json"), ("test", "test.json")):
            (folder / name).write_text(json.dumps(entries[split]))
        return
    _write_csv(folder / "summaries.csv", ["document_id", "set", "summary", "summary_tokenized"], summaries)
    header = ["document_id", "set", "question", "answer1", "answer2"]
    tokenized = ["question_tokenized", "answer1_tokenized", "answer2_tokenized"]
    _write_csv(folder / "qaps.csv", [*header, *tokenized], qaps)


def _write_csv(path: Path, header: list[str], rows: list[list[str]]) -> None:
    with path.open("w", newline="") as out:
        csv.writer(out).writerows([header, *rows])


def write_activitynetqa(folder: Path, *, videos: int = 12) -> None:
    """Questions of all splits in `dataset/`, and captions of the train and val videos in `captions/`."""
    (folder / "dataset").mkdir(parents=True, exist_ok=True)
    (folder / "captions").mkdir(exist_ok=True)
    for split in ("train", "val", "test"):
        questions, answers, captions = [], [], {}
        for number in range(videos):
            random, name = StableRandom("activitynetqa twin", split, number), f"{split}{number}"
            first, second = (_ACTIONS[i] for i in random.permutation(len(_ACTIONS))[:2])
            asked = (("what is done first", first, 0), ("what is done at the end", second, 2),
                     (f"is anybody {first}", "yes", 3), ("is it snowing", "no", 3))  # fmt: skip
            for i, (question, answer, kind) in enumerate(asked):
                key = f"v_{name}_{i}"
                questions.append({"video_name": name, "question": question, "question_id": key})
                answers.append({"answer": answer, "type": kind, "question_id": key})
            half = 5 + int(random.integers(20, 1)[0])
            captions[f"v_{name}"] = {
                "duration": 2.0 * half, "timestamps": [[0.0, half], [half - 2.0, 2.0 * half]],
                "sentences": [f"Somebody is {first}.", f"Then they are {second}."],
            }  # fmt: skip
        (folder / "dataset" / f"{split}_q.json").write_text(json.dumps(questions))
        (folder / "dataset" / f"{split}_a.json").write_text(json.dumps(answers))
        if split != "test":
            name = {"train": "train.json", "val": "val_1.json"}[split]
            (folder / "captions" / name).write_text(json.dumps(captions))


def hashed_sentences(sentences: Sequence[str]) -> npt.NDArray[np.float32]:
    """In place of a sentence encoder: sixteen numbers that depend on the sentence alone."""
    rows = [StableRandom("sentence", sentence).integers(2001, 16) for sentence in sentences]
    return ((np.array(rows).reshape(-1, 16) - 1000) / 1000).astype(np.float32)


def histories(users: int, events: int, items: int = 40) -> list[list[int]]:
    """Users who go back to a few items of their own, and now and then take another; the first item has number 1."""
    found = []
    for user in range(users):
        random = StableRandom("click twin", user)
        own = 1 + random.permutation(items)[:4]
        length = events - int(random.integers(max(1, events // 4), 1)[0])
        fresh = random.integers(4, length) == 0
        choice = np.where(fresh, 1 + random.integers(items, length), own[random.integers(4, length)])
        found.append(choice.tolist())
    return found


def write_clicks(folder: Path, task: str, *, users: int = 12, events: int = 60) -> None:
    """A log in the published form of a task; a quarter of the users are those kept for testing."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = histories(users, events)
    test, train = logs[: users // 4], logs[users // 4 :]
    if task == "lastfm":
        for name, part in (("train", train), ("test", test)):
            (folder / f"event-{name}.txt").write_text("".join(" ".join(map(str, log)) + "\n" for log in part))
    elif task == "assistments":
        for number, part in ((1, train), (5, test)):
            lines = []
            for user, log in enumerate(part):
                solved = [str(int(item % 2 == 0)) for item in log]
                lines += [f"{user},{user}", ",".join(map(str, log)), ",".join("1" for _ in log), ",".join(solved)]
            (folder / f"assist2017_pid_test{number}.csv").write_text("\n".join(lines) + "\n")
    elif task == "xlong":
        for name, part in (("train", train), ("test", test)):
            rows = [
                [256, user, ",".join(map(str, log[:-1])), log[-1], 41, "1,2", "3,4"] for user, log in enumerate(part)
            ]
            text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
            (folder / f"{name}_corpus_total_dual.txt").write_text(text)
    else:
        rows = [
            [f"u{user}", f"item{item}", str(time)] for user, log in enumerate(logs) for time, item in enumerate(log)
        ]
        order = StableRandom("log order").permutation(len(rows))
        _write_csv(folder / "log.csv", ["user", "item", "time"], [rows[i] for i in order])
