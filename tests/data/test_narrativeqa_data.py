"""NarrativeQA: both published forms give the same questions, and what is malformed is refused with its place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from remem.data.long_twins import write_narrativeqa
from remem.data.narrativeqa import Summaries, as_split, exchange_stand_ins, folds
from remem.data.narrativeqa_files import import_narrativeqa
from remem.errors import BadInput
from remem.settings.tasks import NarrativeQATask
from remem.tasks.load import load_task
from remem.tasks.narrativeqa import narrativeqa_task


@pytest.fixture
def dumps(tmp_path: Path) -> Summaries:
    write_narrativeqa(tmp_path / "raw")
    import_narrativeqa([tmp_path / "raw"], tmp_path / "data")
    return Summaries(tmp_path / "data")


def texts(data: Summaries, split: str) -> list[list[str]]:
    return [
        [" ".join(data.text(*question[i : i + 2])) for i in (0, 2, 4)]
        for number in data.numbers(split)
        for question in data.questions_of[number]
    ]


def test_both_published_forms_hold_the_same_questions(dumps: Summaries, tmp_path: Path) -> None:
    write_narrativeqa(tmp_path / "csv", form="csv")
    counts = import_narrativeqa([tmp_path / "csv"], tmp_path / "official")["counts"]
    official = Summaries(tmp_path / "official")
    for split in ("valid", "test"):
        assert texts(official, split) == texts(dumps, split)
        assert [official.text(*official.documents[n][:2]) for n in official.numbers(split)] == [
            dumps.text(*dumps.documents[n][:2]) for n in dumps.numbers(split)
        ]
    assert counts["train"] == {"documents": 6, "questions": 24}
    assert dumps.numbers("train") == []


def test_questions_without_a_summary_are_left_out_and_counted(tmp_path: Path) -> None:
    write_narrativeqa(tmp_path / "csv", form="csv")
    file = tmp_path / "csv" / "summaries.csv"
    header, *rows = file.read_text().splitlines(keepends=True)
    assert import_narrativeqa([tmp_path / "csv"], tmp_path / "whole")["questions_without_summary"] == 0
    file.write_text("".join([header, *rows[2:]]))
    assert import_narrativeqa([tmp_path / "csv"], tmp_path / "less")["questions_without_summary"] == 8


def test_a_mark_of_byte_order_belongs_to_no_file(dumps: Summaries, tmp_path: Path) -> None:
    """As some editors write it before the first character, in JSON as in csv."""
    file = tmp_path / "raw" / "dev.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    import_narrativeqa([tmp_path / "raw"], tmp_path / "again")
    assert texts(Summaries(tmp_path / "again"), "valid") == texts(dumps, "valid")


def test_no_question_is_there_twice_where_several_files_ask_it(dumps: Summaries, tmp_path: Path) -> None:
    """Twice the right answer among the candidates, and neither could be told from the other."""
    write_narrativeqa(tmp_path / "csv", form="csv")
    for paths in ([tmp_path / "csv", tmp_path / "raw"], [tmp_path / "raw", tmp_path / "csv"]):
        manifest = import_narrativeqa(paths, tmp_path / "both")
        assert manifest["counts"]["valid"] == {"documents": 6, "questions": 24}
        assert manifest["sources"]["qaps.csv"] == 72
        both = Summaries(tmp_path / "both")
        assert texts(both, "test") == texts(dumps, "test")
        assert all(question[-1] >= 0 for number in both.numbers("test") for question in both.questions_of[number])
    for form in ("raw", "csv"):
        with pytest.raises(BadInput, match="has asked about this document before; give every file once"):
            import_narrativeqa([tmp_path / form, tmp_path / form], tmp_path / "both")


def test_a_batch_reads_the_summary_and_its_candidates_are_its_answers(dumps: Summaries) -> None:
    documents = dumps.numbers("test")
    codec = dumps.build_codec(documents, segment_len=20, least=1)
    split = as_split(dumps, documents, codec, truncate=False)
    assert split.num_questions == 24
    (bucket,) = split.buckets
    batch = split.batch(0, torch.tensor([2]))
    number = int(batch.ids[0])
    stream = batch.stream
    words = [codec.words[i] for i in stream.items[stream.order[0][stream.segment_mask[0]]][
        stream.item_mask[stream.order[0][stream.segment_mask[0]]]].tolist()]  # fmt: skip
    assert words == dumps.text(*dumps.documents[number][:2])
    assert batch.query.candidates is not None
    for q, question in enumerate(dumps.questions_of[number]):
        right = int(batch.query.answer[0, q])
        tokens, mask = (value[0, right] for value in batch.query.candidates)
        assert [codec.words[i] for i in tokens[mask].tolist()] == dumps.text(*question[2:4])
        # the dump's span is an answer word for word: the segment that holds it is known
        segment = stream.items[stream.order[0, int(batch.query.evidence[0, q])]]
        assert dumps.text(*question[4:6])[-1] in [codec.words[i] for i in segment.tolist()]
    assert len(bucket.query.answer[0].unique()) == 4
    assert (bucket.query.position == bucket.segment_mask.sum(dim=1, keepdim=True)).all()


@pytest.mark.parametrize(("truncate", "longest"), [(False, 5), (True, 5)])
def test_a_long_sentence_becomes_several_segments_or_loses_its_end(
    dumps: Summaries, truncate: bool, longest: int
) -> None:
    number = dumps.numbers("test")[0]
    segments = dumps.segments(number, longest, truncate=truncate)
    first, end, _ = dumps.documents[number]
    assert max(length for _, length in segments) == longest
    covered = [place for start, length in segments for place in range(start, start + length)]
    assert (covered == list(range(first, end))) != truncate
    sentences = len(dumps.segments(number, 99, truncate=False))
    assert (len(segments) == sentences) == truncate


def test_words_outside_the_vocabulary_are_unknown(dumps: Summaries) -> None:
    documents = dumps.numbers("test")
    codec = dumps.build_codec(documents[:1], segment_len=20, least=3)
    items = as_split(dumps, documents, codec, truncate=False).batch(0, torch.arange(6)).stream
    assert (items.items[items.item_mask] == 0).any()
    assert codec.encode_question("Where did Zeno walk?")[2] == 0


def test_equal_answers_of_a_summary_are_candidates_of_their_own(dumps: Summaries) -> None:
    number = dumps.numbers("test")[0]
    first, second = dumps.questions_of[number][:2]
    second[2:4] = first[2:4]
    codec = dumps.build_codec([number], segment_len=20, least=1)
    query = as_split(dumps, [number], codec, truncate=False).batch(0, torch.tensor([0])).query
    assert query.candidates is not None
    assert torch.equal(query.candidates.tokens[0, 0], query.candidates.tokens[0, 1])
    assert query.candidates.token_mask[0].any(dim=-1).tolist() == [True] * 4
    assert query.answer.tolist() == [[0, 1, 2, 3]]


def test_stand_ins_keep_words_apart_that_were_never_met(dumps: Summaries) -> None:
    documents = dumps.numbers("test")
    codec = dumps.build_codec(documents[:1], segment_len=20, least=3, stand_ins=5000)
    asked = codec.encode_question("Where did Zeno meet Zeno or Ada?")
    known = len(codec.words)
    assert codec.num_items == codec.num_queries == known + 5000
    assert asked[2] == asked[4] >= known
    assert asked[6] >= known
    assert asked[6] != asked[2]
    # a word has one number wherever it stands, and none is the unknown word
    stream = as_split(dumps, documents, codec, truncate=False).batch(0, torch.arange(6)).stream
    assert (stream.items[stream.item_mask] > 0).all()
    assert (stream.items[stream.item_mask] >= known).any()


def test_stand_ins_change_places_alike_in_summary_question_and_candidates(dumps: Summaries) -> None:
    documents = dumps.numbers("test")
    codec = dumps.build_codec(documents[:1], segment_len=20, least=3, stand_ins=200)
    plain = as_split(dumps, documents, codec, truncate=False)
    told = replace(plain, exchange=exchange_stand_ins(codec, ways=8))
    rows, known = torch.arange(6), len(codec.words)
    before, after = plain.batch(0, rows), told.batch(0, rows)
    assert before.query.candidates is not None
    assert after.query.candidates is not None
    assert torch.equal(before.query.answer, after.query.answer)
    changed = 0
    for row in range(6):
        pairs = set()
        for old, new in (
            (before.stream.items[before.stream.order[row]], after.stream.items[after.stream.order[row]]),
            (before.query.tokens[row], after.query.tokens[row]),
            (before.query.candidates.tokens[row], after.query.candidates.tokens[row]),
        ):
            pairs |= set(zip(old.flatten().tolist(), new.flatten().tolist(), strict=True))
        assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs})
        assert all(old == new for old, new in pairs if old < known)
        changed += sum(old != new for old, new in pairs)
    assert changed > 20


def test_a_gap_asks_for_a_rare_word_of_the_sentence_it_was_left_out_of(dumps: Summaries) -> None:
    documents = dumps.numbers("test")
    codec = dumps.build_codec(documents[:1], segment_len=20, least=3, stand_ins=500)
    known = len(codec.words)
    plain = as_split(dumps, documents, codec, truncate=False)
    split = as_split(dumps, documents, codec, truncate=False, with_gaps=documents[:2], gaps=3)
    assert len(split) == len(plain) + 2
    assert plain.num_questions + 4 <= split.num_questions <= plain.num_questions + 6
    batch = split.batch(0, torch.arange(len(split)))
    assert torch.equal(
        batch.query.answer[:6], plain.batch(0, torch.arange(6)).query.answer
    )  # real ones stay as they are
    assert batch.query.candidates is not None
    asked = []
    for row in (6, 7):
        assert int(batch.ids[row]) == documents[row - 6]
        for q in range(int(batch.query.mask[row].sum())):
            words = batch.query.tokens[row, q][batch.query.token_mask[row, q]].tolist()
            answer = int(batch.query.candidates.tokens[row, int(batch.query.answer[row, q]), 0])
            sentence = batch.stream.items[batch.stream.order[row, int(batch.query.evidence[row, q])]].tolist()
            assert answer >= known
            assert words.count(0) == 1
            assert answer not in words
            assert answer in sentence
            left = iter(sentence)
            assert all(word in left for word in words if word)  # in their order
            asked.append((row, answer))
    assert len(set(asked)) == len(asked)  # no candidate twice
    again = as_split(dumps, documents, codec, truncate=False, with_gaps=documents[:2], gaps=3)
    assert again.fingerprint() == split.fingerprint() != plain.fingerprint()


def test_gaps_are_for_training_alone(dumps: Summaries, tmp_path: Path) -> None:
    plain = NarrativeQATask(data=tmp_path / "data", folds=2, stand_ins=500, least_count=99)
    task, with_gaps = narrativeqa_task(plain), narrativeqa_task(replace(plain, gaps=5))
    assert len(with_gaps.load("train")) == 2 * len(task.load("train"))
    for split in ("valid", "test"):
        assert with_gaps.load(split).fingerprint() == task.load(split).fingerprint()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"gaps": -2}, "--task.gaps is -2"),
        ({"stand_ins": -1}, "--task.stand-ins is -1"),
        ({"exchanges": 4}, "no stand-ins that could"),
        ({"gaps": 4}, "no stand-ins that could"),
    ],
)
def test_strange_stand_ins_are_refused(
    dumps: Summaries, tmp_path: Path, changes: dict[str, int], complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        load_task(NarrativeQATask(data=tmp_path / "data", folds=2, **changes))


def test_every_document_is_held_out_in_exactly_one_fold() -> None:
    documents = list(range(100, 123))
    held = []
    for fold in range(5):
        train, valid = folds(documents, 5, fold)
        assert sorted(train + valid) == documents
        held += valid
    assert sorted(held) == documents
    with pytest.raises(BadInput, match="fold 5 of 5"):
        folds(documents, 5, 5)


def test_summaries_without_questions_are_streams_without_questions(tmp_path: Path) -> None:
    write_narrativeqa(tmp_path / "raw")
    (tmp_path / "raw" / "summaries.csv").write_text(
        'document_id,set,summary\nnew,train,"A raw text, cut here. Two sentences."\nseen,test,"Kept for testing."\n'
    )
    (tmp_path / "raw" / "fox-story.csv").write_text('section,text\n1,"A fox."\n2,"It ran."\n')
    counts = import_narrativeqa([tmp_path / "raw"], tmp_path / "data")["counts"]
    assert counts["unlabelled"] == {"documents": 2, "questions": 0}
    data = Summaries(tmp_path / "data")
    split = as_split(data, data.numbers("unlabelled"), data.build_codec([0], 20, 1), truncate=False)
    assert split.num_questions == 0
    assert len(split) == 2
    assert sorted(int(n) for b in split.buckets for n in b.segment_mask.sum(dim=1)) == [2, 2]


WHOLE = {"_id": "a", "context.tokens": "b", "question.tokens": "c", "ground_truths": ["d", "e"]}
MALFORMED = {
    "deep JSON": ("dev.json", "[" * 100_000, r"dev.json, line 1: .* more layers"),
    "a number for a name": ("dev.json", json.dumps([WHOLE | {"_id": 5}]), r"dev.json, entry 1: _id is 5"),
    "empty summary": ("dev.json", json.dumps([WHOLE | {"context.tokens": " "}]), r"entry 1: the summary has no word"),
    "half a character": ("dev.json", json.dumps([WHOLE | {"question.tokens": "\ud83d"}]), r"half a character"),
    "not JSON": ("dev.json", "[\n{", r"dev.json, line 2: this is not JSON"),
    "not a list": ("dev.json", "{}", r"dev.json, line 1: expected a list"),
    "no field": ("dev.json", '[{"_id": "a"}]', r"dev.json, entry 1: the field 'context.tokens' is missing"),
    "one answer": (
        "dev.json",
        json.dumps([{"_id": "a", "context.tokens": "b", "question.tokens": "c", "ground_truths": ["d"]}]),
        r"dev.json, entry 1: a field is not of the kind",
    ),
    "empty answer": (
        "dev.json",
        json.dumps([{"_id": "a", "context.tokens": "b", "question.tokens": "c", "ground_truths": ["d", " "]}]),
        r"dev.json, entry 1: a question or an answer has no word",
    ),
    "no column": ("qaps.csv", "document_id,question\na,b\n", r"qaps.csv, line 1: the column 'question_tokenized'"),
    "short row": (
        "qaps.csv",
        "document_id,question_tokenized,answer1_tokenized,answer2_tokenized\na,b,c,d\na,b\n",
        r"qaps.csv, line 3: the row has more or fewer fields",
    ),
    "unknown set": ("summaries.csv", "document_id,set,summary\na,dust,b\n", r"summaries.csv, line 2: set is 'dust'"),
    "not UTF-8": ("summaries.csv", b"document_id,set,summary\na,train,\xff\n", r"summaries.csv, line 2: .* UTF-8"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_with_its_place_and_nothing_is_kept(tmp_path: Path, case: str) -> None:
    name, content, message = MALFORMED[case]
    write_narrativeqa(tmp_path / "raw")
    (tmp_path / "raw" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput, match=message):
        import_narrativeqa([tmp_path / "raw"], tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_folder_without_questions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "summaries.csv").write_text("document_id,set,summary\na,train,b\n")
    with pytest.raises(BadInput, match="no question of NarrativeQA"):
        import_narrativeqa([tmp_path], tmp_path / "data")
    with pytest.raises(BadInput, match="does not exist"):
        import_narrativeqa([tmp_path / "nowhere"], tmp_path / "data")
