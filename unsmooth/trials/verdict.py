"""What a trial found, in words."""

from __future__ import annotations

from typing import Any

NAMED = 3  # arms without a difference that the sentence names


def judge(trial: dict[str, Any]) -> dict[str, Any]:
    """One sentence for all arms, and one for each."""
    first, *others = trial["arms"]
    seeds = len(trial["seeds"])
    if first["top1"]["mean"] is None:
        text = f"{first['name']} did not finish with any seed, so there is nothing to compare with."
        return {"text": text, "lines": [f"{arm['name']}: {_failure(arm)}." for arm in trial["arms"] if _failure(arm)]}
    groups: dict[str, list[str]] = {"better": [], "worse": [], "tie": [], "failed": []}
    for arm in others:
        d = arm["difference"]
        whole = d is not None and not _failure(arm) and not _failure(first)
        kind = "failed" if not whole else "tie" if not d["shown"] else "better" if d["mean"] > 0 else "worse"
        groups[kind].append(arm["name"])
    base = first["name"]
    # One run of each cannot tell an arm from its luck, so it is the runs that are spoken of.
    better, worse = (
        ("did better than {} in the only run", "did worse than {} in the only run")
        if seeds == 1
        else ("better than {}", "worse than {}")
    )
    parts = [
        _about(groups["better"], better.format(base), seeds),
        _about(groups["worse"], worse.format(base), seeds),
        f"no difference to {base} shown for {_ties(groups['tie'], others)}" if groups["tie"] else "",
        f"{_and(groups['failed'])} did not finish with every seed, or {base} did not" if groups["failed"] else "",
    ]
    sentence = "; ".join(part for part in parts if part)
    budget = f"on this data and budget, with {seeds} seed{'s' if seeds > 1 else ''}"
    lines = [f"{base}: {'; '.join(part for part in (_accuracy(first), _failure(first)) if part)}."]
    for arm in others:
        d = arm["difference"]
        what = f"{_accuracy(arm)}, {d['text']}" if d is not None else ""
        lines.append(f"{arm['name']}: {'; '.join(part for part in (what, _failure(arm)) if part)}.")
    if seeds == 1:
        lines.append("One seed cannot tell an arm from its luck: the intervals are over images alone.")
    if sentence.startswith("no difference"):  # otherwise it starts with a name, which is written as it is
        sentence = f"N{sentence[1:]}"
    return {"text": f"{sentence} {budget}.", "lines": lines}


def _about(names: list[str], what: str, seeds: int) -> str:
    if not names:
        return ""
    return f"{_and(names)} {what}" if seeds == 1 else f"{_and(names)} {'is' if len(names) == 1 else 'are'} {what}"


def _ties(names: list[str], others: list[dict[str, Any]]) -> str:
    """The arms by name while they are few."""
    if len(names) <= NAMED:
        return _and(names)
    return f"any of the {len(names)} arms" if len(names) == len(others) else f"the other {len(names)} arms"


def _accuracy(arm: dict[str, Any]) -> str:
    top1 = arm["top1"]
    spread = f" ± {100 * top1['sd']:.1f}" if top1["sd"] is not None else ""
    return f"{100 * top1['mean']:.1f}{spread} % top-1"


def _failure(arm: dict[str, Any]) -> str:
    failed = [run for run in arm["runs"] if run["failed"]]
    if not failed:
        return ""
    seeds = ", ".join(str(run["seed"]) for run in failed)
    return f"{len(failed)} of {len(arm['runs'])} runs failed (seed {seeds}): {failed[0]['failed']}"


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
