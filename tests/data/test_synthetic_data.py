"""The synthetic task: chains, placement, unique answers, bit-identical splits."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_parts import CROWDED, SMALL

from remem.data.dataset import Split, evaluation_batches
from remem.data.random import StableRandom
from remem.data.synthetic import check_sizes, export_jsonl, logic_chains, split_beyond, synthetic_split
from remem.errors import BadInput
from remem.settings.tasks import SyntheticTask

TASKS = [SMALL, *CROWDED, replace(SMALL, stream_len=21), replace(SMALL, num_answers=2, evidence_len=3, stream_len=6)]


def exported(task: SyntheticTask, split: str, folder: Path) -> list[dict[str, Any]]:
    """The streams with the place of their evidence, which the tensors only tell to the segment."""
    export_jsonl(task, split, folder / "export.jsonl")
    return [json.loads(line) for line in (folder / "export.jsonl").read_text().splitlines()]


def streams_of(split: Split) -> list[list[int]]:
    """Every stream's items, put together again from the segments of its batch."""
    streams = []
    for batch in evaluation_batches(split, 7):
        stream = batch.stream
        for order, segments in zip(stream.order, stream.segment_mask, strict=True):
            table = order[segments]
            streams.append(stream.items[table][stream.item_mask[table]].tolist())
    return streams


def groups_of(chains: np.ndarray) -> dict[frozenset[int], list[int]]:
    """Queries by the set of facts their evidences use."""
    groups: dict[frozenset[int], list[int]] = {}
    for query, evidences in enumerate(chains):
        groups.setdefault(frozenset(evidences.ravel().tolist()), []).append(query)
    return groups


# reduced sizes with enough answers for every fact of a group to be used, and the paper's own
@pytest.mark.parametrize(
    "task", [replace(SMALL, evidence_len=3, num_answers=14), SyntheticTask()], ids=["reduced", "paper"]
)
def test_facts_and_queries_are_split_evenly_over_the_groups(task: SyntheticTask) -> None:
    groups = groups_of(logic_chains(task))
    facts, queries = task.num_facts // task.num_groups, task.num_queries // task.num_groups
    # equal sets of this size, together all facts: so each evidence lies in the one group of its query
    assert [len(group) for group in groups] == [facts] * task.num_groups
    assert [len(members) for members in groups.values()] == [queries] * task.num_groups
    assert frozenset().union(*groups) == frozenset(range(task.num_facts))


@pytest.mark.parametrize("task", [*TASKS, SyntheticTask()])
def test_evidences_of_a_query_differ_and_hold_no_fact_twice(task: SyntheticTask) -> None:
    chains = logic_chains(task)
    assert chains.shape == (task.num_queries, task.num_answers, task.evidence_len)
    for evidences in chains.tolist():
        assert len({tuple(evidence) for evidence in evidences}) == task.num_answers
        assert all(len(set(evidence)) == task.evidence_len for evidence in evidences)


def test_chains_are_a_function_of_the_data_seed_alone() -> None:
    chains = logic_chains(SMALL)
    assert (chains == logic_chains(replace(SMALL, samples_per_chain=1, stream_len=40, segment_len=3))).all()
    assert (chains != logic_chains(replace(SMALL, data_seed=1))).any()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_evidence_stands_where_evidence_start_says(task: SyntheticTask, split: str, tmp_path: Path) -> None:
    chains = logic_chains(task).tolist()
    rows = exported(task, split, tmp_path)
    for row in rows:
        window = row["stream"][row["evidence_start"] : row["evidence_start"] + task.evidence_len]
        assert window == chains[row["query"]][row["answer"]]
    query = synthetic_split(task, split).buckets[0].query
    assert query.evidence.flatten().tolist() == [row["evidence_start"] // task.segment_len for row in rows]


def test_an_evidence_takes_the_place_of_facts_that_may_repeat(tmp_path: Path) -> None:
    rows = exported(SMALL, "train", tmp_path)
    assert {len(row["stream"]) for row in rows} == {SMALL.stream_len}
    others = [
        fact
        for row in rows
        for place, fact in enumerate(row["stream"])
        if not 0 <= place - row["evidence_start"] < SMALL.evidence_len
    ]
    often = np.bincount(others, minlength=SMALL.num_facts) / len(others) * SMALL.num_facts
    assert len(often) == SMALL.num_facts
    assert ((often > 0.75) & (often < 1.25)).all()
    assert any(len(set(row["stream"])) < len(row["stream"]) for row in rows)


@pytest.mark.parametrize("task", TASKS)
def test_early_evidence_lies_in_the_first_half_and_later_evidence_in_the_second(
    task: SyntheticTask, tmp_path: Path
) -> None:
    rows, half = exported(task, "train", tmp_path), task.stream_len // 2
    parts = synthetic_split(task, "train").buckets[0].query.part.flatten().tolist()
    assert len(parts) == len(rows)
    for row, part in zip(rows, parts, strict=True):
        first, end = row["evidence_start"], row["evidence_start"] + task.evidence_len
        assert (first >= 0 and end <= half) if part == 0 else (half <= first and end <= task.stream_len)


def test_evidence_reaches_every_place_of_its_half(tmp_path: Path) -> None:
    task = replace(SMALL, stream_len=9, samples_per_chain=40)
    starts = {row["evidence_start"] for row in exported(task, "train", tmp_path)}
    # halves 0-3 and 4-8, evidence of two: nothing may begin at 3, whose evidence would cross the border
    assert starts == {0, 1, 2, 4, 5, 6, 7}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", ["train", "valid"])
def test_each_stream_and_query_has_one_answer(task: SyntheticTask, split: str, tmp_path: Path) -> None:
    chains = logic_chains(task).tolist()
    for row in exported(task, split, tmp_path):
        stream, answers = row["stream"], set()
        for answer, evidence in enumerate(chains[row["query"]]):
            for start in range(len(stream)):
                if stream[start : start + task.evidence_len] == evidence:
                    answers.add(answer)
        assert answers == {row["answer"]}


def test_a_reader_blind_to_order_reaches_two_thirds_at_most() -> None:
    """At the paper's sizes: it can only guess among the answers all of whose facts are somewhere in the stream."""
    task = SyntheticTask()
    split, chains = synthetic_split(task, "test"), logic_chains(task)
    (bucket,) = split.buckets
    streams = split.items.numpy()[bucket.order.numpy()].reshape(len(bucket.order), task.stream_len)
    asked, right = bucket.query.tokens[:, 0, 0].numpy(), bucket.query.answer[:, 0].numpy()
    held = np.zeros((len(streams), task.num_facts), dtype=bool)
    np.put_along_axis(held, streams.astype(np.int64), values=True, axis=1)
    possible = held[np.arange(len(streams))[:, None, None], chains[asked]].all(axis=-1)  # [streams, answers]
    assert possible[np.arange(len(streams)), right].all()
    assert 100 * (1 / possible.sum(axis=1)).mean() == pytest.approx(67.0, abs=0.1)


APART = [
    replace(SMALL, apart=True, stream_len=12),
    replace(SMALL, apart=True, stream_len=13, evidence_len=3, num_answers=5),  # a tenth of the first draws have two
    replace(SMALL, apart=True, num_groups=1, num_facts=6, stream_len=9, num_queries=2, evidence_len=1),
]


@pytest.mark.parametrize("task", APART)
def test_facts_that_stand_apart_keep_their_order_within_one_half_and_no_other_answers_facts_do(
    task: SyntheticTask, tmp_path: Path
) -> None:
    chains, half, gaps = logic_chains(task).tolist(), task.stream_len // 2, 0
    rows = exported(task, "train", tmp_path)
    parts = synthetic_split(task, "train").buckets[0].query.part.flatten().tolist()
    for row, part in zip(rows, parts, strict=True):
        stream, evidence = row["stream"], chains[row["query"]][row["answer"]]
        mine = range(half) if part == 0 else range(half, task.stream_len)
        places = [where for where in combinations(mine, task.evidence_len) if [stream[i] for i in where] == evidence]
        assert row["evidence_start"] in {where[0] for where in places}
        gaps += all(stream[i : i + task.evidence_len] != evidence for i in range(len(stream)))
        orders = set(combinations(stream, task.evidence_len))
        assert [tuple(each) in orders for each in chains[row["query"]]].count(True) == 1
    assert gaps > len(rows) / 2 or task.evidence_len == 1


def test_facts_that_stand_apart_reach_every_place_of_their_half(tmp_path: Path) -> None:
    task = replace(SMALL, apart=True, stream_len=9, samples_per_chain=200)
    starts = {row["evidence_start"] for row in exported(task, "train", tmp_path)}
    assert starts == {0, 1, 2, 4, 5, 6, 7}


@pytest.mark.parametrize("task", CROWDED)
def test_crowded_sizes_force_streams_to_be_drawn_again(task: SyntheticTask, tmp_path: Path) -> None:
    rows = exported(task, "train", tmp_path)
    first = StableRandom(task.data_seed, "streams", "train").integers(task.num_facts, len(rows), task.stream_len)
    redrawn = 0
    for row, draw in zip(rows, first.tolist(), strict=True):
        start, end = row["evidence_start"], row["evidence_start"] + task.evidence_len
        redrawn += row["stream"] != [*draw[:start], *row["stream"][start:end], *draw[end:]]
    # otherwise the test of unique answers would say nothing about the second draw
    assert redrawn > 0


def test_train_valid_and_test_streams_differ() -> None:
    splits = {name: synthetic_split(SMALL, name) for name in ("train", "valid", "test")}
    seen = [tuple(stream) for split in splits.values() for stream in streams_of(split)]
    assert len(set(seen)) == len(seen) == sum(map(len, splits.values()))


def test_every_chain_has_its_number_of_samples_half_early_and_half_later() -> None:
    for name, per_chain in (("train", 6), ("valid", 4), ("test", 4)):
        split = synthetic_split(SMALL, name)
        query = split.buckets[0].query
        chains = list(zip(query.tokens.flatten().tolist(), query.answer.flatten().tolist(), strict=True))
        assert len(split) == split.num_questions == 8 * 3 * per_chain
        assert {chains.count(chain) for chain in chains} == {per_chain}
        late = dict.fromkeys(chains, 0)
        for chain, part in zip(chains, query.part.flatten().tolist(), strict=True):
            late[chain] += part
        assert set(late.values()) == {per_chain // 2}


def test_a_small_split_is_bit_identical_everywhere() -> None:
    # these fingerprints were made once; a change here changes the data of every recorded run
    task = replace(SMALL, evidence_len=3)
    assert synthetic_split(task, "train").fingerprint() == "cdcabfc564943d7b"
    assert synthetic_split(task, "test").fingerprint() == "8325df2af720e0a4"
    assert synthetic_split(replace(task, data_seed=1), "train").fingerprint() == "ba6cbb4a414ffd8f"
    # with streams that were drawn again
    assert synthetic_split(CROWDED[1], "train").fingerprint() == "ee365433e6edadd6"
    # the paper's sizes
    assert logic_chains(SyntheticTask())[0, :2].tolist() == [[296, 291, 252, 184, 316], [296, 105, 252, 396, 184]]


def test_a_stream_whose_length_is_no_multiple_of_the_segment_is_padded_at_its_end(tmp_path: Path) -> None:
    split = synthetic_split(SMALL, "train")
    bucket = split.buckets[0]
    assert split.items.shape == (144 * 5, 5)
    assert bucket.segment_mask.all()
    assert (bucket.query.position == 5).all()
    masks = split.item_mask.view(144, 5, 5)
    assert masks[:, :4].all()
    assert masks[:, 4].tolist() == [[True, True, False, False, False]] * 144
    assert (split.items.view(144, 25)[:, 22:] == 0).all()
    assert streams_of(split) == [row["stream"] for row in exported(SMALL, "train", tmp_path)]


def test_a_stream_shorter_than_a_segment_is_one_padded_segment() -> None:
    split = synthetic_split(replace(SMALL, segment_len=30), "valid")
    assert split.items.shape == (96, 30)
    assert split.item_mask.sum(dim=1).tolist() == [22] * 96
    assert (split.buckets[0].query.position == 1).all()


def test_facts_beyond_sixteen_bits_keep_their_number(tmp_path: Path) -> None:
    task = replace(SMALL, num_groups=1, num_facts=40_000, num_queries=1, num_answers=2)
    split = synthetic_split(task, "train")
    assert streams_of(split) == [row["stream"] for row in exported(task, "train", tmp_path)]
    assert split.items.max() >= 2**15


def test_each_query_is_one_token_asked_once_at_the_end() -> None:
    query = synthetic_split(SMALL, "valid").buckets[0].query
    assert query.tokens.shape == (96, 1, 1)
    assert query.token_mask.all()
    assert query.mask.all()
    assert query.tokens.unique().tolist() == list(range(8))
    assert query.answer.unique().tolist() == list(range(3))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_facts": 25}, "num_facts is 25, which 4 groups cannot share evenly; choose a multiple of num_groups"),
        ({"num_queries": 9}, "num_queries is 9, which 4 groups cannot share evenly"),
        ({"num_facts": 4}, "A group holds 1 facts, but an evidence takes 2 different ones; raise num_facts"),
        ({"stream_len": 3}, r"stream_len is 3; each half .*must hold an evidence of 2 facts"),
        ({"num_facts": 400, "evidence_len": 8}, r"num_facts \*\* evidence_len must stay below 2\*\*62"),
        ({"evidence_len": 1, "num_answers": 4}, r"6 facts a group .* too few evidences of 1 for 4 answers"),
    ],
)
def test_sizes_without_meaning_are_refused_with_a_sentence(changes: dict[str, int], sentence: str) -> None:
    task = replace(SMALL, **changes)
    with pytest.raises(BadInput, match=sentence):
        check_sizes(task)
    with pytest.raises(BadInput, match=sentence):
        synthetic_split(task, "train")


def test_the_smallest_sizes_of_each_limit_are_accepted(tmp_path: Path) -> None:
    for task in (
        replace(SMALL, stream_len=4),
        replace(SMALL, num_facts=8, num_answers=1),
        replace(SMALL, evidence_len=1, num_answers=3),
    ):
        check_sizes(task)
        assert len(exported(task, "valid", tmp_path)) == task.num_queries * task.num_answers * 4


@pytest.mark.parametrize(
    "name",
    ["num_groups", "segment_len", "num_answers", "num_queries", "samples_per_chain", "eval_samples_per_chain"],
)
def test_a_size_of_zero_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        check_sizes(replace(SMALL, **{name: 0}))


@pytest.mark.timeout(2)
def test_many_answers_from_twice_as_many_evidences_are_drawn_in_no_time() -> None:
    task = replace(SMALL, num_groups=1, num_facts=200, evidence_len=1, num_answers=100, num_queries=1, stream_len=4)
    assert len(np.unique(logic_chains(task))) == 100


@pytest.mark.timeout(2)
def test_sizes_that_leave_hardly_a_stream_with_one_answer_are_refused() -> None:
    task = replace(SMALL, num_groups=1, num_facts=20, evidence_len=1, num_answers=10, num_queries=1, stream_len=200)
    with pytest.raises(BadInput, match="stream_len"):
        synthetic_split(task, "valid")
    # 231 pairs of places, where 20 stand next to each other
    apart = replace(SMALL, num_groups=1, num_facts=8, num_answers=5, num_queries=1)
    check_sizes(apart)
    with pytest.raises(BadInput, match="stream_len 22 would hold 14 evidences"):
        synthetic_split(replace(apart, apart=True), "valid")


@pytest.mark.parametrize("beyond", [0, 1, 7])
def test_a_longer_stream_holds_its_evidence_once_and_so_many_segments_before_it_is_asked(beyond: int) -> None:
    chains, split = logic_chains(SMALL), split_beyond(SMALL, beyond, 50)
    (bucket,) = split.buckets
    query, answer = bucket.query.tokens[:, 0, 0].tolist(), bucket.query.answer[:, 0].tolist()
    assert len(set(zip(query, answer, strict=True))) == 24  # every chain, some of them three times
    age = bucket.query.position - 1 - bucket.query.evidence
    assert age.unique().tolist() == [beyond]
    for stream, asked, right in zip(streams_of(split), query, answer, strict=True):
        assert len(stream) == (5 + beyond) * SMALL.segment_len
        pairs = list(pairwise(stream))
        held = {number for number, evidence in enumerate(chains[asked].tolist()) if tuple(evidence) in pairs}
        assert held == {right}
    assert split.fingerprint() == split_beyond(SMALL, beyond, 50).fingerprint()


def test_streams_so_long_that_any_would_have_two_answers_are_refused() -> None:
    with pytest.raises(BadInput, match="evidences of other answers by chance"):
        split_beyond(SMALL, 1000, 4)
