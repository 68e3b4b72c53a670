"""Small decompositions on one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which torch computes on one thread.

    Decompositions of matrices of a few hundred rows are slower on several threads, by orders of magnitude on a busy
    machine: the threads wait for each other at every step.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
