"""Answers as VQA's official evaluation compares them, how good one is, and what a model learns to give.

    accuracy    mean over the people who were asked of min(1, others who said the same / 3)
    target      min(1, 0.3 · people who said it)

Before a comparison an answer is in lower case, without punctuation and articles, its number words are digits and its
contractions have their apostrophes. Of the ten given answers the official evaluation only takes the punctuation away,
and that only where they are not all alike; so does `soft_accuracy`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
NUMBERS = {"none": "0"} | {word: str(number) for number, word in enumerate(_NUMBERS)}
ARTICLES = frozenset(("a", "an", "the"))
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
# Each stands for itself with one apostrophe left out.
_CONTRACTIONS = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've
    o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's
    someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've
    there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's
    what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've
    wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""
CONTRACTIONS = {
    word[:at] + word[at + 1 :]: word for word in _CONTRACTIONS.split() for at, sign in enumerate(word) if sign == "'"
} | {"somebody'd": "somebodyd"}  # the other way round, and so in the official table

_THOUSANDS = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")


def without_punctuation(text: str) -> str:
    """A sign beside a space goes, one within words becomes a space; with a number such as 1,000 all of them go."""
    dense = _THOUSANDS.search(text) is not None
    out = text
    for sign in PUNCTUATION:
        out = out.replace(sign, "" if dense or f"{sign} " in text or f" {sign}" in text else " ")
    return _PERIOD.sub("", out)


@lru_cache(maxsize=1 << 18)  # ten answers to each question, and few of them new
def normalise(answer: str) -> str:
    """An answer as it is compared, and as it stands in the vocabulary."""
    text = without_punctuation(answer.replace("\n", " ").replace("\t", " ").strip())
    words = (NUMBERS.get(word, word) for word in text.lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def soft_accuracy(answer: str, given: Sequence[str]) -> float:
    """How good an answer is: leave each person out in turn; three of the others who agree are enough."""
    truths = [without_punctuation(one) for one in given] if len(set(given)) > 1 else list(given)
    same, people = truths.count(normalise(answer)), len(truths)
    return (same * min(1.0, max(same - 1, 0) / 3) + (people - same) * min(1.0, same / 3)) / people


def targets(given: Iterable[str], places: Mapping[str, int]) -> dict[int, float]:
    """What a model learns to give to one question: places in the vocabulary, and how right each is."""
    counts = Counter(map(normalise, given))
    return {places[answer]: min(1.0, 0.3 * count) for answer, count in counts.items() if answer in places}


def vocabulary(majority: Iterable[str], least: int) -> list[str]:
    """The answers that are the most given one of at least so many questions, the most frequent first."""
    counts = Counter(map(normalise, majority))
    return sorted((answer for answer, count in counts.items() if count >= least), key=lambda a: (-counts[a], a))
