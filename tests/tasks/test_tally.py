"""Counting of answers by part and by age of the evidence."""

from __future__ import annotations

import pytest

from remem.tasks.base import Tally


def test_answers_are_counted_by_part_and_by_age() -> None:
    tally = Tally()
    tally.add([0, 0, 1, 1], [3, 1, 3, None], [True, False, True, False])
    assert tally.parts == {0: (1, 2), 1: (1, 2)}
    assert tally.ages == {3: (2, 2), 1: (0, 1)}
    assert tally.part_ages == {0: {3: (1, 1), 1: (0, 1)}, 1: {3: (1, 1)}}
    assert tally.questions == 4


def test_later_answers_are_added_to_earlier_ones() -> None:
    tally = Tally()
    tally.add([2], [5], [True])
    tally.add([2, 4], [5, 0], [False, True])
    tally.add([], [], [])
    assert tally.parts == {2: (1, 2), 4: (1, 1)}
    assert tally.ages == {5: (1, 2), 0: (1, 1)}


def test_an_unknown_age_counts_for_its_part_alone() -> None:
    tally = Tally()
    tally.add([0, 0], [None, None], [True, True])
    assert tally.ages == {}
    assert tally.accuracy == 100


def test_accuracies_are_shares_in_percent() -> None:
    tally = Tally({0: (3, 4), 1: (1, 8)})
    assert tally.accuracy_of(0) == 75
    assert tally.accuracy_of(1) == 12.5
    # over all answers, not the mean of the parts
    assert tally.accuracy == pytest.approx(100 * 4 / 12)


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        Tally().add([0, 1], [None], [True, False])


def test_every_tally_begins_empty() -> None:
    Tally().add([0], [0], [True])
    assert Tally().parts == Tally().ages == {}
