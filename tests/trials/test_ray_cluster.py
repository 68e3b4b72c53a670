"""A trial on a Ray cluster of two nodes on this machine, one of which is killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from tests.support.runs import HOST, same_state, trainer_state
from unsmooth.errors import Interrupted, UnsmoothError
from unsmooth.training.checkpoint import read_state
from unsmooth.trials import ray_cluster
from unsmooth.trials.compare import compare
from unsmooth.trials.ray_cluster import _Reports, run_on_ray
from unsmooth.trials.runner import Job

SPECS = [HOST, HOST + "+attn_scale"]
FIELDS: dict[str, Any] = {
    "epochs": 5, "batch_size": 16, "train_images": 256, "val_images": 32, "vitals_every": 0, "warmup_epochs": 0,
    "seeds": 1, "vitals": "none", "costs": False,
}  # fmt: skip
FAST = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 4}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and one more node, of one CPU each. The last test kills the second."""
    pytest.importorskip("ray")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "150")  # on a machine that is busy with other tests
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    made = Cluster(
        initialize_head=True, head_node_args={**node, "include_dashboard": False, "_system_config": FAST}
    )  # fmt: skip
    try:
        made.second = made.add_node(**node)
        made.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.full
def test_mistakes_on_a_cluster(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"no node of the Ray cluster has 8 CPUs and 0 GPUs \(nodes: 1 CPUs"):
        compare(SPECS, "digits", out=tmp_path, cluster="ray", run_cpus=8, progress=False, **FIELDS)
    job = Job("a", {"spec": "no_such_host", "data": "digits", "out": tmp_path / "a"})
    with pytest.raises(UnsmoothError, match="no_such_host"):
        run_on_ray([job], 1, 0, "cpu", lambda *report: None)


PLACE = (1, 3)  # the epoch and the step before which a run waits


def waiting(folder: Path) -> Any:
    """Runs that write where they start, and that wait at `PLACE` until the node is killed or they are interrupted.

    A function inside of one is sent by value.
    """

    def work(job: Job, *others: Any) -> str:
        from unsmooth.training.trainer import Trainer
        from unsmooth.trials.ray_cluster import _work

        step, started, interrupted = Trainer._step, False, False

        def wait() -> None:
            handler: Any = signal.getsignal(signal.SIGINT)

            def note(*received: Any) -> None:
                nonlocal interrupted
                interrupted = True
                handler(*received)

            signal.signal(signal.SIGINT, note)
            (folder / f"waits_{job.name}").touch()
            deadline = time.monotonic() + 120
            while not interrupted and not (folder / "killed").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            signal.signal(signal.SIGINT, handler)

        def patient_step(self: Trainer, batch: Any) -> None:
            nonlocal started
            if not started:
                started = True
                with (folder / "starts").open("a") as file:
                    file.write(f"{job.name}\t{self.epoch}\n")
            if (self.epoch, self.step) == PLACE:
                wait()
            step(self, batch)

        Trainer._step = patient_step  # type: ignore[method-assign]
        try:
            return _work(job, *others)
        finally:
            Trainer._step = step  # type: ignore[method-assign]

    return work


def when_both_wait(folder: Path, action: Callable[[], Any]) -> Thread:
    """A thread that acts once two runs wait, if they do so within two minutes."""

    def act() -> None:
        deadline = time.monotonic() + 120
        while len(list(folder.glob("waits_*"))) < 2:
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
        action()

    thread = Thread(target=act, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.full
def test_an_interrupted_trial_saves_its_runs(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_work", waiting(tmp_path))
    when_both_wait(tmp_path, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="run the same command again"):
        compare(SPECS, "digits", out=tmp_path / "trial", cluster="ray", progress=False, **FIELDS)
    states = [read_state(path)["trainer"] for path in tmp_path.rglob("state.safetensors")]
    assert [(state["epoch"], state["step"]) for state in states] == [(PLACE[0], PLACE[1] + 1)] * 2
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.slow
def test_runs_of_a_lost_node_resume_elsewhere(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is killed while each node is within an epoch of a run that has a checkpoint."""
    monkeypatch.setattr(ray_cluster, "_work", waiting(tmp_path))

    def kill() -> None:
        cluster.remove_node(cluster.second, allow_graceful=False)
        (tmp_path / "killed").touch()

    killer = when_both_wait(tmp_path, kill)
    trial = compare(SPECS, "digits", out=tmp_path / "ray", cluster="ray", progress=False, **FIELDS)
    killer.join(timeout=120)
    assert (tmp_path / "killed").exists(), "both runs have waited, and a node was killed"
    by_run: dict[str, list[int]] = {}
    for line in (tmp_path / "starts").read_text().splitlines():
        name, epoch = line.split("\t")
        by_run.setdefault(name, []).append(int(epoch))
    assert [epochs[0] for epochs in by_run.values()] == [0, 0]
    again = [epoch for epochs in by_run.values() for epoch in epochs[1:]]
    assert again and min(again) > 0, "a run goes on from its checkpoint, and not from the start"

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = compare(SPECS, "digits", out=tmp_path / "local", progress=False, **FIELDS)
    finally:
        torch.set_num_threads(threads)
    for path in (tmp_path / "local").rglob("state.safetensors"):
        run = path.parent.relative_to(tmp_path / "local")
        assert same_state(trainer_state(tmp_path / "local" / run), trainer_state(tmp_path / "ray" / run)), run
    assert trial.arms[1].difference == alone.arms[1].difference


def test_without_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnsmoothError, match=r"cluster='ray' \(--cluster\) needs ray. pip install 'unsmooth\[ray\]'"):
        compare(SPECS, "digits", out=tmp_path, cluster="ray", progress=False, **FIELDS)
    assert not any(path.name == "state.safetensors" for path in tmp_path.rglob("*"))
    assert run_on_ray([], 1, 0, "cpu", lambda *report: None) == {}


def test_reports_keep_the_last_step_and_every_epoch() -> None:
    reports = _Reports()
    for done, line in ((1, None), (2, None), (2, {"epoch": 1}), (3, None), (4, {"epoch": 2})):
        reports.put("a", done, 4, line)
    assert reports.take() == [("a", 2, 4, {"epoch": 1}), ("a", 4, 4, {"epoch": 2})] and reports.take() == []
