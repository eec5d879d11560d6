"""A tiny twin of bAbI for tests and trials: generated stories in the original file format, tasks 1 and 6.

The people, rooms and sentence forms are few, so that a small model learns them in seconds, but the files pass through
the same import, parser and loader as the originals.
"""

from __future__ import annotations

from pathlib import Path

from remem.data.random import StableRandom

_PEOPLE = ("Mary", "John", "Sandra", "Daniel")
_ROOMS = ("kitchen", "garden", "office", "hallway")
_VERBS = ("went", "moved", "journeyed")


def story_lines(random: StableRandom, *, task: int, num_questions: int) -> list[str]:
    """One story: two moves, then a question about somebody who has moved, `num_questions` times."""
    room: dict[int, int] = {}
    moved_at: dict[int, int] = {}
    lines: list[str] = []
    for _ in range(num_questions):
        for _ in range(2):
            person, place, verb = (int(random.integers(n, 1)[0]) for n in (len(_PEOPLE), len(_ROOMS), len(_VERBS)))
            lines.append(f"{len(lines) + 1} {_PEOPLE[person]} {_VERBS[verb]} to the {_ROOMS[place]}.")
            room[person], moved_at[person] = place, len(lines)
        asked = sorted(room)[int(random.integers(len(room), 1)[0])]
        if task == 1:
            question, answer = f"Where is {_PEOPLE[asked]}?", _ROOMS[room[asked]]
        else:
            other = int(random.integers(len(_ROOMS), 1)[0]) if random.integers(2, 1)[0] else room[asked]
            question, answer = f"Is {_PEOPLE[asked]} in the {_ROOMS[other]}?", "yes" if other == room[asked] else "no"
        lines.append(f"{len(lines) + 1} {question}\t{answer}\t{moved_at[asked]}")
    return lines


def write_twin(folder: Path, *, stories: int = 60, num_questions: int = 3, seed: int = 0) -> Path:
    """Write tasks 1 and 6, train, valid and test, as the original archive lays them out; returns the folder."""
    names = {1: "single-supporting-fact", 6: "yes-no-questions"}
    for task, name in names.items():
        for split, edition, count in (
            ("train", "en-10k", stories),
            ("test", "en-10k", max(2, stories // 4)),
            ("valid", "en-valid-10k", max(2, stories // 4)),
        ):
            random = StableRandom(seed, "twin", task, split)
            lines = [line for _ in range(count) for line in story_lines(random, task=task, num_questions=num_questions)]
            file = f"qa{task}_{name}_{split}.txt" if edition == "en-10k" else f"qa{task}_{split}.txt"
            path = folder / edition / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
    return folder
