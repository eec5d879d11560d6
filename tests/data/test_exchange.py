"""Which words may change places: found where they are alike, and not found where they only look it."""

from __future__ import annotations

import random
from itertools import permutations

from remem.data.babi_format import Question, Story, parse_stories, words_of
from remem.data.exchange import exchangeable, exchanged

NAMES, PLACES = ("ann", "bob", "cid"), ("attic", "barn", "cellar")


def story(*sentences: str, ask: str, answer: str) -> Story:
    told = tuple(words_of(sentence) for sentence in sentences)
    return Story(told, (Question(words_of(ask), answer, len(told), 0),))


def wanderings(count: int = 600, seed: int = 0) -> list[Story]:
    """Two people go somewhere; where is one of them?"""
    draw = random.Random(seed)
    stories = []
    for _ in range(count):
        (one, other), (here, there) = draw.sample(NAMES, 2), draw.choices(PLACES, k=2)
        stories.append(
            story(f"{one} went to the {here}", f"{other} ran to the {there}", ask=f"where is {one}", answer=here)
        )
    return stories


def test_names_and_places_are_found_and_kept_apart() -> None:
    assert exchangeable(wanderings()) == [list(NAMES), list(PLACES)]


def test_a_word_that_is_chosen_more_often_is_left_alone() -> None:
    draw = random.Random(1)
    stories = [
        story(f"ann went to the {place}", ask="where is ann", answer=place)
        for place in draw.choices(PLACES, weights=(4, 4, 1), k=900)
    ]
    assert exchangeable(stories) == [["attic", "barn"]]


def test_words_with_a_name_of_their_own_in_the_answer_are_left_alone() -> None:
    """North and south go through the same sentences, but the answer says n and s, which nobody exchanges."""
    draw = random.Random(2)
    stories = []
    for _ in range(900):
        way = draw.choice(("north", "south"))
        here, there = draw.sample(PLACES, 2)
        stories.append(story(f"the {here} is {way} of the {there}", ask=f"how from {there} to {here}", answer=way[0]))
    groups = exchangeable(stories)
    assert list(PLACES) in groups
    assert not any("north" in group for group in groups)


def test_a_singular_is_not_exchanged_without_its_plural() -> None:
    draw = random.Random(3)
    kinds = {"cat": "cats", "dog": "dogs", "mouse": "mice"}
    stories = []
    for _ in range(900):
        one, other = draw.sample(sorted(kinds), 2)
        stories.append(
            story(f"{kinds[one]} fear {kinds[other]}", f"ann is a {one}", ask="what does ann fear", answer=other)
        )
    assert exchangeable(stories) == []


def test_what_must_come_first_is_not_exchanged_with_what_must_come_after() -> None:
    draw = random.Random(4)
    stories = []
    for _ in range(900):
        name, (thing, other) = draw.choice(NAMES), draw.sample(("apple", "book", "cup"), 2)
        take, drop = draw.choice(("took", "got")), draw.choice(("dropped", "left"))
        stories.append(
            story(f"{name} {take} the {thing}", f"{name} {drop} the {thing}", f"{name} {take} the {other}",
                  ask=f"what has {name}", answer=other)
        )  # fmt: skip
    groups = exchangeable(stories)
    assert ["got", "took"] in groups
    assert ["dropped", "left"] in groups


def test_texts_without_words_alike_are_left_as_they_are() -> None:
    few = [story("ann went to the attic", ask="where is ann", answer="attic")]
    assert exchangeable(few) == []
    copies = exchanged(few, [], copies=2)
    assert copies == few * 2


def test_a_copy_is_the_same_story_with_words_exchanged_everywhere() -> None:
    text = ["1 Ann went to the attic.", "2 Bob ran to the barn.", "3 Where is Ann?\tattic\t1"]
    original = parse_stories(text, "here")
    copies = exchanged(original, [list(NAMES), list(PLACES)], copies=60)
    assert len(copies) == 60
    seen = set()
    for copy in copies:
        one, other = copy.sentences[0][0], copy.sentences[1][0]
        here, there = copy.sentences[0][-1], copy.sentences[1][-1]
        assert one != other
        assert here != there
        assert copy.sentences == (words_of(f"{one} went to the {here}"), words_of(f"{other} ran to the {there}"))
        assert copy.questions == (Question(words_of(f"where is {one}"), here, 2, 0),)
        seen.add((one, here))
    assert len(seen) == 9  # every name in every place


def test_answers_of_several_words_are_exchanged_part_by_part() -> None:
    original = [story("ann has the cup", "ann has the book", ask="what has ann", answer="cup,book")]
    answers = {copy.questions[0].answer for copy in exchanged(original, [["apple", "book", "cup"]], copies=60)}
    assert answers == {",".join(pair) for pair in permutations(("apple", "book", "cup"), 2)}


def test_copies_depend_on_the_seed_and_nothing_else() -> None:
    stories = wanderings(20)
    groups = [list(NAMES), list(PLACES)]
    assert exchanged(stories, groups, 3) == exchanged(stories, groups, 3)
    assert exchanged(stories, groups, 3) != exchanged(stories, groups, 3, seed=1)
    # more copies come after fewer
    assert exchanged(stories, groups, 3)[:20] == exchanged(stories, groups, 1)
