"""`diagnose` in one thread while another thread runs a treated model."""

from __future__ import annotations

import threading

import torch

import unsmooth
from tests.support.small_hosts import host, treat


def test_a_diagnosis_beside_a_running_model_is_that_of_the_model_alone() -> None:
    diagnosed, other = treat(host("deit"), "no_skip"), treat(host("deit"), "attn_scale")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    given = {"vitals": "token_cosine,attention_entropy,branch_ratio", "reference": False}
    alone, expected = unsmooth.diagnose(diagnosed, images, **given), other(images).detach()
    stop, failures, runs = threading.Event(), list[BaseException](), 0

    def infer() -> None:
        nonlocal runs
        try:
            with torch.no_grad():
                while not stop.is_set():
                    assert torch.equal(other(images), expected)
                    runs += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=infer, daemon=True)
    thread.start()
    try:
        for _ in range(5):
            beside = unsmooth.diagnose(diagnosed, images, **given)
            assert beside.vitals == alone.vitals and beside.verdict == alone.verdict
    finally:
        stop.set()
        thread.join(timeout=60)
    assert not thread.is_alive() and not failures and runs
