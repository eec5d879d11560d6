"""Which words may change places: found where they are alike, and not found where they only look it."""

from __future__ import annotations

import random
from itertools import permutations

import torch

from remem.data.babi import TaskStories, as_split, build_codec
from remem.data.babi_format import Question, Story, words_of
from remem.data.batch import UNSEEN_ANSWER
from remem.data.codec import TextCodec
from remem.data.dataset import Split
from remem.data.exchange import exchangeable, make_exchange

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


def exchanging(stories: list[Story], ways: int = 60, task: int = 1) -> tuple[Split, TextCodec]:
    """The stories as a training split whose words change places."""
    parts = [TaskStories(task, stories)]
    codec = build_codec(parts, segment_len=8)
    split = as_split(parts, codec)
    exchange = make_exchange({task - 1: stories}, codec, ways, parts=task)
    return Split(split.items, split.item_mask, split.buckets, split.repeats, exchange), codec


def told(split: Split, codec: TextCodec, rows: list[int]) -> list[tuple[list[str], str, str]]:
    """Sentences, question and answer of streams as they come in a batch."""
    stream, query, _ = split.batch(0, torch.tensor(rows))
    texts = []
    for b in range(len(rows)):
        sentences = [
            " ".join(codec.words[i] for i in stream.items[s][stream.item_mask[s]].tolist())
            for s in stream.order[b][stream.segment_mask[b]].tolist()
        ]
        question = " ".join(codec.words[i] for i in query.tokens[b, 0][query.token_mask[b, 0]].tolist())
        answer = int(query.answer[b, 0])
        texts.append((sentences, question, codec.answers[answer] if answer >= 0 else "unseen"))
    return texts


def test_texts_without_words_alike_are_left_as_they_are() -> None:
    few = [story("ann went to the attic", ask="where is ann", answer="attic")] * 2
    assert exchangeable(few) == []
    split, codec = exchanging(few)
    assert told(split, codec, [0, 1] * 20) == [(["ann went to the attic"], "where is ann", "attic")] * 40


def test_a_story_is_told_with_its_words_exchanged_everywhere() -> None:
    split, codec = exchanging(wanderings())
    torch.manual_seed(0)
    seen = set()
    for (first, second), question, answer in told(split, codec, [0] * 400):
        one, other = first.split()[0], second.split()[0]
        here, there = first.split()[-1], second.split()[-1]
        assert (first, second) == (f"{one} went to the {here}", f"{other} ran to the {there}")
        assert question == f"where is {one}"
        assert answer == here
        assert one != other
        seen.add((one, here))
    assert len(seen) == 9  # every name in every place


def test_nothing_but_words_and_answers_changes() -> None:
    split, _ = exchanging(wanderings())
    plain = Split(split.items, split.item_mask, split.buckets, split.repeats)
    rows = torch.arange(50)
    before, after = plain.batch(0, rows), split.batch(0, rows)
    for name in ("token_mask", "position", "mask", "part", "evidence"):
        assert torch.equal(getattr(before.query, name), getattr(after.query, name))
    assert torch.equal(before.ids, after.ids)
    assert not torch.equal(before.query.tokens, after.query.tokens)
    assert after.stream.in_turn
    lengths = [batch.stream.item_mask[batch.stream.order].sum(dim=2) for batch in (before, after)]
    assert torch.equal(*lengths)


def test_answers_of_several_words_are_exchanged_part_by_part() -> None:
    draw = random.Random(5)
    things = ("apple", "book", "cup")
    stories = []
    for _ in range(900):
        one, other = draw.sample(things, 2)
        stories.append(story(f"ann has the {one}", f"ann has the {other}", ask="what has ann", answer=f"{one},{other}"))
    split, codec = exchanging(stories)
    answers = {answer for _, _, answer in told(split, codec, [0] * 200)}
    assert answers == {",".join(pair) for pair in permutations(things, 2)}


def test_an_answer_that_nobody_has_given_is_unseen() -> None:
    stories = wanderings()
    codec = build_codec([TaskStories(1, stories)], segment_len=8)
    known = TextCodec(segment_len=8, words=codec.words, answers=["attic", "barn"])
    exchange = make_exchange({0: stories}, known, 60, parts=1)
    assert set(exchange.answers.flatten().tolist()) == {0, 1, UNSEEN_ANSWER}


def test_an_unseen_answer_stays_unseen() -> None:
    stories = wanderings()
    codec = build_codec([TaskStories(1, stories)], segment_len=8)
    known = TextCodec(segment_len=8, words=codec.words, answers=["attic"])
    split = as_split([TaskStories(1, stories)], known)
    exchange = make_exchange({0: stories}, codec, 60, parts=1)
    rows = torch.arange(200)
    unseen = split.batch(0, rows).query.answer == UNSEEN_ANSWER
    after = Split(split.items, split.item_mask, split.buckets, split.repeats, exchange).batch(0, rows).query.answer
    assert unseen.any()
    assert (after[unseen] == UNSEEN_ANSWER).all()
    assert (after[~unseen] != UNSEEN_ANSWER).all()


def test_the_parts_of_a_task_keep_to_their_own_words() -> None:
    one, other = wanderings(), [story("ann went to the attic", ask="where is ann", answer="attic")]
    codec = build_codec([TaskStories(1, one), TaskStories(3, other)], segment_len=8)
    exchange = make_exchange({0: one, 2: other}, codec, 30, parts=3)
    for part in (1, 2):  # one without stories, one whose words are not alike
        assert torch.equal(exchange.words[part], torch.arange(len(codec.words)).expand(30, -1))
    assert not torch.equal(exchange.words[0], exchange.words[1])


def test_the_ways_depend_on_the_stories_alone() -> None:
    split, _ = exchanging(wanderings(), ways=8)
    again, _ = exchanging(wanderings(), ways=8)
    assert split.exchange is not None
    assert again.exchange is not None
    assert all(torch.equal(a, b) for a, b in zip(split.exchange, again.exchange, strict=True))


def test_an_answer_that_is_no_word_of_any_story_changes_places_with_none_of_them() -> None:
    """Red is in one story of two hundred, too few to tell it from blue, which is an answer and never told."""
    stories = [story("the box is here", ask="what colour", answer=("red", "blue")[i % 2]) for i in range(200)]
    stories[0] = story("the box is red", ask="what colour", answer="red")
    assert exchangeable(stories) == [["blue", "red"]]
    codec = build_codec([TaskStories(1, stories)], segment_len=5)
    exchange = make_exchange({0: stories}, codec, ways=8, parts=1)
    assert "blue" not in codec.word_index
    assert torch.equal(exchange.words[0], torch.arange(len(codec.words)).expand(8, -1))
