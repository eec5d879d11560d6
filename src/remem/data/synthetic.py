"""The synthetic task of Appendix B, to the letter: streams of facts, and the evidence that decides each query's answer.

A logic chain is (evidence, query, answer): R_c facts of the query's group, which stand next to each other somewhere in
the stream, or with `apart` in this order but anywhere in one half of it. Chains, streams and placement come from one
data seed and are bit-identical on every machine.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from remem.data.batch import QueryBatch
from remem.data.dataset import Bucket, Split
from remem.data.random import StableRandom
from remem.errors import BadInput
from remem.settings.tasks import SyntheticTask

Ints = npt.NDArray[np.int64]
PARTS = ("early", "later")
_LEAD = 4  # segments before the one with the evidence, in streams that ask how long it lasts


def check_sizes(task: SyntheticTask) -> None:
    """Refuse sizes for which the task has no meaning, with the reason."""
    for name in (
        "num_groups", "num_facts", "stream_len", "num_queries", "num_answers", "evidence_len",
        "samples_per_chain", "eval_samples_per_chain", "segment_len",
    ):  # fmt: skip
        if getattr(task, name) < 1:
            raise BadInput(f"{name} is {getattr(task, name)}; expected at least 1.")
    for name in ("num_facts", "num_queries"):
        if getattr(task, name) % task.num_groups:
            raise BadInput(
                f"{name} is {getattr(task, name)}, which {task.num_groups} groups cannot share evenly; "
                "choose a multiple of num_groups."
            )
    per_group = task.num_facts // task.num_groups
    if per_group < task.evidence_len:
        raise BadInput(
            f"A group holds {per_group} facts, but an evidence takes {task.evidence_len} different ones; "
            "raise num_facts or lower evidence_len or num_groups."
        )
    if task.stream_len < 2 * task.evidence_len:
        raise BadInput(
            f"stream_len is {task.stream_len}; each half must hold an evidence of {task.evidence_len} facts."
        )
    if task.num_facts**task.evidence_len >= 2**62:
        raise BadInput("num_facts ** evidence_len must stay below 2**62, so that an evidence has one integer code.")
    if _arrangements(per_group, task.evidence_len) < 2 * task.num_answers:
        raise BadInput(
            f"{per_group} facts a group make too few evidences of {task.evidence_len} for {task.num_answers} answers."
        )
    places = comb(task.stream_len, task.evidence_len) if task.apart else task.stream_len - task.evidence_len
    expected = places * (task.num_answers - 1) / task.num_facts**task.evidence_len
    if expected > 7:
        raise BadInput(
            f"A stream of stream_len {task.stream_len} would hold {expected:.0f} evidences of other answers by chance; "
            "raise num_facts or evidence_len, or lower stream_len or num_answers."
        )


def _arrangements(facts: int, length: int) -> int:
    return int(np.prod([facts - i for i in range(length)], dtype=object))


def _codes(streams: Ints, task: SyntheticTask) -> Ints:
    """One integer for each run of R_c consecutive facts: [..., l] -> [..., l - R_c + 1]."""
    windows = np.lib.stride_tricks.sliding_window_view(streams, task.evidence_len, axis=-1)
    powers: Ints = task.num_facts ** np.arange(task.evidence_len, dtype=np.int64)
    return windows @ powers


def logic_chains(task: SyntheticTask) -> Ints:
    """Evidence of every query-answer pair: [R_q, R_a, R_c] facts of the query's group, different for each answer."""
    check_sizes(task)
    random = StableRandom(task.data_seed, "chains")
    facts = random.permutation(task.num_facts).reshape(task.num_groups, -1)
    group_of_query = random.permutation(task.num_queries) % task.num_groups
    chains = np.empty((task.num_queries, task.num_answers, task.evidence_len), dtype=np.int64)
    for query, group in enumerate(group_of_query):
        doubles = np.arange(task.num_answers)
        while len(doubles):
            picks = random.permutations(len(doubles), facts.shape[1])[:, : task.evidence_len]
            chains[query, doubles] = facts[group][picks]
            _, firsts = np.unique(_codes(chains[query], task), return_index=True)
            doubles = np.setdiff1d(np.arange(task.num_answers), firsts)
    return chains


def _place(task: SyntheticTask, chains: Ints, split: str, per_chain: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Streams with their query, answer and evidence start; half of each chain's evidence early, half later."""
    random = StableRandom(task.data_seed, "streams", split)
    query, answer = (np.repeat(index.ravel(), per_chain) for index in np.indices(chains.shape[:2]))
    count, half = len(query), task.stream_len // 2
    streams = random.integers(task.num_facts, count, task.stream_len)
    later = np.arange(count) % 2
    rooms = np.where(later, task.stream_len - half, half)
    window = later[:, None] * half + _places(task, random, rooms)
    return _with_evidence(task, random, streams, chains, query, answer, window), query, answer, window[:, 0]


def _places(task: SyntheticTask, random: StableRandom, rooms: Ints) -> Ints:
    """Where the facts of each stream's evidence stand, in turn: [count, R_c] places of so many there are."""
    length = task.evidence_len
    if not task.apart:
        last = (rooms - length + 1).astype(np.uint64)
        return (random.words(len(rooms)) % last).astype(np.int64)[:, None] + np.arange(length)
    longest = int(rooms.max())
    words = random.words(len(rooms), longest)
    words[np.arange(longest) >= rooms[:, None]] = np.iinfo(np.uint64).max  # no place of a shorter half
    return np.sort(np.argsort(words, axis=1, kind="stable")[:, :length], axis=1)


def _with_evidence(
    task: SyntheticTask, random: StableRandom, streams: Ints, chains: Ints, query: Ints, answer: Ints, window: Ints
) -> Ints:
    """The streams with each one's evidence in its places, and with no other answer's."""
    rows, evidence = np.arange(len(streams))[:, None], chains[query, answer]
    streams[rows, window] = evidence
    # a stream that happens to hold another answer's evidence has two answers: draw its other facts again
    several = _with_two_in_order if task.apart else _with_two_answers
    doubtful = several(task, streams, query, chains)
    while len(doubtful):
        streams[doubtful] = random.integers(task.num_facts, len(doubtful), streams.shape[1])
        streams[doubtful[:, None], window[doubtful]] = evidence[doubtful]
        doubtful = doubtful[several(task, streams[doubtful], query[doubtful], chains)]
    return streams


def _with_two_answers(task: SyntheticTask, streams: Ints, query: Ints, chains: Ints) -> Ints:
    """Streams that hold the evidence of more than one answer to their query."""
    found, codes = [], _codes(chains, task)
    for q in range(task.num_queries):
        rows = np.flatnonzero(query == q)
        hits = np.isin(_codes(streams[rows], task), codes[q])
        several = rows[hits.sum(axis=1) > 1]
        held = [np.intersect1d(_codes(streams[row], task), codes[q]) for row in several]
        found += [row for row, answers in zip(several, held, strict=True) if len(answers) > 1]
    return np.array(found, dtype=np.int64)


def _with_two_in_order(task: SyntheticTask, streams: Ints, query: Ints, chains: Ints) -> Ints:
    """The same where an evidence is its facts in their order, whatever stands between them."""
    found = []
    for q in range(task.num_queries):
        rows = np.flatnonzero(query == q)
        held = np.zeros((len(rows), task.num_facts), dtype=bool)
        np.put_along_axis(held, streams[rows], True, axis=1)
        # few streams hold all facts of an evidence; how many of these have been met in turn?
        row, answer = np.nonzero(held[:, chains[q]].all(axis=2))
        # one past the last asks for a fact that there is not
        evidences = np.pad(chains[q][answer], ((0, 0), (0, 1)), constant_values=-1)
        pairs, met = np.arange(len(row)), np.zeros(len(row), dtype=np.int64)
        for facts in streams[rows[row]].T:
            met += evidences[pairs, met] == facts
        found.append(rows[np.bincount(row[met == task.evidence_len], minlength=len(rows)) > 1])
    return np.concatenate(found)


def _tensor(values: npt.ArrayLike) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def as_split(task: SyntheticTask, streams: Ints, query: Ints, answer: Ints, start: Ints) -> Split:
    """Facts to padded tensors: each stream is cut every N items and asked one question at its end."""
    count, n = len(streams), task.segment_len
    num_segments = -(-task.stream_len // n)
    items = np.zeros((count, num_segments * n), dtype=np.int16 if task.num_facts < 2**15 else np.int32)
    items[:, : task.stream_len] = streams
    mask = np.tile(np.arange(num_segments * n) < task.stream_len, (count, 1))
    order = np.arange(count * num_segments).reshape(count, num_segments)
    queries = QueryBatch(
        tokens=_tensor(query[:, None, None]),
        token_mask=torch.ones(count, 1, 1, dtype=torch.bool),
        position=torch.full((count, 1), num_segments),
        answer=_tensor(answer[:, None]),
        mask=torch.ones(count, 1, dtype=torch.bool),
        part=_tensor((start >= task.stream_len // 2).astype(np.int64)[:, None]),
        evidence=_tensor((start // n)[:, None]),
    )
    bucket = Bucket(_tensor(order), torch.ones(count, num_segments, dtype=torch.bool), queries, torch.arange(count))
    return Split(_tensor(items.reshape(-1, n)), _tensor(mask.reshape(-1, n)), (bucket,), repeats=False)


def synthetic_split(task: SyntheticTask, split: str) -> Split:
    """Train, valid or test streams, each drawn apart from the same logic chains."""
    per_chain = task.samples_per_chain if split == "train" else task.eval_samples_per_chain
    return as_split(task, *_place(task, logic_chains(task), split, per_chain))


def split_beyond(task: SyntheticTask, beyond: int, count: int) -> Split:
    """Streams of any length, asked `beyond` segments after the one that holds the evidence: what lasts, and how long.

    Before the evidence stand as many facts as four segments hold. It stands together, also in a task where it need not.
    """
    chains, random = logic_chains(task), StableRandom(task.data_seed, "beyond", beyond)
    pairs = random.permutation(task.num_queries * task.num_answers)
    query, answer = np.divmod(np.resize(pairs, count), task.num_answers)
    n, lead = task.segment_len, _LEAD * task.segment_len
    start = lead + random.integers(max(1, n - task.evidence_len + 1), count)
    length = lead + max(n, task.evidence_len) + beyond * n
    longer = replace(task, stream_len=length)
    check_sizes(longer)
    streams = random.integers(task.num_facts, count, length)
    window = start[:, None] + np.arange(task.evidence_len)
    streams = _with_evidence(task, random, streams, chains, query, answer, window)
    return as_split(longer, streams, query, answer, start)


def export_jsonl(task: SyntheticTask, split: str, path: Path) -> int:
    """Write a split as JSON lines (`stream`, `query`, `answer`, `evidence_start`); returns the number of streams."""
    per_chain = task.samples_per_chain if split == "train" else task.eval_samples_per_chain
    columns = _place(task, logic_chains(task), split, per_chain)
    try:
        out = path.open("w")
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}); name a file in a folder that exists.") from None
    with out:
        for stream, query, answer, start in zip(*columns, strict=True):
            row = {"stream": stream.tolist(), "query": int(query), "answer": int(answer), "evidence_start": int(start)}
            out.write(json.dumps(row) + "\n")
    return len(columns[0])


def read_jsonl(task: SyntheticTask, path: Path) -> Split:
    """Streams from JSON lines as `export_jsonl` writes them; a malformed line is refused with its number and reason."""
    rows: list[tuple[list[int], int, int, int]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as text ({error}).") from None
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(_read_row(task, json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise BadInput(f"{path}, line {number}: {reason}.") from None
    if not rows:
        raise BadInput(f"{path} holds no stream; expected one JSON object a line.")
    streams, query, answer, start = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return as_split(task, streams, query, answer, start)


def _read_row(task: SyntheticTask, row: object) -> tuple[list[int], int, int, int]:
    last_start = task.stream_len - task.evidence_len
    limits = {"query": task.num_queries, "answer": task.num_answers, "evidence_start": last_start + 1}
    if not isinstance(row, dict):
        raise BadInput(f"expected an object with the fields stream, {', '.join(limits)}")
    values = [row[name] for name in limits]
    for (name, limit), value in zip(limits.items(), values, strict=True):
        if type(value) is not int or not 0 <= value < limit:
            raise BadInput(f"{name} is {value!r}; expected an integer from 0 to {limit - 1}")
    stream = row["stream"]
    if not isinstance(stream, list) or len(stream) != task.stream_len:
        raise BadInput(f"stream must be a list of {task.stream_len} facts")
    wrong = [fact for fact in stream if type(fact) is not int or not 0 <= fact < task.num_facts]
    if wrong:
        raise BadInput(f"{wrong[0]!r} is not a fact; expected integers from 0 to {task.num_facts - 1}")
    query, answer, start = (v for v in values if isinstance(v, int))
    return stream, query, answer, start
