"""Runs side by side: worker processes that each train one run after the other, and say how far they are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import torch

from unsmooth.errors import Interrupted, UnsmoothError
from unsmooth.training.observer import OnProgress, ProgressObserver
from unsmooth.training.run import Diverged, train

STOPPED = "stopped; what is done is kept: the same command goes on from there"
NEWS_EVERY = 0.2  # seconds between two words of a worker about its steps

_news: Any = None  # of a worker: where it tells how far it is
_device = ""


@dataclass(frozen=True)
class Job:
    """One run of a trial: its name for people, and what `train` is called with."""

    name: str
    arguments: Mapping[str, Any]


def threads_of(at_once: int) -> int:
    """How many cores each of so many runs has."""
    return torch.get_num_threads() if at_once == 1 else max(1, (os.cpu_count() or 1) // at_once)


def run_jobs(jobs: Sequence[Job], at_once: int, device: str, on_progress: OnProgress) -> dict[str, str]:
    """Train every job; gives why some failed, by name. Loss that is not finite is a result; other errors stop all."""
    at_once = min(at_once, len(jobs))
    if at_once <= 1:
        return {
            job.name: reason for job in jobs if (reason := _train(job, ProgressObserver(job.name, on_progress), device))
        }
    context = multiprocessing.get_context("spawn")
    news, devices = context.SimpleQueue(), context.SimpleQueue()
    for i in range(at_once):
        devices.put(_device_of(device, i))
    listener = threading.Thread(target=_listen, args=(news, on_progress), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(at_once, context, _begin_worker, (news, devices, threads_of(at_once)))
    try:
        return _work_off(pool, list(jobs), at_once)
    except KeyboardInterrupt:
        raise Interrupted(STOPPED) from None
    except BrokenProcessPool as error:
        raise UnsmoothError(
            "a worker process died (out of memory?); finished runs are kept: repeat the command, with fewer --jobs"
        ) from error
    finally:
        pool.shutdown()
        news.put(None)
        listener.join()


def _work_off(pool: ProcessPoolExecutor, jobs: list[Job], at_once: int) -> dict[str, str]:
    """Hand out one job a worker and not more: what is handed out cannot be taken back."""
    failed: dict[str, str] = {}
    running: dict[Future[str], Job] = {}
    while jobs or running:
        while jobs and len(running) < at_once:
            job = jobs.pop(0)
            running[pool.submit(_work, job)] = job
        for done in wait(running, return_when=FIRST_COMPLETED).done:
            job = running.pop(done)
            if reason := done.result():
                failed[job.name] = reason
    return failed


def _device_of(device: str, worker: int) -> str:
    """Workers share the GPUs evenly; a device that was named is used by all."""
    if device in ("", "cuda") and torch.cuda.is_available():
        return f"cuda:{worker % torch.cuda.device_count()}"
    return device


def _listen(news: Any, on_progress: OnProgress) -> None:
    while (found := news.get()) is not None:
        on_progress(*found)


def _begin_worker(news: Any, devices: Any, threads: int) -> None:
    global _news, _device
    _news, _device = news, devices.get()
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """End with the process that began the trial, however it ends: a worker left alone would keep its run's folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _work(job: Job) -> str:
    return _train(job, ProgressObserver(job.name, lambda *found: _news.put(found), NEWS_EVERY), _device)


def _train(job: Job, observer: ProgressObserver, device: str) -> str:
    try:
        train(**{"device": device, **job.arguments}, observer=observer)
    except Diverged as error:
        return str(error)
    return ""
