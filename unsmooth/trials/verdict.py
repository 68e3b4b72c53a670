"""The verdict of a trial: which arms differ from the first one."""

from __future__ import annotations

from collections.abc import Sequence

from unsmooth.results.trial import Arm, ArmSweep, Difference, Stopping, TrialVerdict

NAMED = 3  # arms without a difference that the sentence names


def trial_verdict(arms: Sequence[Arm], seeds: int, stopped: Stopping | None = None) -> TrialVerdict:
    """One sentence for the trial, and one line per arm. Control arms have a line only."""
    first, *others = (arm for arm in arms if arm.control is None)
    base = first.name
    if first.top1.mean is None:
        text = f"{base} did not finish with any seed, so there is nothing to compare with."
        return TrialVerdict(text, [f"{arm.name}: {_failure(arm)}." for arm in arms if arm.failed_runs])
    outcomes: dict[str, list[str]] = {"better": [], "worse": [], "tie": [], "failed": []}
    for arm in others:
        outcomes[_outcome(arm, first)].append(arm.name)
    # With one run per arm, the sentence is about the runs: a difference between methods cannot be shown.
    relation = "did {} than {} in the only run" if seeds == 1 else "{} than {}"
    clauses = [
        _clause(outcomes["better"], relation.format("better", base), seeds),
        _clause(outcomes["worse"], relation.format("worse", base), seeds),
        f"no difference from {base} shown for {_ties(outcomes['tie'], len(others))}" if outcomes["tie"] else "",
        f"{_and(outcomes['failed'])} did not finish with every seed, or {base} did not" if outcomes["failed"] else "",
    ]
    sentence = "; ".join(clause for clause in clauses if clause)
    if sentence.startswith("no difference"):  # names at the start keep their case
        sentence = f"N{sentence[1:]}"
    comparisons = sum(arm.difference is not None and arm.difference.p_holm is not None for arm in arms)
    lines = [_line(arm, comparisons, first) for arm in arms]
    if stopped is not None:
        lines.append(stopped.text)
    if seeds == 1:
        lines.append("With one seed, chance cannot be ruled out: the intervals are over images only.")
    corrected = f", corrected for {comparisons} comparisons (Holm)" if comparisons else ""
    scope = f"on this data and budget, with {seeds} seed{'s' if seeds > 1 else ''}{corrected}"
    return TrialVerdict(f"{sentence} {scope}.", lines)


def _outcome(arm: Arm, first: Arm) -> str:
    if arm.difference is None or arm.failed_runs or first.failed_runs:
        return "failed"
    if not arm.difference.decided:
        return "tie"
    return "better" if arm.difference.mean > 0 else "worse"


def _clause(names: list[str], relation: str, seeds: int) -> str:
    if not names:
        return ""
    verb = "" if seeds == 1 else "is " if len(names) == 1 else "are "
    return f"{_and(names)} {verb}{relation}"


def _ties(names: list[str], others: int) -> str:
    if len(names) <= NAMED:
        return _and(names)
    return f"any of the {len(names)} arms" if len(names) == others else f"the other {len(names)} arms"


def _line(arm: Arm, comparisons: int, first: Arm) -> str:
    parts = [_accuracy(arm)]
    if arm.difference is not None:
        parts[0] += f", {arm.difference.text}{_correction(arm.difference, comparisons)}"
    if arm.beyond_parameters is not None:
        parts.append(f"compared with the control of parameters: {arm.beyond_parameters.text}")
    if arm.start is not None:
        parts.append(_start(arm, first))
    if arm.sweep is not None:
        parts.append(_choice(arm.sweep))
    if arm.control is not None:
        parts.append(_control(arm))
    if arm.failed_runs:
        parts.append(_failure(arm))
    return f"{arm.name}: {'; '.join(part for part in parts if part)}."


def _correction(difference: Difference, comparisons: int) -> str:
    if difference.p_holm is None or not difference.shown:
        return ""
    outcome = "also shown" if difference.survives else "not shown"
    return f", {outcome} after the correction for {comparisons} comparisons (p = {difference.p_holm:.2g})"


def _start(arm: Arm, first: Arm) -> str:
    assert arm.start is not None
    text = f"{100 * arm.start.top1:.1f} % before the first step"
    if arm.start.inexact:
        text += f", where {_and(arm.start.inexact)} changes the outputs: not the start of {first.name}"
    return text


def _choice(sweep: ArmSweep) -> str:
    """The value that a sweep chose."""
    values = ", ".join(str(run.value) for run in sweep.runs)
    if sweep.chosen is None:
        return f"no run of the sweep {sweep.field} = {values} finished, so the recipe's value is used"
    edge = ", at the edge of the sweep: a value beyond may be better" if sweep.edge else ""
    return f"{sweep.field} = {sweep.chosen} chosen from {values}{edge}"


def _control(arm: Arm) -> str:
    if arm.control == "parameters":
        return "control: a wider host without the remedies"
    if arm.difference is not None and arm.difference.shown:
        return "negative control: equal models differ here, so do not trust differences of this size"
    return "negative control: equal models with other seeds"


def _accuracy(arm: Arm) -> str:
    if arm.top1.mean is None:
        return ""
    deviation = f" ± {100 * arm.top1.sd:.1f}" if arm.top1.sd is not None else ""
    return f"{100 * arm.top1.mean:.1f}{deviation} % top-1"


def _failure(arm: Arm) -> str:
    failed = arm.failed_runs
    seeds = ", ".join(str(run.seed) for run in failed)
    return f"{len(failed)} of {len(arm.runs)} runs failed (seed {seeds}): {failed[0].failed}"


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
