"""`--shard`: two processes that split the weights train as one does, and runs resume with another number of them.

One pair of processes does all the runs, since a process takes seconds to start with FSDP. Another pair is killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.kill_points import kill_at
from tests.support.runs import HOST, SMALL, StopAt, free_port, same_state, small_run, together, trainer_state
from tests.support.small_hosts import CASES
from tests.training.test_distributed import alike, lines
from unsmooth.errors import Interrupted, UnsmoothError
from unsmooth.recipes.recipe import load_recipe
from unsmooth.training.run import Diverged
from unsmooth.training.sharding import check_shardable

STEPS = {"epochs": 1, "train_images": 64, "val_images": 33, "warmup_epochs": 0}
MIXED = {
    **SMALL, "mixup": 0.8, "cutmix": 1.0, "ema": 0.9, "accumulate": 2, "vitals_every": 1, "clip_grad": 1.0,
    "val_images": 41,  # processes validate other numbers of batches
}  # fmt: skip
REMEDIES = tuple(case for case in CASES if "(" not in case)
# A step of SGD: one of Adam would be the same with a gradient twice as large.
ONE_STEP = {
    **STEPS, "batch_size": 8, "train_images": 8, "val_images": 9, "optimizer": "sgd", "lr": 0.2, "clip_grad": 0.0,
}  # fmt: skip
RESUMED = {**SMALL, "train_images": 96, "ema": 0.9}
OPTIMIZERS = ("sgd", "lamb")


class Pair:
    """Runs of this process and another one; each run has its own meeting.

    The first process chooses the port of a meeting when it comes to it, and the other one waits for it: a port that is
    chosen long before may be taken, and a process that calls a port without a listener for long may reach itself.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank, self.meetings = folder, rank, 0

    def port(self) -> str:
        note, self.meetings = self.folder / str(self.meetings), self.meetings + 1
        if self.rank == 0:
            draft = note.with_suffix(".draft")
            draft.write_text(str(free_port()))
            draft.rename(note)
        for _ in range(10_000):
            if note.exists():
                return note.read_text()
            time.sleep(0.01)
        raise AssertionError(f"the other process did not come to meeting {note.name}")

    def run(self, out: Path, spec: str = HOST, fields: Any = None, shard: bool = True, **options: Any) -> None:
        os.environ["MASTER_PORT"] = self.port()
        try:
            small_run(out, spec, fields, shard=shard, **options)
        except (Interrupted, Diverged):
            raise
        except Exception as error:
            raise AssertionError(f"{out.name} {spec}") from error

    def stop(self, out: Path, epoch: int, step: int, shard: bool = True) -> None:
        with pytest.raises(Interrupted):
            self.run(out, HOST, RESUMED, shard, observer=StopAt(epoch, step))


def by_two(folder: Path, work: Callable[[Pair, int], None]) -> list[int]:
    """Exit codes of two processes, whose meetings are noted in a folder."""
    folder.mkdir()
    return together(2, lambda rank: work(Pair(folder, rank), rank), seconds=250)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of the tests below."""
    path = tmp_path_factory.mktemp("sharded")

    def work(pair: Pair, rank: int) -> None:
        pair.run(path / "mixed", HOST + "+attn_scale", MIXED)
        for optimizer in OPTIMIZERS:
            pair.run(path / optimizer, HOST, {**STEPS, "optimizer": optimizer, "lr": 1e-3})
        pair.run(path / "whole", HOST, RESUMED)
        pair.stop(path / "parts", 0, 2)
        pair.run(path / "parts", HOST, RESUMED)
        # Two sharded processes, then one, then two that are not sharded, then two sharded.
        pair.stop(path / "changing", 0, 1)
        if rank == 0:
            os.environ["WORLD_SIZE"] = "1"
            with pytest.raises(Interrupted):
                small_run(path / "changing", HOST, RESUMED, shard=True, observer=StopAt(0, 2))
            os.environ["WORLD_SIZE"] = "2"
        pair.stop(path / "changing", 1, 1, shard=False)
        pair.run(path / "changing", HOST, RESUMED)
        with pytest.raises(Diverged, match=r"is not finite.*there is no checkpoint yet"):
            pair.run(path / "diverged", HOST, {**STEPS, "lr": 1e30, "optimizer": "sgd", "clip_grad": 0.0})
        pair.run(path / "killed", HOST, RESUMED)
        for remedy in REMEDIES:
            pair.run(path / remedy, f"{HOST}+{remedy}", ONE_STEP)
        pair.run(path / "adder, not sharded", HOST + "+adder", ONE_STEP, shard=False)

    def killed(pair: Pair, rank: int) -> None:
        if rank == 1:
            kill_at("after a step of the second epoch")
        pair.run(path / "killed", HOST, RESUMED, save_every=0)  # a checkpoint after every step

    assert by_two(path / "meetings of the killed pair", killed) == [1, -signal.SIGKILL]
    state = trainer_state(path / "killed")
    assert (state["epoch"], state["step"]) == (1, 2)
    assert by_two(path / "meetings", work) == [0, 0]
    return path


@pytest.mark.slow
def test_two_sharded_processes_give_the_losses_of_one(tmp_path: Path, runs: Path) -> None:
    small_run(tmp_path, HOST + "+attn_scale", MIXED)
    alike(tmp_path, runs / "mixed")
    one, two = trainer_state(tmp_path), trainer_state(runs / "mixed")
    shapes = [[(k, v.shape) for k, v in state["model"].items()] for state in (one, two)]
    assert shapes[0] == shapes[1] and one["optimizer"]["state"].keys() == two["optimizer"]["state"].keys()
    first, second = (lines(run)[-1]["vitals"] for run in (tmp_path, runs / "mixed"))
    assert first.keys() == second.keys() and first


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_other_optimizers(tmp_path: Path, runs: Path, optimizer: str) -> None:
    small_run(tmp_path, HOST, {**STEPS, "optimizer": optimizer, "lr": 1e-3})
    alike(tmp_path, runs / optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parts", "killed"])
def test_a_resumed_run_equals_an_uninterrupted_one(runs: Path, name: str) -> None:
    """`killed`: SIGKILL of one of two processes in the second epoch, after the checkpoint of its second step."""
    assert same_state(trainer_state(runs / "whole"), trainer_state(runs / name))
    assert same_state(*(load_file(run / "last" / "model.safetensors") for run in (runs / "whole", runs / name)))


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_processes(tmp_path: Path, runs: Path) -> None:
    small_run(tmp_path, HOST, RESUMED)
    alike(tmp_path, runs / "changing")
    alike(runs / "whole", runs / "changing")


@pytest.mark.slow
def test_a_run_that_diverges_leaves_no_result(runs: Path) -> None:
    assert not (runs / "diverged" / "result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("remedy", REMEDIES)
def test_remedies_are_sharded(tmp_path: Path, runs: Path, remedy: str) -> None:
    one = tmp_path
    if remedy == "adder":  # it scales gradients by their norm, in each process
        one = runs / "adder, not sharded"
    else:
        small_run(one, f"{HOST}+{remedy}", ONE_STEP)
    alike(one, runs / remedy)
    weights, others = (load_file(run / "last" / "model.safetensors") for run in (one, runs / remedy))
    torch.testing.assert_close(weights, others, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_sharded_is_an_error() -> None:
    model, recipe = torch.nn.Linear(2, 2), load_recipe("small")
    check_shardable(model, recipe)
    with pytest.raises(UnsmoothError, match="does not support amp=float16"):
        check_shardable(model, replace(recipe, amp="float16"))
    with pytest.raises(UnsmoothError, match="adafactor has another one"):
        check_shardable(model, replace(recipe, optimizer="adafactor"))
    model.scale = torch.nn.Parameter(torch.ones(()))
    with pytest.raises(UnsmoothError, match="cannot split the scalar scale"):
        check_shardable(model, recipe)


def test_one_process_is_not_sharded(tmp_path: Path) -> None:
    small_run(tmp_path / "one", HOST, STEPS)
    small_run(tmp_path / "alone", HOST, STEPS, shard=True)
    assert same_state(trainer_state(tmp_path / "one"), trainer_state(tmp_path / "alone"))
