"""Sequential trials: one seed of every arm per round, until every comparison is decided.

The first interim analysis is after two seeds, the last one after the planned number N. The analysis after k seeds has
the share (k/N)³ − ((k−1)/N)³ of the error rate α, the first one (2/N)³ (power family of Kim and DeMets, Biometrika
1987). The shares add up to 1, and each analysis uses its own as the level of its interval. By the union bound, all
intervals of an arm cover its true difference together with probability 1 − α, whenever the trial stops.
"""

from __future__ import annotations

from collections.abc import Sequence

from unsmooth.results.trial import Difference, Stopping

FIRST_ANALYSIS = 2  # seeds
EXPONENT = 3  # spends little early, so that a trial that runs to its end loses little


def share(seeds: int, planned: int) -> float:
    """Share of the error rate that the analysis after a number of seeds may use."""
    before = 0 if seeds <= FIRST_ANALYSIS else seeds - 1
    return float((seeds / planned) ** EXPONENT - (before / planned) ** EXPONENT)


def interim_confidence(confidence: float, seeds: int, planned: int) -> float:
    """Confidence level of the intervals of an interim analysis."""
    return 1 - (1 - confidence) * share(seeds, planned)


def decided(difference: Difference, until: float) -> bool:
    """Whether a difference is shown, or lies within ± `until` points.

    The first holds for all arms together, by Holm's correction. The second uses the interval, and holds for each arm.
    """
    return difference.decided or bool(-until <= 100 * difference.low and 100 * difference.high <= until)


def stopping(
    differences: dict[str, Difference | None], until: float, confidence: float, seeds: int, planned: int
) -> Stopping:
    """The state of a trial after an interim analysis. None: an arm that failed, which no further seed decides."""
    outcomes: dict[str, list[str]] = {"shown": [], "within": [], "open": [], "failed": []}
    for name, difference in differences.items():
        if difference is None:
            outcomes["failed"].append(name)
        elif difference.decided:
            outcomes["shown"].append(name)
        else:
            outcomes["within" if decided(difference, until) else "open"].append(name)
    done = not outcomes["open"]
    reasons = {
        "shown": "a difference is shown for",
        "within": f"the difference is within ±{until:g} points for",
        "open": "not decided for",
        "failed": "a run failed of",
    }
    said = "; ".join(f"{reasons[key]} {_list(names)}" for key, names in outcomes.items() if names)
    when = f"Stopped after {seeds} of {planned} seeds" if seeds < planned else f"Ran all {planned} seeds"
    return Stopping(until, planned, seeds, interim_confidence(confidence, seeds, planned), done, f"{when}: {said}.")


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
