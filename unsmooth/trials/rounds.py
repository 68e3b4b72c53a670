"""Train the runs of a trial: all at once, or one seed of every arm at a time until the question is decided."""

from __future__ import annotations

from unsmooth.results.trial import Stopping
from unsmooth.training.observer import OnProgress
from unsmooth.trials.measure import differences
from unsmooth.trials.runs import OnStage, TrialRuns
from unsmooth.trials.sequential import FIRST_ANALYSIS, stopping
from unsmooth.trials.start_runs import start_runs

Failures = dict[str, str]  # reason by name of the run


def train_runs(
    runs: TrialRuns, on_progress: OnProgress, report_stage: OnStage
) -> tuple[TrialRuns, Failures, Stopping | None]:
    """Train every run that is not done.

    Returns:
        The runs with the seeds that were trained, the reasons of failed runs, and why a sequential trial stopped.
    """
    settings = runs.settings
    if settings.until is None:
        jobs = runs.jobs(runs.seeds)
        planned = len(runs.arms) * len(runs.seeds)
        report_stage(f"training {len(jobs)} of {planned} runs" if jobs else "all runs are done already")
        return runs, start_runs(jobs, settings, on_progress), None
    failures: Failures = {}
    for seed in runs.seeds:
        jobs = runs.jobs([seed])
        report_stage(f"seed {seed}: training {len(jobs)} of {len(runs.arms)} runs")
        failures |= start_runs(jobs, settings, on_progress)
        if seed + 1 < FIRST_ANALYSIS:
            continue
        state = interim_analysis(runs, seed + 1, failures)
        report_stage(state.text)
        if state.decided or seed + 1 == settings.seeds:
            return runs.with_seeds(seed + 1), failures, state
    raise AssertionError("the last analysis ends the trial")


def interim_analysis(runs: TrialRuns, seeds: int, failures: Failures) -> Stopping:
    """The state of a sequential trial after a number of seeds."""
    settings = runs.settings
    assert settings.until is not None
    measured = differences(runs.with_seeds(seeds), settings.seeds)
    failed = {arm.name for arm in runs.arms for seed in range(seeds) if arm.run_name(seed) in failures}
    by_name = {
        arm.name: None if {arm.name, runs.arms[0].name} & failed else difference
        for arm, difference in zip(runs.arms[1:], measured, strict=True)
        if arm in runs.compared
    }
    return stopping(by_name, settings.until, settings.confidence, seeds, settings.seeds)
