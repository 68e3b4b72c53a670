"""Processes of torchrun that die, or that never come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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


MORTAL = """
import os, signal, sys
from pathlib import Path
from unsmooth.__main__ import run
from unsmooth.training.run import _Run

checkpoint = _Run._checkpoint

def kill_after_checkpoint(self):
    checkpoint(self)
    start, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), self.processes.rank
    if start < 3 and rank == start % 2:
        with Path(os.environ["KILLS"]).open("a") as file:
            file.write(f"{rank} {self.trainer.step}\\n")
        os.kill(os.getpid(), signal.SIGKILL)

_Run._checkpoint = kill_after_checkpoint
sys.exit(run())
"""


@pytest.mark.full
def test_torchrun_recovers_from_a_killed_worker(tmp_path: Path) -> None:
    """One of two workers is killed after the first checkpoint, three times: torchrun restarts them and the run ends."""
    script, kills = tmp_path / "train.py", tmp_path / "kills"
    script.write_text(MORTAL)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3",
        str(script), "train", HOST, "--data", "digits", "--out", str(tmp_path / "run"), "--epochs", "1",
        "--train-images", "128", "--val-images", "64", "--batch-size", "16", "--warmup-epochs", "0",
        "--save-every", "0",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KILLS": str(kills)}
    environment.pop("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert kills.read_text().splitlines() == ["0 1", "1 2", "0 3"]  # each start resumes where the one before was killed
    assert (tmp_path / "run" / "result.json").exists()
