"""The difference that a trial can detect, computed before its first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import numpy as np
from pydantic import TypeAdapter, ValidationError
from scipy import optimize, stats

from unsmooth.errors import UnsmoothError
from unsmooth.results.trial import Power
from unsmooth.trials.runs import TrialRuns, paired_arrays
from unsmooth.trials.sequential import interim_confidence
from unsmooth.trials.statistics import Array
from unsmooth.utils.files import write

POWER = 0.8
WORST = 0.5  # accuracy at which runs can disagree most
QUANTILES = 2000  # of the estimated variance over seeds


@dataclass(frozen=True)
class Expectation:
    """What is expected of the runs before they are made, and where it comes from."""

    accuracy: float
    disagreement: float
    paired_sd: float
    source: str


def detectable_difference(
    seeds: int, images: int, disagreement: float, paired_sd: float | None = None, confidence: float = 0.95,
    power: float = POWER,
) -> float:  # fmt: skip
    """Smallest true difference in accuracy that `paired_difference` shows with a given probability.

    The mean difference is about normal. Its variance has a part over seeds, s²/n, and a part of images on which all
    seeds differ alike, (q − c)/M, where q is the disagreement, M the number of images and c = min(q, M s²) the share
    of q that changes from seed to seed. The interval is that of `paired_difference` with the estimate ŝ of s, over
    which the probability is averaged. With one seed, both cover images only.

    Args:
        seeds: Runs per arm, n.
        images: Validation images, M.
        disagreement: Share of images that only one of two paired runs classifies correctly, q.
        paired_sd: Standard deviation over seeds of the paired difference, s. Default: √(q/M), that of runs that differ
            on images at random.
        confidence: Confidence level of the interval.
        power: Probability to show the difference.

    Returns:
        The difference as a fraction.

    Example:
        >>> from unsmooth.trials.power import detectable_difference
        >>> round(100 * detectable_difference(seeds=5, images=10_000, disagreement=0.16), 2)
        0.67
    """
    if min(seeds, images) < 1 or not 0 < disagreement <= 1 or (paired_sd is not None and paired_sd <= 0):
        raise UnsmoothError(
            f"seeds and images must be at least 1, disagreement above 0 and at most 1, and paired_sd above 0 (got "
            f"{seeds}, {images}, {disagreement:g} and {paired_sd})"
        )
    noise = disagreement / images
    variance = noise if paired_sd is None else paired_sd**2
    z = stats.norm.ppf(0.5 + confidence / 2)
    if seeds == 1:
        return float((z + stats.norm.ppf(power)) * sqrt(noise))
    shared = noise - min(noise, variance)
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    estimated = variance * stats.chi2.ppf(levels, seeds - 1) / (seeds - 1)
    total = estimated / seeds + shared
    level = 0.5 + confidence / 2
    over_both = stats.t.ppf(level, (seeds - 1) * (total * seeds / estimated) ** 2) * np.sqrt(total)
    half = np.maximum(over_both, stats.t.ppf(level, seeds - 1) * np.sqrt(estimated / seeds))
    sd = sqrt(variance / seeds + shared)

    def shortfall(difference: float) -> float:
        shown = stats.norm.sf(half, difference, sd) + stats.norm.cdf(-half, difference, sd)
        return float(shown.mean()) - power

    return float(optimize.brentq(shortfall, 0.0, float(half.max()) + 10 * sd))


def state_power(runs: TrialRuns) -> Power:
    """The detectable difference of a trial. A trial of the same design keeps what it stated first."""
    path, stated = runs.directory.power, power_of(runs)
    if path.exists():
        try:
            before = TypeAdapter(Power).validate_json(path.read_bytes())
        except ValidationError as error:
            raise UnsmoothError(f"cannot read {path}: {error.errors()[0]['msg']}. Remove the file.") from error
        design = ("seeds", "images", "confidence", "comparisons")
        if all(getattr(before, name) == getattr(stated, name) for name in design):
            return before
    write(path, TypeAdapter(Power).dump_json(stated, indent=1) + b"\n")
    return stated


def power_of(runs: TrialRuns) -> Power:
    """The detectable difference of a trial, from its finished runs if there are some."""
    settings, images, comparisons = runs.settings, runs.splits.val.count, max(1, len(runs.compared))
    expected = expectation(runs)
    confidence = settings.confidence
    if settings.until is not None:  # a trial that stops early has shown a larger difference
        confidence = interim_confidence(confidence, settings.seeds, settings.seeds)

    def detectable(level: float) -> float:
        return detectable_difference(settings.seeds, images, expected.disagreement, expected.paired_sd, level)

    difference = detectable(confidence)
    corrected = detectable(1 - (1 - confidence) / comparisons) if comparisons > 1 else None
    seeds = f"{settings.seeds} seed{'s' if settings.seeds > 1 else ''}"
    also = f", or {100 * corrected:.2f} after the correction for {comparisons} comparisons" if corrected else ""
    text = (
        f"{seeds} and {images:,} validation images show a true difference of {100 * difference:.2f} points{also}, with "
        f"a probability of {100 * POWER:g} %. Expected: accuracy {100 * expected.accuracy:.1f} %, two runs disagree on "
        f"{100 * expected.disagreement:.1f} % of the images, their difference varies by {100 * expected.paired_sd:.2f} "
        f"points over seeds ({expected.source})."
    )
    return Power(
        difference, corrected, POWER, confidence, comparisons, settings.seeds, images, expected.accuracy,
        expected.disagreement, expected.paired_sd, expected.source, text,
    )  # fmt: skip


def expectation(runs: TrialRuns) -> Expectation:
    """Disagreement and variation of the runs that are done: pairs of arms, or runs of the first arm; else assumed."""
    base = runs.correct(runs.arms[0])
    images = runs.splits.val.count
    pairs = [paired_arrays(runs.correct(arm), base) for arm in runs.compared]
    complete = [pair for pair in pairs if pair is not None and len(pair[0]) > 1]
    if complete:
        return _of_pairs(complete)
    done = [run for run in base if run is not None]
    if len(done) > 1:
        scores = [paired_arrays([a], [b]) for a, b in combinations(done, 2)]
        disagreement = float(np.mean([np.mean(pair[0] != pair[1]) for pair in scores if pair is not None]))
        accuracies = [float(np.mean(list(run.values()))) for run in done]
        sd = max(sqrt(2) * float(np.std(accuracies, ddof=1)), sqrt(disagreement / images))
        return _expectation(float(np.mean(accuracies)), disagreement, sd, images,
                            f"measured on {len(done)} runs of {runs.arms[0].name} with different seeds")  # fmt: skip
    if done:
        accuracy = float(np.mean(list(done[0].values())))
        source = f"accuracy measured on one run of {runs.arms[0].name}; errors assumed to be half shared"
    else:
        accuracy, source = WORST, "assumed, since there are no runs yet: the worst accuracy, errors half shared"
    disagreement = accuracy * (1 - accuracy)  # independent errors would disagree on 2a(1 − a)
    return _expectation(accuracy, disagreement, sqrt(disagreement / images), images, source)


Pair = tuple[Array, Array]


def _of_pairs(pairs: Sequence[Pair]) -> Expectation:
    """Means over arms. The variation over seeds is at least that of single images, which many images estimate well."""
    differences = [own.astype(float) - base for own, base in pairs]
    disagreement = float(np.mean([np.mean(d != 0) for d in differences]))
    variance = float(np.mean([d.mean(axis=1).var(ddof=1) for d in differences]))
    of_images = float(np.mean([d.var(axis=0, ddof=1).mean() / d.shape[1] for d in differences]))
    accuracy = float(np.mean([base.mean() for _, base in pairs]))
    images, count = differences[0].shape[1], len(differences)
    source = f"measured on {len(differences[0])} seeds of {count} arm{'s' if count > 1 else ''} and the first one"
    return _expectation(accuracy, disagreement, sqrt(max(variance, of_images)), images, source)


def _expectation(accuracy: float, disagreement: float, sd: float, images: int, source: str) -> Expectation:
    """At least half an image of disagreement, so that runs without any do not promise to detect everything."""
    least = 0.5 / images
    return Expectation(accuracy, max(disagreement, least), max(sd, least), source)
