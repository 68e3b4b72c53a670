"""VQA answers: normalisation and accuracy of the official evaluation, and training targets.

    accuracy    mean over annotators of min(1, number of other annotators with the same answer / 3)
    target      min(1, 0.3 · number of annotators with the answer)

A predicted answer is converted to lower case, without punctuation and articles, with digits for number words and with
apostrophes in contractions. Of the annotators' answers, the official evaluation only removes punctuation, and only if
they are not all equal; so does `soft_accuracy`.
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
# Each also stands for the forms with one apostrophe left out.
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
} | {"somebody'd": "somebodyd"}  # reversed, as in the official table

_THOUSANDS = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")


def without_punctuation(text: str) -> str:
    """Remove punctuation next to spaces and replace it by a space within words; with numbers like 1,000 remove all."""
    dense = _THOUSANDS.search(text) is not None
    out = text
    for sign in PUNCTUATION:
        out = out.replace(sign, "" if dense or f"{sign} " in text or f" {sign}" in text else " ")
    return _PERIOD.sub("", out)


@lru_cache(maxsize=1 << 18)  # ten answers per question, mostly the same
def normalise(answer: str) -> str:
    """Normalise an answer, for comparison and for the vocabulary."""
    text = without_punctuation(answer.replace("\n", " ").replace("\t", " ").strip())
    words = (NUMBERS.get(word, word) for word in text.lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def soft_accuracy(answer: str, annotated: Sequence[str]) -> float:
    """Official accuracy of an answer, given the answers of the annotators."""
    truths = [without_punctuation(text) for text in annotated] if len(set(annotated)) > 1 else list(annotated)
    same, people = truths.count(normalise(answer)), len(truths)
    return (same * min(1.0, max(same - 1, 0) / 3) + (people - same) * min(1.0, same / 3)) / people


def targets(annotated: Iterable[str], indices: Mapping[str, int]) -> dict[int, float]:
    """Training targets of a question: scores by index in the answer vocabulary."""
    counts = Counter(map(normalise, annotated))
    return {indices[answer]: min(1.0, 0.3 * count) for answer, count in counts.items() if answer in indices}


def vocabulary(majority: Iterable[str], least: int) -> list[str]:
    """Answers that are the majority answer of at least `least` questions, in order of frequency."""
    counts = Counter(map(normalise, majority))
    return sorted((answer for answer, count in counts.items() if count >= least), key=lambda a: (-counts[a], a))
