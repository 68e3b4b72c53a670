"""Observers belong to one model and one thread: models that run side by side get their own results."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import host, treat
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.inputs import image_size
from unsmooth.seam.observers import observers_are_paused, observers_paused
from unsmooth.seam.patched import patches_of
from unsmooth.surgery.plan import anatomy_of

REPEATS = 8
VITALS = ("token_cosine", "attention_entropy", "branch_ratio")


def side_by_side(*works: Callable[[], Any]) -> list[list[Any]]:
    """The results of each function, called REPEATS times in a thread of its own, all threads at once."""
    results: list[list[Any]] = [[] for _ in works]
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def repeat(index: int) -> None:
        try:
            start.wait(timeout=30)
            for _ in range(REPEATS):
                results[index].append(works[index]())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(index,), daemon=True) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)
    return results


def images(model: nn.Module, count: int = 4) -> Tensor:
    return torch.randn(count, *image_size(model), generator=torch.Generator().manual_seed(0))


def forward(model: nn.Module) -> Callable[[], Tensor]:
    batch = images(model)

    @torch.no_grad()
    def work() -> Tensor:
        return model(batch)

    return work


def diagnosed(model: nn.Module) -> Callable[[], dict[str, list[Any]]]:
    batch = images(model)

    def work() -> dict[str, list[Any]]:
        result = unsmooth.diagnose(model, batch, VITALS, reference=False)
        return {key: list(result[key]) for key in VITALS}

    return work


def probed(model: nn.Module) -> Callable[[], list[tuple[str, int, Tensor]]]:
    """Everything that a probe sees in one forward pass."""
    batch, anatomy = images(model), anatomy_of(model)

    @torch.no_grad()
    def work() -> list[tuple[str, int, Tensor]]:
        seen: list[tuple[str, int, Tensor]] = []
        with probe(
            model,
            lambda block, x: seen.append(("output", block.index, x.clone())),
            lambda block, _, call: seen.append(("map", block.index, call.map())),
            anatomy,
            lambda block, x: seen.append(("input", block.index, x.clone())),
            lambda block, branch, x, f, out: seen.append((branch, block.index, f.clone())),
        ):
            model(batch)
        return seen

    return work


def same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, Tensor):
        return torch.equal(actual, expected)
    if isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    return actual == expected


@pytest.mark.parametrize("observe", [diagnosed, probed])
def test_models_in_two_threads_get_their_own_results(observe: Callable[[nn.Module], Callable[[], Any]]) -> None:
    observed = treat(host("deit"), "no_skip+attn_scale")
    other = treat(host("deit"), "attn_scale(blocks=0)+no_skip(branch=mlp)")
    works = [observe(observed), forward(other), probed(other)]
    alone = [work() for work in works]
    for results, expected in zip(side_by_side(*works), alone, strict=True):
        assert len(results) == REPEATS
        assert all(same(result, expected) for result in results)


@pytest.mark.parametrize("observe", [diagnosed, probed])
def test_one_model_in_two_threads_is_observed_in_one(observe: Callable[[nn.Module], Callable[[], Any]]) -> None:
    model = treat(host("deit"), "attn_scale+no_skip(branch=mlp)+feat_scale")
    works = [observe(model), forward(model)]
    alone = [work() for work in works]
    for results, expected in zip(side_by_side(*works), alone, strict=True):
        assert all(same(result, expected) for result in results)
    assert not any(patches.observers for patches in patches_of(model))


def test_pausing_affects_one_thread() -> None:
    with observers_paused():
        assert observers_are_paused()
        assert side_by_side(observers_are_paused) == [[False] * REPEATS]
    assert not observers_are_paused()


def test_a_copy_made_under_a_probe_is_not_observed() -> None:
    model = treat(host("deit"), "attn_scale")
    with probe(model, on_attention=lambda *_: None):
        assert all(patches.observers for patches in patches_of(model))
        assert not any(patches.observers for patches in patches_of(copy.deepcopy(model)))
