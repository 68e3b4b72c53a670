"""Worker processes that train the runs of a trial in parallel and report their progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import torch

from unsmooth.errors import Interrupted, UnsmoothError
from unsmooth.training.observer import OnProgress, ProgressObserver
from unsmooth.training.run import Diverged, train
from unsmooth.training.signals import StopFlag, graceful_shutdown
from unsmooth.utils.progress import Progress

STOPPED = "interrupted. Finished steps are kept: run the same command again to resume."
RUNS = "runs"  # the stage that all runs are
REPORT_EVERY = 0.2  # seconds between two progress reports of a worker
SIGNAL_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class _Worker:
    """What a worker process knows: the queue of its progress reports, and its device."""

    progress: Any
    device: str


_worker: ContextVar[_Worker] = ContextVar("unsmooth_worker")  # set once in each worker process


@dataclass(frozen=True)
class Job:
    """One run of a trial: its name, and the keyword arguments of `train`."""

    name: str
    arguments: Mapping[str, Any]


class AllRuns:
    """Reports of runs, passed on, and the progress of all runs together: those done, and the share of the others."""

    def __init__(self, on_progress: OnProgress, report: Progress, done: int, total: int) -> None:
        self.on_progress, self.report, self.done, self.total = on_progress, report, done, total
        self.shares: dict[str, float] = {}
        report(RUNS, done, total)

    def __call__(self, name: str, done: int, total: int, line: Mapping[str, Any] | None) -> None:
        self.shares[name] = done / total
        self.report(RUNS, min(self.done + sum(self.shares.values()), self.total), self.total)
        self.on_progress(name, done, total, line)


def threads_per_job(parallel: int) -> int:
    """Threads of each of `parallel` runs."""
    return torch.get_num_threads() if parallel == 1 else max(1, (os.cpu_count() or 1) // parallel)


def run_jobs(jobs: Sequence[Job], parallel: int, device: str, on_progress: OnProgress) -> dict[str, str]:
    """Train every job, at most `parallel` at a time. Returns why runs diverged, by name. Other errors raise."""
    parallel = min(parallel, len(jobs))
    if parallel <= 1:
        return {
            job.name: reason
            for job in jobs
            if (reason := train_job(job, ProgressObserver(job.name, on_progress), device))
        }
    context = multiprocessing.get_context("spawn")
    progress, devices = context.SimpleQueue(), context.SimpleQueue()
    for i in range(parallel):
        devices.put(_device_of(device, i))
    listener = threading.Thread(target=_listen, args=(progress, on_progress), daemon=True)
    listener.start()
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(parallel, context, _begin_worker, (progress, devices, threads_per_job(parallel)))
    ended = False
    try:
        with graceful_shutdown() as flag:
            failed = _submit_all(pool, list(jobs), parallel, flag, lambda: _signal_workers(others, signal.SIGTERM))
        ended = True
        return failed
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(STOPPED) from None
    except BrokenProcessPool as error:
        if flag.stop:  # a worker that was not training yet ends at the signal
            raise Interrupted(STOPPED) from None
        raise UnsmoothError(
            "a worker process died, possibly out of memory. Finished runs are kept: repeat with fewer jobs (--jobs)."
        ) from error
    finally:
        if ended:
            pool.shutdown()
            progress.put(None)
            listener.join()
        else:  # a dead worker may have left the queue locked, so nothing waits for it
            _signal_workers(others, signal.SIGKILL)
            pool.shutdown(wait=False, cancel_futures=True)


def _submit_all(
    pool: ProcessPoolExecutor, jobs: list[Job], parallel: int, flag: StopFlag, stop_workers: Callable[[], None]
) -> dict[str, str]:
    """Submit one job per worker at a time, since submitted jobs cannot be cancelled.

    The first signal is passed on to the workers, which save their runs; then this raises `Interrupted`.
    """
    failed: dict[str, str] = {}
    running: dict[Future[str], Job] = {}
    stopping = False
    while jobs or running:
        while jobs and len(running) < parallel and not stopping:
            job = jobs.pop(0)
            running[pool.submit(_work, job)] = job
        if flag.stop and not stopping:
            stopping = True
            stop_workers()
        done, _ = wait(running, SIGNAL_POLL_SECONDS, FIRST_COMPLETED)
        for future in done:
            job = running.pop(future)
            if isinstance(future.exception(), Interrupted | BrokenProcessPool) and stopping:
                continue
            if reason := future.result():
                failed[job.name] = reason
        if stopping and not running:
            raise Interrupted(STOPPED)
    return failed


def _signal_workers(others: set[Any], number: signal.Signals) -> None:
    """Send a signal to the processes that were started since `others`."""
    for process in set(multiprocessing.active_children()) - others:
        with suppress(OSError):
            process_id = process.pid
            assert process_id  # 0 would be the whole group
            os.kill(process_id, number)


def _device_of(device: str, worker: int) -> str:
    """The device of a worker: GPUs are shared evenly, unless one is given by name."""
    if device in ("", "cuda") and torch.cuda.is_available():
        return f"cuda:{worker % torch.cuda.device_count()}"
    return device


def _listen(progress: Any, on_progress: OnProgress) -> None:
    while (report := progress.get()) is not None:
        on_progress(*report)


def _begin_worker(progress: Any, devices: Any, threads: int) -> None:
    _worker.set(_Worker(progress, devices.get()))
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """Exit with the parent process, however it ends: an orphaned worker would keep its run directory locked."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _work(job: Job) -> str:
    worker = _worker.get()
    return train_job(
        job, ProgressObserver(job.name, lambda *report: worker.progress.put(report), REPORT_EVERY), worker.device
    )


def train_job(job: Job, observer: ProgressObserver, device: str) -> str:
    """Train a run; returns why it diverged, or ""."""
    try:
        train(**{"device": device, **job.arguments}, observer=observer)
    except Diverged as error:
        return str(error)
    return ""
