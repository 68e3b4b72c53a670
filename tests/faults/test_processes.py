"""Processes of torchrun that die, or that never come."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support.runs import HOST, ended, free_port, in_child
from unsmooth.errors import UnsmoothError
from unsmooth.utils import processes as distributed


def as_worker(monkeypatch: pytest.MonkeyPatch, port: int, **more: str) -> None:
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in {**place, **more}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "JOIN", timedelta(seconds=1))


def test_a_process_that_never_comes_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    as_worker(monkeypatch, free_port())
    with pytest.raises(UnsmoothError, match=r"cannot join the process group: .*All 2 processes must start within 1 s"):
        distributed.init_processes("cpu")


@pytest.mark.slow
def test_addresses_of_the_start_before_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's store keeps what the first start wrote. The second one must not wait for processes that are dead."""
    port = free_port()
    agent = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)

    def join(rank: int, restart: int) -> None:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT=str(restart),
        )  # fmt: skip
        distributed.JOIN = timedelta(seconds=20)
        processes = distributed.init_processes("cpu")
        if processes.gather(rank) != [0, 1]:
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)  # nothing is closed, as when a worker is killed

    for restart in range(2):
        children = [in_child(lambda rank=rank, restart=restart: join(rank, restart)) for rank in range(2)]
        assert [ended(child, 60) for child in children] == [-signal.SIGKILL] * 2
    del agent


@pytest.mark.full
def test_torchrun_recovers_from_a_killed_worker(tmp_path: Path) -> None:
    """kill -9 of one of two workers, three times: torchrun starts them again and the run ends."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3",
        "-m", "unsmooth", "train", HOST, "--data", "digits", "--out", str(tmp_path / "run"), "--epochs", "6",
        "--train-images", "512", "--val-images", "64", "--batch-size", "16", "--save-every", "0.2",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", None)
    log = (tmp_path / "log").open("w")
    agent = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    state, killed, deadline = tmp_path / "run" / "state.safetensors", 0, time.monotonic() + 270
    seen = 0.0
    try:
        while agent.poll() is None and time.monotonic() < deadline:
            time.sleep(0.3)
            if killed < 3 and state.exists() and state.stat().st_mtime != seen:  # a step since the last start
                seen = state.stat().st_mtime
                workers = _children(agent.pid)
                if len(workers) == 2:
                    os.kill(workers[killed % 2], signal.SIGKILL)
                    killed += 1
        assert agent.poll() == 0, (tmp_path / "log").read_text()[-3000:]
        assert killed and (tmp_path / "run" / "result.json").exists()
    finally:
        if agent.poll() is None:
            agent.kill()


def _children(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = (folder / "status").read_text()
            except OSError:
                continue
            if re.search(rf"^PPid:\s*{parent}$", status, re.M) and "State:\tZ" not in status:
                found.append(int(folder.name))
    return sorted(found)
