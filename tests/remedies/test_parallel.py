"""Spans of work on the threads of torch."""

from __future__ import annotations

import threading

import pytest
import torch

from unsmooth.remedies.kernels.parallel import over_spans


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("size", "step"), [(0, 4), (1, 1), (3, 8), (17, 4), (100, 12), (96, 12)])
def test_every_item_is_in_one_span_that_starts_at_a_step(threads, size, step):
    spans, lock = [], threading.Lock()

    def job(start: int, stop: int) -> None:
        with lock:
            spans.append((start, stop))

    over_spans(job, size, step)
    assert sorted(i for start, stop in spans for i in range(start, stop)) == list(range(size))
    assert all(start % step == 0 for start, _ in spans)
    assert len(spans) == max(1, min(threads, -(-size // step)))


@pytest.mark.parametrize("bad", [0, 3])
def test_an_error_is_raised_after_all_spans_are_done(bad):
    before, done = torch.get_num_threads(), []
    torch.set_num_threads(2)

    def job(start: int, stop: int) -> None:
        if start == bad:
            raise RuntimeError("broken")
        done.append(start)

    try:
        with pytest.raises(RuntimeError, match="broken"):
            over_spans(job, 6)
    finally:
        torch.set_num_threads(before)
    assert done == [3 - bad]
