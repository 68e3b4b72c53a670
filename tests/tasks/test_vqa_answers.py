"""Answers of VQA: the official accuracy, normalisation, targets and vocabulary, against plain references."""

from __future__ import annotations

import itertools

import pytest

from unsmooth.tasks.vqa.answers import CONTRACTIONS, normalise, soft_accuracy, targets, vocabulary, without_punctuation


def leave_one_out(answer, given):
    """The definition: every nine of the ten people are asked whether three of them agree."""
    sets = list(itertools.combinations(given, len(given) - 1))
    return sum(min(1, sum(one == answer for one in others) / 3) for others in sets) / len(sets)


@pytest.mark.parametrize("same", range(11))
def test_accuracy_is_the_mean_over_ten_leave_one_out_sets(same):
    given = ["cat"] * same + ["dog"] * (10 - same)
    for answer in ("cat", "dog", "bird"):
        assert soft_accuracy(answer, given) == pytest.approx(leave_one_out(answer, given))


def test_known_values():
    people = ["yes"] * 3 + ["no"] * 7
    assert soft_accuracy("yes", people) == pytest.approx(0.9)
    assert soft_accuracy("no", people) == 1
    assert soft_accuracy("yes", ["yes"] * 2 + ["no"] * 8) == pytest.approx(0.6)
    assert soft_accuracy("yes", ["yes"] + ["no"] * 9) == pytest.approx(0.3)


def test_given_answers_lose_their_punctuation_only_where_they_differ():
    assert soft_accuracy("t shirt", ["t-shirt"] * 9 + ["shirt"]) == 1
    assert soft_accuracy("t shirt", ["t-shirt"] * 10) == 0  # as the official evaluation has it
    assert soft_accuracy("The Cat!", ["cat"] * 10) == 1


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("Yes", "yes"),
        (" the  Dog\n", "dog"),
        ("a man and an apple", "man and apple"),
        ("two", "2"),
        ("None", "0"),
        ("ten men", "10 men"),
        ("eleven", "eleven"),
        ("dont know", "don't know"),
        ("don't", "don't"),
        ("couldnt've", "couldn't've"),
        ("couldntve", "couldntve"),
        ("twas", "'twas"),
        ("somebody'd", "somebodyd"),
        ("its", "its"),
        ("t-shirt", "t shirt"),
        ("red/white", "red white"),
        ("red, white", "red white"),
        ("(left)", "left"),
        ("1,000", "1000"),
        ("1,000-2", "10002"),
        ("3.5", "3.5"),
        ("p.m.", "pm"),
        ("mr. x", "mr x"),
        ("what?!", "what"),
        ("10:30", "10:30"),
    ],
)
def test_answers_are_normalised_as_officially(answer, wanted):
    assert normalise(answer) == wanted


def test_normalising_twice_changes_nothing_more():
    for text in ("The two T-shirts, dont", "1,000 lbs.", "o'clock", "red/white and blue", *CONTRACTIONS):
        once = normalise(text)
        assert normalise(once) == once
    assert without_punctuation("it's") == "it's"


def test_every_contraction_lacks_one_apostrophe():
    assert len(CONTRACTIONS) == 114  # of 120 in the official table: four have a capital, two change nothing
    for short, whole in CONTRACTIONS.items():
        assert short.replace("'", "") == whole.replace("'", "")
        assert abs(len(whole) - len(short)) == 1


def test_targets_rise_by_three_tenths():
    indices = {"yes": 0, "no": 1, "2": 2, "cat": 3}
    given = ["Yes"] * 4 + ["no"] * 3 + ["two"] + ["The cat", "cat"]
    assert targets(given, indices) == pytest.approx({0: 1.0, 1: 0.9, 2: 0.3, 3: 0.6})
    assert targets(["dog"] * 10, indices) == {}


def test_the_vocabulary_has_what_is_often_the_majority():
    majority = ["yes"] * 5 + ["Two", "2", "two"] + ["cat"] * 3 + ["rare"]
    assert vocabulary(majority, 3) == ["yes", "2", "cat"]
    assert vocabulary(majority, 1) == ["yes", "2", "cat", "rare"]
    assert vocabulary(majority, 9) == []
