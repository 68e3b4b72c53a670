"""Token scores of a trial as tables: the last block of each arm, and the block that is best in the first arm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unsmooth.report.token_names import METRICS, PROBES, TOKENS
from unsmooth.report.trial_rows import ScoreTable, score_table

if TYPE_CHECKING:
    from unsmooth.results.trial import ArmTokens, Difference, SeedSpread, Trial, TrialProbe

    Score = tuple[SeedSpread | None, Difference | None]


def token_tables(trial: Trial) -> list[ScoreTable]:
    """One table per kind of token and probe."""
    if trial.tokens is None:
        return []
    return [
        score_table(trial, title_of(probe), list(columns), list(zip(*columns.values(), strict=True)), digits=1)
        for probe in trial.tokens.probes
        if (columns := token_columns(trial, probe))
    ]


def title_of(probe: TrialProbe) -> str:
    return f"{TOKENS[probe.tokens]}, {PROBES[probe.probe]}: {METRICS[probe.metric]}"


def token_columns(trial: Trial, probe: TrialProbe) -> dict[str, list[Score]]:
    """Scores and differences of the arms at their last block, and at the best one of the first arm, by heading."""
    by_name = {arm.arm: arm for arm in probe.arms}
    arms = [by_name.get(arm.name) for arm in trial.arms]
    lasts = {arm.blocks[-1].block for arm in probe.arms}
    number = f" {min(lasts)}" if len(lasts) == 1 else ""
    if lasts == {probe.best}:
        return {f"last and best block{number}": [_at_last(arm) for arm in arms]}
    columns = {f"last block{number}": [_at_last(arm) for arm in arms]}
    if probe.best is not None:
        columns[f"best block {probe.best}"] = [_at_best(arm, probe.best) for arm in arms]
    return columns


def token_note(trial: Trial) -> str:
    """What was scored, and how arms are compared; empty if nothing was scored."""
    tokens = trial.tokens
    if tokens is None or not tokens.probes:
        return ""
    kept = f", {tokens.memory_tokens:,} tokens" if tokens.memory_tokens else ""
    chance = "" if tokens.chance is None else f"; chance {100 * tokens.chance:.1f} %"
    return (
        f"Frozen tokens of the final models on {tokens.images:,} images of {tokens.data} (memory: "
        f"{tokens.memory_images:,} images{kept}{chance}). Differences are paired by seed and image, and not corrected "
        f"for their number."
    )


def _at_last(arm: ArmTokens | None) -> Score:
    return (None, None) if arm is None else (arm.blocks[-1].score, arm.last)


def _at_best(arm: ArmTokens | None, block: int) -> Score:
    if arm is None:
        return None, None
    return next((one.score for one in arm.blocks if one.block == block), None), arm.best
