"""Compiled functions on the threads that torch is allowed to use."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


@cache
def _helpers(count: int, process: int) -> ThreadPoolExecutor:
    """Threads of a process. They do not survive a fork, so a child has its own."""
    return ThreadPoolExecutor(count, "unsmooth")


def over_spans(job: Callable[[int, int], None], size: int, step: int = 1) -> None:
    """Call `job(start, stop)` for spans of `range(size)` that are multiples of `step`, one for each thread of torch.

    The job must release the GIL, and what it computes must not depend on where the spans end.
    """
    steps = -(-size // step)
    threads = torch.get_num_threads()
    parts = max(1, min(threads, steps))
    ends = [min(size, steps * i // parts * step) for i in range(parts + 1)]
    spans = list(itertools.pairwise(ends))
    waiting = [_helpers(threads - 1, os.getpid()).submit(job, *span) for span in spans[1:]]
    try:
        job(*spans[0])
    finally:
        for each in waiting:  # the arrays are in use until every thread is done
            each.result()
