"""Where the runs of a trial are trained: in processes on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from unsmooth.training.observer import OnProgress
from unsmooth.trials.runner import Job, run_jobs
from unsmooth.trials.settings import CompareSettings


def start_runs(jobs: Sequence[Job], settings: CompareSettings, on_progress: OnProgress) -> dict[str, str]:
    """Train every job. Returns why runs diverged, by name. Other errors raise."""
    if settings.cluster == "ray":
        from unsmooth.trials.ray_cluster import run_on_ray

        return run_on_ray(jobs, settings.run_cpus, settings.run_gpus, settings.device, on_progress)
    return run_jobs(jobs, settings.jobs, settings.device, on_progress)
