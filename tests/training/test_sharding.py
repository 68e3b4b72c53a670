"""`--shard`: two processes that split the weights train as one does, and runs resume with another number of them.

One pair of processes does all the runs, since a process takes seconds to start with FSDP.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.runs import HOST, SMALL, StopAt, free_port, same_state, small_run, together, trainer_state
from tests.support.small_hosts import CASES, ON_ALL_HOSTS
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
EVERY = tuple(case for case in CASES if "(" not in case)
PAPERS = ON_ALL_HOSTS[:7]
RESUMED = {**SMALL, "train_images": 96, "ema": 0.9}
OPTIMIZERS = ("sgd", "lamb")


class Pair:
    """Runs of this process and another one; each run has its own meeting."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = iter(ports)

    def run(self, out: Path, spec: str = HOST, fields: Any = None, shard: bool = True, **options: Any) -> None:
        os.environ["MASTER_PORT"] = str(next(self.ports))
        try:
            small_run(out, spec, fields, shard=shard, **options)
        except (Interrupted, Diverged):
            raise
        except Exception as error:
            raise AssertionError(f"{out.name} {spec}") from error

    def stop(self, out: Path, epoch: int, step: int, shard: bool = True) -> None:
        with pytest.raises(Interrupted):
            self.run(out, HOST, RESUMED, shard, observer=StopAt(epoch, step))


def by_two(work: Callable[[Pair, int], None], seconds: float = 250) -> None:
    ports = [free_port() for _ in range(64)]
    assert together(2, lambda rank: work(Pair(ports), rank), seconds) == [0, 0]


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

    by_two(work)
    return path


def test_two_sharded_processes_give_the_losses_of_one(tmp_path: Path, runs: Path) -> None:
    small_run(tmp_path, HOST + "+attn_scale", MIXED)
    alike(tmp_path, runs / "mixed")
    one, two = trainer_state(tmp_path), trainer_state(runs / "mixed")
    shapes = [[(k, v.shape) for k, v in state["model"].items()] for state in (one, two)]
    assert shapes[0] == shapes[1] and one["optimizer"]["state"].keys() == two["optimizer"]["state"].keys()
    first, second = (lines(run)[-1]["vitals"] for run in (tmp_path, runs / "mixed"))
    assert first.keys() == second.keys() and first


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_other_optimizers(tmp_path: Path, runs: Path, optimizer: str) -> None:
    small_run(tmp_path, HOST, {**STEPS, "optimizer": optimizer, "lr": 1e-3})
    alike(tmp_path, runs / optimizer)


def test_a_resumed_run_equals_an_uninterrupted_one(runs: Path) -> None:
    assert same_state(*(trainer_state(runs / name) for name in ("whole", "parts")))
    assert same_state(*(load_file(runs / name / "last" / "model.safetensors") for name in ("whole", "parts")))


def test_a_run_resumes_with_another_number_of_processes(tmp_path: Path, runs: Path) -> None:
    small_run(tmp_path, HOST, RESUMED)
    alike(tmp_path, runs / "changing")
    alike(runs / "whole", runs / "changing")


def test_a_run_that_diverges_leaves_no_result(runs: Path) -> None:
    assert not (runs / "diverged" / "result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("cases", [PAPERS, pytest.param(EVERY, marks=pytest.mark.full)], ids=["papers", "every"])
def test_remedies_are_sharded(tmp_path: Path, cases: tuple[str, ...]) -> None:
    """Two steps and an evaluation of each."""

    def work(pair: Pair, rank: int) -> None:
        for case in cases:
            pair.run(tmp_path / "two" / case, f"{HOST}+{case}", STEPS)
        pair.run(tmp_path / "one" / "adder", f"{HOST}+adder", STEPS, shard=False)

    for case in cases:
        if case != "adder":  # it scales gradients by their norm, in each process
            small_run(tmp_path / "one" / case, f"{HOST}+{case}", STEPS)
    by_two(work)
    different = []
    for case in cases:
        try:
            alike(tmp_path / "one" / case, tmp_path / "two" / case)
        except AssertionError as error:
            different.append((case, str(error)))
    assert not different


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
