"""The parser of the original bAbI files: exact values, and a refusal that says where and why."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remem.data.babi_format import UNKNOWN_EVIDENCE, MalformedFile, Question, Story, parse_stories, words_of
from remem.data.babi_store import decode_lines
from remem.data.babi_twin import story_lines
from remem.data.random import StableRandom
from remem.errors import BadInput


def parse(text: str) -> list[Story]:
    return parse_stories(text.splitlines(), "qa1_train.txt")


def test_a_story_is_read_to_its_exact_words() -> None:
    story = "1 Mary moved to the bathroom.\n2 John went to the hallway.\n3 Where is Mary? \tbathroom\t1\n"
    assert parse(story) == [
        Story(
            sentences=(("mary", "moved", "to", "the", "bathroom"), ("john", "went", "to", "the", "hallway")),
            questions=(Question(("where", "is", "mary"), "bathroom", position=2, evidence=0),),
        )
    ]


def test_question_lines_shift_the_numbers_of_later_sentences() -> None:
    # line 4 is the third sentence, and line 7 the fifth: supports name lines, evidence counts sentences
    (story,) = parse(
        "1 a one.\n2 b two.\n3 where a?\tx\t1\n4 c three.\n5 where c?\ty\t4\n6 d four.\n7 e five.\n8 where e?\tz\t7 4\n"
    )
    assert len(story.sentences) == 5
    assert [(q.position, q.evidence) for q in story.questions] == [(2, 0), (3, 2), (5, 2)]


def test_two_questions_may_follow_each_other() -> None:
    (story,) = parse("1 a b.\n2 where a?\tx\t1\n3 where b?\ty\t1\n")
    assert [(q.words, q.answer, q.position) for q in story.questions] == [
        (("where", "a"), "x", 1),
        (("where", "b"), "y", 1),
    ]


def test_stories_begin_with_each_number_one() -> None:
    stories = parse("1 a b.\n2 where?\tx\t1\n1 c d.\n2 e f.\n3 where?\ty\t2\n")
    assert [story.sentences for story in stories] == [(("a", "b"),), (("c", "d"), ("e", "f"))]
    assert [story.questions[0].evidence for story in stories] == [0, 1]


def test_sentences_after_the_last_question_belong_to_the_story() -> None:
    (story,) = parse("1 a b.\n2 where?\tx\t1\n3 c d.\n")
    assert story.sentences == (("a", "b"), ("c", "d"))


def test_an_answer_of_several_words_keeps_its_commas() -> None:
    (story,) = parse("1 a b.\n2 What is Daniel carrying?\tmilk,football\t1 1\n3 How do you go?\ts,e\t1\n")
    assert [q.answer for q in story.questions] == ["milk,football", "s,e"]


def test_upper_and_lower_case_are_one() -> None:
    assert parse("1 MARY Went.\n2 Where Is Mary?\tBathroom\t1\n") == parse(
        "1 mary went.\n2 where is mary?\tbathroom\t1\n"
    )


def test_a_question_without_support_has_unknown_evidence() -> None:
    (story,) = parse("1 a b.\n2 where?\tx\n3 where?\tx\t\n")
    assert [q.evidence for q in story.questions] == [UNKNOWN_EVIDENCE] * 2


def test_blank_lines_and_carriage_returns_are_passed_over() -> None:
    lines = ["\n", "1 a b.\r\n", "   \n", "2 where?\tx\t1\r\n", "\n"]
    assert parse_stories(lines, "f") == parse("1 a b.\n2 where?\tx\t1\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Mary went back to the garden.", ("mary", "went", "back", "to", "the", "garden")),
        ("Where was the football?", ("where", "was", "the", "football")),
        ("It's two o'clock, isn't it?", ("it's", "two", "o'clock", "isn't", "it")),
        ("a well-known box-of-chocolates", ("a", "well-known", "box-of-chocolates")),
        ("Room 12 - 'quoted'", ("room", "12", "quoted")),
        ("... ?!", ()),
        ("", ()),
    ],
)
def test_words_are_lower_case_and_without_marks(text: str, words: tuple[str, ...]) -> None:
    assert words_of(text) == words


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([1, 6]), st.integers(1, 6))
def test_generated_stories_are_read_with_the_support_they_name(seed: int, task: int, num_questions: int) -> None:
    lines = story_lines(StableRandom(seed), task=task, num_questions=num_questions)
    (story,) = parse_stories(lines, "twin")
    asked = [line.split("\t") for line in lines if "\t" in line]
    assert len(story.sentences) == 2 * num_questions
    for i, (question, (_, answer, support)) in enumerate(zip(story.questions, asked, strict=True)):
        assert question.answer == answer
        assert question.position == 2 * (i + 1)
        assert story.sentences[question.evidence] == words_of(lines[int(support) - 1].partition(" ")[2])


STORY = "1 a b.\n2 c d.\n3 where?\tx\t1\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("x Mary went.\n", 1, "expected 'ID text', found 'x Mary went.'"),
        ("Mary\n", 1, "expected 'ID text', found 'Mary'"),
        (" 1 Mary went.\n", 1, "expected 'ID text'"),
        ("1.5 Mary went.\n", 1, "expected 'ID text'"),
        ("-1 Mary went.\n", 1, "expected 'ID text'"),
        ("² Mary went.\n", 1, "expected 'ID text'"),
        ("2 Mary went.\n", 1, "the sentence has number 2; expected 1"),
        ("0 Mary went.\n", 1, "the sentence has number 0; expected 1"),
        (STORY + "5 Mary went.\n", 4, "the sentence has number 5; expected 4, or 1 for a new story"),
        (STORY + "3 Mary went.\n", 4, "the sentence has number 3; expected 4, or 1 for a new story"),
        (STORY + "1 where?\tx\n", 4, "the question comes before any sentence of its story"),
        ("1 a b.\n2 where?\t\t1\n", 2, "the question has no answer"),
        ("1 a b.\n2 where?\t  \t1\n", 2, "the question has no answer"),
        ("1 a b.\n2 where?\tx\t1\ty\n", 2, "a question has up to 3 columns, question, answer and support; found 4"),
        ("1 a b.\n2 where?\tx\t2\n", 2, "the support '2' is not an earlier sentence of this story"),
        ("1 a b.\n2 where?\tx\t3\n3 c d.\n", 2, "the support '3' is not an earlier sentence"),
        ("1 a b.\n2 where?\tx\t0\n", 2, "the support '0' is not an earlier sentence"),
        ("1 a b.\n2 where?\tx\tone\n", 2, "the support 'one' is not an earlier sentence"),
        # line 3 is a question, and line 1 of the story before is another story's
        (STORY + "4 where?\tx\t3\n", 4, "the support '3' is not an earlier sentence"),
        (STORY + "1 a b.\n2 where?\tx\t2\n", 5, "the support '2' is not an earlier sentence"),
        (STORY + "1 a b.\n2 c d.\n", 5, "the story that ends here asks no question"),
        ("1 a b.\n", 1, "the story that ends here asks no question"),
        ("1 ...\n", 1, "the line holds no word"),
        ("1\n", 1, "the line holds no word"),
        ("1 a b.\n2 ?\tx\t1\n", 2, "the line holds no word"),
        ("", 1, "the file holds no story"),
        ("\n\n", 2, "the file holds no story"),
    ],
)
def test_a_malformed_file_is_refused_with_source_line_and_reason(text: str, line: int, reason: str) -> None:
    with pytest.raises(MalformedFile) as refusal:
        parse(text)
    assert str(refusal.value).startswith(f"qa1_train.txt, line {line}: {reason}")
    # the command line shows it as a sentence, without a traceback
    assert isinstance(refusal.value, BadInput)


def test_a_story_without_a_question_is_refused_before_the_next_begins() -> None:
    with pytest.raises(MalformedFile, match="asks no question"):
        parse("1 a b.\n2 c d.\n1 a b.\n2 where?\tx\t1\n")


def test_a_support_in_raised_digits_is_refused_as_malformed() -> None:
    with pytest.raises(MalformedFile, match="line 2: the support '²' is not an earlier sentence"):
        parse("1 a b.\n2 where?\tx\t²\n")


def test_a_story_without_a_question_is_refused_with_the_line_it_ends_on() -> None:
    with pytest.raises(MalformedFile, match="line 2: the story that ends here asks no question"):
        parse("1 a b.\n2 c d.\n1 a b.\n2 where?\tx\t1\n")


def test_a_refusal_ends_with_one_mark() -> None:
    with pytest.raises(MalformedFile) as refusal:
        parse("1 a b.\n")
    assert not str(refusal.value).endswith("?.")


@pytest.mark.parametrize(("data", "line"), [(b"\xff1 a\n", 1), (b"1 a b.\n2 caf\xe9.\n3 c\n", 2)])
def test_bytes_that_are_not_utf8_are_refused_with_their_line(data: bytes, line: int) -> None:
    with pytest.raises(MalformedFile, match=rf"^qa2_test\.txt, line {line}: the line is not UTF-8 text\.$"):
        decode_lines(data, "qa2_test.txt")
