"""Compiled functions on the threads that torch is allowed to use."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_pool: tuple[int, ThreadPoolExecutor] | None = None  # its threads, which are one fewer than those of torch


def _forget() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # threads do not survive a fork


def _helpers(count: int) -> ThreadPoolExecutor:
    global _pool
    if _pool is None or _pool[0] < count:
        _pool = count, ThreadPoolExecutor(count, "unsmooth")
    return _pool[1]


def over_spans(job: Callable[[int, int], None], size: int, step: int = 1) -> None:
    """Call `job(start, stop)` for spans of `range(size)` that are multiples of `step`, one for each thread of torch.

    The job must release the GIL, and what it computes must not depend on where the spans end.
    """
    steps = -(-size // step)
    parts = max(1, min(torch.get_num_threads(), steps))
    ends = [min(size, steps * i // parts * step) for i in range(parts + 1)]
    spans = list(itertools.pairwise(ends))
    waiting = [_helpers(parts - 1).submit(job, *span) for span in spans[1:]]
    try:
        job(*spans[0])
    finally:
        for each in waiting:  # the arrays are in use until every thread is done
            each.result()
