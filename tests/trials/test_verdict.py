"""The verdict of a trial."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unsmooth.results.trial import Arm, Difference, Run, SeedSpread
from unsmooth.trials.verdict import trial_verdict


def arm(name, mean=None, shown=True, failed=(), seeds=3):
    runs = [Run(s, "", None, None, None, None, "block 1 went first" if s in failed else None, []) for s in range(seeds)]
    difference = None if mean is None else Difference(mean, mean, mean, [], shown, "the text")
    top1 = SeedSpread(None if len(failed) == seeds else 0.5, 0.01 if seeds > 1 else None, [])
    nothing = SeedSpread(None, None, [])
    return Arm(name, "", "", None, None, None, None, top1, nothing, nothing, difference, {}, runs, None)


def verdict(*others, seeds=3, **base):
    return trial_verdict([arm("plain", seeds=seeds, **base), *others], seeds)


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([arm("a", 0.1)], "a is better than plain on this data and budget, with 3 seeds."),
        ([arm("a", -0.1), arm("b", -0.2)], "a and b are worse than plain on this data and budget, with 3 seeds."),
        ([arm("a", 0.1, False)], "No difference from plain shown for a on this data and budget, with 3 seeds."),
        ([arm(n, 0.1, False) for n in "abcd"],
         "No difference from plain shown for any of the 4 arms on this data and budget, with 3 seeds."),
        ([arm("x", 0.1), *(arm(n, 0.1, False) for n in "abcd")],
         "x is better than plain; no difference from plain shown for the other 4 arms on this data and budget, "
         "with 3 seeds."),
    ],
)  # fmt: skip
def test_one_sentence(others, text):
    assert verdict(*others).text == text


def test_an_arm_that_failed_with_a_seed_is_never_better():
    actual = verdict(arm("a", 0.3, failed=(0, 2)))
    assert actual.text.startswith("a did not finish with every seed")
    assert actual.lines[1] == "a: 50.0 ± 1.0 % top-1, the text; 2 of 3 runs failed (seed 0, 2): block 1 went first."
    assert "better" not in verdict(arm("a", 0.3), failed=(1,)).text


def test_one_seed_speaks_of_runs_not_of_methods():
    actual = verdict(arm("a", 0.3, seeds=1), seeds=1)
    assert actual.text == "a did better than plain in the only run on this data and budget, with 1 seed."
    assert "chance" in actual.lines[-1]


def test_nothing_to_compare_with():
    actual = verdict(failed=(0, 1, 2))
    assert "nothing to compare with" in actual.text and "3 of 3 runs failed" in actual.lines[0]


def corrected(name, mean, p, p_holm):
    """An arm whose plain interval excludes zero; whether it survives depends on its corrected p-value."""
    one = arm(name, mean)
    one.difference = replace(one.difference, p=p, p_holm=p_holm, survives=p_holm <= 0.05)
    return one


def test_several_comparisons_are_decided_after_correction():
    actual = verdict(corrected("a", 0.1, 0.001, 0.002), corrected("b", 0.1, 0.04, 0.08))
    assert actual.text == (
        "a is better than plain; no difference from plain shown for b on this data and budget, with 3 seeds, corrected "
        "for 2 comparisons (Holm)."
    )
    assert "the text, also shown after the correction for 2 comparisons (p = 0.002)" in actual.lines[1]
    assert "the text, not shown after the correction for 2 comparisons (p = 0.08)" in actual.lines[2]


def test_controls_have_a_line_and_no_part_in_the_sentence():
    control = replace(arm("plain, other seeds", 0.1), control="seeds")
    actual = verdict(arm("a", 0.1), control)
    assert actual.text == "a is better than plain on this data and budget, with 3 seeds."
    assert "equal models differ here" in actual.lines[2]
    assert "equal models with other seeds" in verdict(arm("a", 0.1), replace(control, difference=None)).lines[2]
