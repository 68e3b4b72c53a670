"""Runs of a trial as tasks of a Ray cluster.

A task trains one run in the trial directory, which all nodes share. When a node is lost, Ray starts its tasks again
on another one, and each continues from the last checkpoint of its run, bit for bit. Runs report to an actor on the node
of this process, which thus outlives the others.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from unsmooth.errors import Interrupted, UnsmoothError, first_line, missing_package
from unsmooth.training.observer import OnProgress, ProgressObserver
from unsmooth.training.run_dir import Locked, RunDir
from unsmooth.training.signals import graceful_shutdown
from unsmooth.trials.runner import SIGNAL_POLL_SECONDS, STOPPED, Job, train_job

RETRIES = 16  # of a run whose node or process is lost
REPORT_EVERY = 0.5  # seconds between two progress reports of a run
LOCK_WAIT = 120.0  # seconds in which a process of a lost node must have ended
SAVE_WAIT = 120.0  # seconds in which interrupted runs must have saved their checkpoints


def run_on_ray(jobs: Sequence[Job], cpus: float, gpus: float, device: str, on_progress: OnProgress) -> dict[str, str]:
    """Train every job on a Ray cluster. Returns why runs diverged, by name. Other errors raise.

    Args:
        jobs: Runs to train. Their folders and data must have the same paths on all nodes.
        cpus: CPUs of each run, which is also its number of threads.
        gpus: GPUs of each run.
        device: Device of the runs; with GPUs, each run uses its own.
        on_progress: Called with the progress of runs.

    Raises:
        UnsmoothError: If Ray is not installed or no cluster runs, if no node has the resources, or if a run fails.
        Interrupted: After SIGINT or SIGTERM, when the runs have saved their checkpoints.
    """
    if not jobs:
        return {}
    ray = _connect(cpus, gpus)
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    reports = ray.remote(num_cpus=0, max_concurrency=4)(_Reports).options(scheduling_strategy=here).remote()
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)(_work)
    threads, folder = max(1, int(cpus)), str(Path.cwd())
    running = {task.remote(job, "cuda" if gpus else device, threads, folder, reports): job for job in jobs}
    failed: dict[str, str] = {}
    try:
        with graceful_shutdown() as flag:
            while running:
                done, _ = ray.wait(list(running), timeout=SIGNAL_POLL_SECONDS)
                _pass_on(ray, reports, on_progress)
                for reference in done:
                    job = running.pop(reference)
                    if reason := _result(ray, reference, job):
                        failed[job.name] = reason
                if flag.stop:
                    raise Interrupted(STOPPED)
    finally:
        if running:  # the others save their checkpoints, which the next call resumes
            for reference in running:
                ray.cancel(reference)
            ray.wait(list(running), num_returns=len(running), timeout=SAVE_WAIT)
        _pass_on(ray, reports, on_progress)
        ray.kill(reports)
    return failed


class _Reports:
    """The last progress of each run, and every epoch that ended."""

    def __init__(self) -> None:
        self.steps: dict[str, tuple[Any, ...]] = {}
        self.epochs: list[tuple[Any, ...]] = []

    def put(self, name: str, done: int, total: int, line: Mapping[str, Any] | None) -> None:
        if line is None:
            self.steps[name] = (name, done, total, None)
        else:
            self.steps.pop(name, None)  # it is older
            self.epochs.append((name, done, total, line))

    def take(self) -> list[tuple[Any, ...]]:
        reports = [*self.epochs, *self.steps.values()]
        self.epochs, self.steps = [], {}
        return reports


def _work(job: Job, device: str, threads: int, folder: str, reports: Any) -> str:
    """Train a run in a process of the cluster; returns why it diverged, or ""."""
    try:
        os.chdir(folder)  # names of data and folders may be relative
    except OSError as error:
        raise UnsmoothError(
            f"{folder} does not exist on {os.uname().nodename}. Use a folder that all nodes share."
        ) from error
    torch.set_num_threads(threads)
    observer = ProgressObserver(job.name, lambda *report: reports.put.remote(*report), REPORT_EVERY)
    deadline = time.monotonic() + LOCK_WAIT
    while True:
        try:
            return train_job(job, observer, device)
        except Locked:  # by a process of a lost node that has not ended yet
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _connect(cpus: float, gpus: float) -> Any:
    """Ray, connected to a running cluster that has a node for each run."""
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise missing_package("cluster='ray' (--cluster)", "ray", "ray") from error
    if not ray.is_initialized():
        try:
            ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # no cluster, another version of Ray or Python, a wrong address
            raise UnsmoothError(
                f"cannot connect to a Ray cluster: {first_line(error)}. Start one with `ray start --head`, and set "
                "RAY_ADDRESS if it runs elsewhere."
            ) from error
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        has = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise UnsmoothError(
            f"no node of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs (nodes: {has}). Use other "
            "run_cpus or run_gpus (--run-cpus, --run-gpus)."
        )
    return ray


def _pass_on(ray: Any, reports: Any, on_progress: OnProgress) -> None:
    with suppress(ray.exceptions.RayError):
        for report in ray.get(reports.take.remote(), timeout=5):
            on_progress(*report)


def _result(ray: Any, reference: Any, job: Job) -> str:
    try:
        reason: str = ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, UnsmoothError):
            raise cause from None
        raise UnsmoothError(
            f"the run {job.name} failed on the Ray cluster: {first_line(cause or error)}. Finished steps are kept: "
            "run the same command again to resume."
        ) from error
    if not reason and not RunDir(Path(job.arguments["out"])).done:
        raise UnsmoothError(
            f"the run {job.name} is done, but {job.arguments['out']} has no result. Use a folder that all nodes share."
        )
    return reason
