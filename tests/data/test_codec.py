"""Codecs: raw items to numbers, answers back, and through JSON unchanged."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remem.data.codec import Codec, FrameCodec, IdCodec, TextCodec, UnknownItem, codec_from_json, cut
from remem.errors import BadInput

IDS = IdCodec(segment_len=10, num_items=400, num_queries=40, num_answers=30)
TEXT = TextCodec(segment_len=15, words=["garden", "is", "mary", "where"], answers=["garden", "milk,football"])


@pytest.mark.parametrize("codec", [IDS, TEXT], ids=["ids", "text"])
def test_a_codec_passes_through_json_unchanged(codec: Codec) -> None:
    read = codec_from_json(json.loads(json.dumps(dataclasses.asdict(codec))))
    assert read == codec
    assert type(read) is type(codec)


def test_a_codec_keeps_its_caches_out_of_its_json() -> None:
    codec = dataclasses.replace(TEXT)
    codec.encode_item("Mary is where")
    assert set(dataclasses.asdict(codec)) == {"segment_len", "words", "answers", "kind"}
    assert codec == TEXT


@pytest.mark.parametrize("value", [{"kind": "video"}, {}, {"kind": None}])
def test_an_unknown_kind_is_refused_by_name(value: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"unknown kind {value.get('kind')!r}; expected one of .*'ids', .*'text'"):
        codec_from_json(value)


@pytest.mark.parametrize("value", [{"kind": "ids"}, {**dataclasses.asdict(IDS), "colour": 1}, {"kind": ["ids"]}])
def test_a_codec_with_wrong_fields_is_refused_with_a_sentence(value: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        codec_from_json(value)


def test_ids_are_their_own_numbers() -> None:
    assert IDS.encode_item(399) == [399]
    assert IDS.encode_question(0) == [0]
    assert IDS.decode_answer(29) == 29
    assert not IDS.segment_per_write


@pytest.mark.parametrize("raw", [-1, 400, 1.0, "1", None, True, [1]])
def test_a_wrong_item_is_refused_with_the_range(raw: object) -> None:
    with pytest.raises(UnknownItem) as refusal:
        IDS.encode_item(raw)
    assert str(refusal.value) == f"{raw!r} is no item of this model; expected an integer from 0 to 399."


@pytest.mark.parametrize("raw", [-1, 40, "where"])
def test_a_wrong_query_is_refused_with_the_range(raw: object) -> None:
    with pytest.raises(UnknownItem, match="is no query of this model; expected an integer from 0 to 39"):
        IDS.encode_question(raw)


def test_sentences_become_the_numbers_of_their_words() -> None:
    assert TEXT.encode_item("Mary, where is GARDEN?") == [2, 3, 1, 0]
    assert TEXT.encode_question("Where is Mary?") == [3, 1, 2]
    assert TEXT.encode_words([]) == []
    assert TEXT.decode_answer(1) == "milk,football"
    assert (TEXT.num_items, TEXT.num_queries, TEXT.num_answers) == (4, 4, 2)
    assert TEXT.answer_index == {"garden": 0, "milk,football": 1}
    assert TEXT.segment_per_write


@pytest.mark.parametrize("encode", [TEXT.encode_item, TEXT.encode_question])
def test_an_unknown_word_is_named(encode: Any) -> None:
    with pytest.raises(UnknownItem, match="The word 'john' is not among the 4 words this model was trained on"):
        encode("Where is John and Sandra?".replace("and", "is"))


@pytest.mark.parametrize(
    ("raw", "reason"), [(5, "5 is not a sentence; expected text"), (None, "None is not"), ("?!", "holds no word")]
)
def test_what_is_no_sentence_is_refused(raw: object, reason: str) -> None:
    for encode in (TEXT.encode_item, TEXT.encode_question):
        with pytest.raises(UnknownItem, match=reason):
            encode(raw)


@pytest.mark.parametrize(
    "number", [10**400, float("inf"), float("nan"), 1e39, True, "1"], ids=lambda raw: type(raw).__name__
)
def test_a_frame_of_what_is_no_finite_number_is_refused(number: Any) -> None:
    frames = FrameCodec(segment_len=2, width=2, words=["<unknown>"], answers=["dog"])
    assert frames.encode_item([3e38, -1]) == [(3e38, -1.0)]
    with pytest.raises(UnknownItem, match="expected 2 finite numbers"):
        frames.encode_item([1.0, number])


@pytest.mark.parametrize("encode", [IDS.encode_item, IDS.encode_question, TEXT.encode_item, TEXT.encode_question])
@pytest.mark.parametrize(
    "raw", [10**5000, [10**5000], ["x"] * 100_000, "? " * 100_000], ids=lambda raw: type(raw).__name__
)
def test_a_refusal_quotes_nothing_long(encode: Any, raw: object) -> None:
    with pytest.raises(UnknownItem) as refusal:
        encode(raw)
    assert len(str(refusal.value)) < 200


@given(st.lists(st.integers()), st.integers(1, 20))
def test_cutting_loses_nothing(items: list[int], length: int) -> None:
    pieces = list(cut(items, length))
    assert [item for piece in pieces for item in piece] == items
    assert all(len(piece) == length for piece in pieces[:-1])
    assert all(0 < len(piece) <= length for piece in pieces)
