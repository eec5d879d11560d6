from __future__ import annotations

import pytest

from remem.data.words import sentences, tokenize, vocabulary


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Mark's mother can't-go, he said.", ["mark's", "mother", "can't-go", ",", "he", "said", "."]),
        ("Über 3.5 km (or so)!", ["über", "3.5", "km", "(", "or", "so", ")", "!"]),
        ("  ", []),
    ],
)
def test_words_keep_their_inner_marks_and_other_marks_stand_alone(text: str, words: list[str]) -> None:
    assert tokenize(text) == words


def test_sentences_end_with_their_marks_but_not_after_a_title() -> None:
    words = ["mr", ".", "fox", "met", "j", ".", "smith", "!", "(", "why", "?", ")", "he", "ran", ".", "and"]
    assert [" ".join(s) for s in sentences(words)] == ["mr . fox met j . smith !", "( why ? )", "he ran .", "and"]


def test_no_word_is_lost_in_sentences() -> None:
    words = [".", "!", "a", ".", ".", "'", "b", "?", "?"]
    assert [word for s in sentences(words) for word in s] == words
    assert sentences([]) == []


def test_a_vocabulary_is_ordered_by_count_and_then_by_letter() -> None:
    assert vocabulary([["b", "a", "c"], ["c", "b", "?"]], first="?", least=1) == ["?", "b", "c", "a"]
    assert vocabulary([["b", "a", "c"], ["c", "b"]], first="?", least=2) == ["?", "b", "c"]
