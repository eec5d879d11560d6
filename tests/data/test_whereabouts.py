"""Stories of who is where: what is asked was told once, so many sentences ago, and is true."""

from __future__ import annotations

import pytest

from remem.data.codec import TextCodec
from remem.data.random import StableRandom
from remem.data.whereabouts import PEOPLE, PLACES, WAYS, split_beyond, tell
from remem.errors import BadInput

WORDS = sorted({"where", "is", "the", *PEOPLE, *PLACES, *(word for way in WAYS for word in way)})
CODEC = TextCodec(segment_len=6, words=WORDS, answers=sorted(PLACES))


@pytest.mark.parametrize("beyond", [0, 1, 30])
def test_the_answer_is_where_the_person_went_last_and_nothing_is_told_of_them_since(beyond: int) -> None:
    asked_for, leads = set(), set()
    for number in range(40):
        story = tell(StableRandom("test", number), beyond)
        (question,) = story.questions
        where, is_, person = question.words
        assert (where, is_) == ("where", "is")
        told = [place for place, sentence in enumerate(story.sentences) if sentence[0] == person]
        assert told[-1] == question.evidence == len(story.sentences) - 1 - beyond
        assert story.sentences[told[-1]][-1] == question.answer
        assert question.position == len(story.sentences)
        asked_for.add((person, question.answer))
        leads.add(question.evidence)
    assert len(asked_for) > 12
    assert (min(leads), max(leads)) == (2, 9)


def test_nobody_goes_where_they_are() -> None:
    story, where = tell(StableRandom("test"), 200), dict[str, str]()
    for person, *_, place in story.sentences:
        assert where.get(person) != place
        where[person] = place
    assert set(where) == set(PEOPLE)


def test_a_split_is_the_same_every_time_and_says_how_old_the_evidence_is() -> None:
    split = split_beyond(CODEC, 12, 20)
    assert len(split) == 20
    assert split.fingerprint() == split_beyond(CODEC, 12, 20).fingerprint()
    assert split.fingerprint() != split_beyond(CODEC, 12, 20, seed=1).fingerprint()
    ages = [bucket.query.position - 1 - bucket.query.evidence for bucket in split.buckets]
    assert {int(age) for each in ages for age in each.flatten()} == {12}


@pytest.mark.parametrize("lacks", ["garden", "journeyed", "daniel"])
def test_a_model_that_lacks_a_word_is_told_which(lacks: str) -> None:
    codec = TextCodec(segment_len=6, words=[word for word in WORDS if word != lacks], answers=sorted(PLACES))
    with pytest.raises(BadInput, match=f"does not know '{lacks}'.*first task"):
        split_beyond(codec, 1, 2)


def test_a_model_that_can_not_answer_with_a_place_is_told_which() -> None:
    codec = TextCodec(segment_len=6, words=WORDS, answers=["yes", *sorted(PLACES)[1:]])
    with pytest.raises(BadInput, match="does not know 'bathroom'"):
        split_beyond(codec, 1, 2)
