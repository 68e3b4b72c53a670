"""One thread for each process: the tests run on all cores at once, and tiny tensors gain nothing from more."""

import gc
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some virtual machines announce AMX but trap its instructions; without them bfloat16 runs everywhere.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

gc.disable()  # until the tests start: it visits all objects several times while modules are imported

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("unsmooth", deadline=None)  # a busy machine is no bug
settings.load_profile("unsmooth")

COVERED = 3  # cases of a parametrised test
UNCOVERED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coverage, which slows tests by half, is measured on the fast tests and on the first cases of each only.

    Files with slow tests come first, then those with many, so that no process is left alone with one at the end.
    """
    cases: Counter[str] = Counter()
    sizes = Counter(item.path for item in items)
    first = set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        cases[function] += 1
        slow = any(item.get_closest_marker(name) for name in ("law", "slow"))
        if slow:
            first.add(item.path)
        item.stash[UNCOVERED] = slow or cases[function] > COVERED
    items.sort(key=lambda item: (False, 0) if item.path in first else (True, -sizes[item.path]))


def pytest_collection_finish() -> None:
    """Garbage collection does not visit the modules and the tests, and is rarer than Python's default."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else nanobind warns of leaks when Python ends


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Tests that are not covered run without a tracer.

    The marker `no_cover` of pytest-cov leaves one in the processes of xdist, where it starts two and pauses the second.
    """
    tracer = sys.gettrace()
    if tracer is None or not item.stash[UNCOVERED]:
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


@pytest.fixture(scope="session", autouse=True)
def _one_round_of_timing() -> Iterator[None]:
    """Trials and papers time their models by the clock, in rounds: tests need one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unsmooth.trials.measure.ROUNDS", 1)
        patch.setattr("unsmooth.papers.costs.ROUNDS", {True: 1, False: 1})
        yield


@pytest.fixture
def coarse_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of 100 pixels per inch: those of 300 take seconds to draw."""
    from unsmooth.report import panels

    monkeypatch.setitem(panels.STYLE, "figure.dpi", 100)


@pytest.fixture
def examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The anatomy of a small host is read when its first copy is treated, and known for the next ones."""
    from tests.support.small_hosts import examine_once

    monkeypatch.setattr("unsmooth.surgery.plan.examine", examine_once)


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one process, for DistributedDataParallel."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="session", autouse=True)
def _no_child_is_left() -> Iterator[None]:
    """Python waits for its child processes when it ends: those of tests that failed are killed."""
    yield
    for child in multiprocessing.active_children():
        child.kill()
