"""Adder operators compiled by numba, against NumPy in double precision and against the operators of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.remedies.test_adder_kernel import draw, ref_forward, ref_pull, ref_weight_grad
from tests.support.runs import ended, in_child
from unsmooth.remedies.kernels import adder as adder_ops
from unsmooth.remedies.kernels.adder import adder_linear, l1_scores

numba = pytest.importorskip("numba")
compiled = adder_ops.compiled_operators()


@pytest.fixture
def calls(monkeypatch) -> Iterator[list[str]]:
    """The names of the compiled operators that ran."""
    assert compiled is not None
    names: list[str] = []
    for name in ("l1", "pull"):
        kernel = getattr(compiled, name)
        monkeypatch.setattr(compiled, name, lambda *args, n=name, k=kernel: names.append(n) or k(*args))
    return names


# Rows below and above the tiles of every CPU, columns and channels that fill no vector, sums of several chunks.
SHAPES = [(1, 1, 1, 1), (2, 3, 5, 4), (1, 13, 16, 16), (3, 25, 33, 20), (1, 14, 50, 300)]


@pytest.mark.parametrize(("b", "n", "m", "d"), SHAPES)
@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_scores_match_reference(calls, b, n, m, d, gain):
    q, k, g = draw((b, n, d), (b, m, d), (b, n, m), dtype=torch.float32)
    q, k = q.requires_grad_(), k.requires_grad_()
    out = l1_scores(q, k, gain)
    dq, dk = torch.autograd.grad(out, (q, k), g)
    assert calls == ["l1", "pull", "pull"]
    for i in range(b):
        qi, ki, gi = (t.detach().numpy()[i].astype(np.float64) for t in (q, k, g))
        np.testing.assert_allclose(out.detach().numpy()[i], ref_forward(qi, ki), rtol=2e-6)
        np.testing.assert_allclose(dq.numpy()[i], ref_pull(qi, ki, gi, gain), atol=2e-5)
        np.testing.assert_allclose(dk.numpy()[i], ref_pull(ki, qi, gi.T, gain), atol=2e-5)


@pytest.mark.parametrize(("b", "n", "m", "d"), SHAPES)
def test_linear_matches_reference(calls, b, n, m, d):
    x, w, g = draw((b, n, d), (m, d), (b, n, m), dtype=torch.float32)
    x, w = x.requires_grad_(), w.requires_grad_()
    out = adder_linear(x, w)
    dx, dw = torch.autograd.grad(out, (x, w), g)
    assert calls == ["l1", "pull"]
    rows, weight, gn = (t.detach().double().numpy() for t in (x.flatten(0, 1), w, g.flatten(0, 1)))
    np.testing.assert_allclose(out.detach().flatten(0, 1).numpy(), ref_forward(rows, weight), rtol=2e-6)
    np.testing.assert_allclose(dx.flatten(0, 1).numpy(), ref_pull(rows, weight, gn, 1.0), atol=2e-5)
    np.testing.assert_allclose(dw.numpy(), ref_weight_grad(rows, weight, gn, 0.2), atol=2e-5)


@pytest.mark.parametrize(("n", "m", "d"), [(30, 21, 40), (32, 16, 32)])
def test_the_same_numbers_as_torch(monkeypatch, n, m, d):
    q, k = (x.transpose(1, 2) for x in draw((2, n, 3, d), (2, m, 3, d), dtype=torch.float32))  # not contiguous

    def both() -> list[Tensor]:
        a, b = q.detach().requires_grad_(), k.detach().requires_grad_()
        scores, linear = l1_scores(a, b), adder_linear(a, b[0, 0])
        return [scores, linear, *torch.autograd.grad(scores.square().sum() + linear.square().sum(), (a, b))]

    fast = both()
    monkeypatch.setattr(adder_ops, "compiled_operators", lambda: None)
    for a, b in zip(fast, both(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.detach().abs().max()))


@pytest.mark.parametrize("shapes", [((1, 301, 24), (1, 40, 24)), ((5, 30, 24), (5, 40, 24))])
def test_threads_do_not_change_the_result(shapes):
    q, k = draw(*shapes, dtype=torch.float32)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            a, b = q.clone().requires_grad_(), k.clone().requires_grad_()
            out = l1_scores(a, b)
            results.append([out, *torch.autograd.grad(out.square().sum(), (a, b))])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


def test_calls_from_several_threads_at_once():
    q, k = draw((4, 40, 24), (4, 40, 24), dtype=torch.float32)
    want = l1_scores(q, k)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(out, want) for out in pool.map(lambda _: l1_scores(q, k), range(16)))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_computes():
    """Threads do not survive a fork: the child starts its own."""

    def work() -> None:
        torch.set_num_threads(2)
        q = torch.randn(4, 40, 24)
        want = l1_scores(q, q)
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(l1_scores(q, q), want) else 7)
        assert os.waitpid(child, 0)[1] == 0

    assert ended(in_child(work)) == 0


def test_not_finite_values_stay():
    q, k = draw((20, 24), (18, 24), dtype=torch.float32)
    q[3, 5], k[4, 7] = float("nan"), float("inf")
    out = l1_scores(q.requires_grad_(), k)
    (dq,) = torch.autograd.grad(out, q, torch.ones_like(out))
    assert out.isnan()[3].all()
    assert (out[:3, 4] == -float("inf")).all()
    assert dq[3, 5].isnan()
    assert dq.isnan().sum() == 1


def test_other_dtypes_and_empty_tensors_run_in_torch(calls):
    q = torch.randn(2, 3, 4)
    l1_scores(q.double(), q.double())
    l1_scores(q[:, :0], q)
    assert calls == []
    l1_scores(q.half(), q.half())  # computed in fp32
    assert calls == ["l1"]


def test_without_numba(monkeypatch):
    monkeypatch.setattr(adder_ops, "find_spec", lambda name: None)
    assert adder_ops.compiled_operators.__wrapped__() is None


def test_a_broken_numba_is_reported(monkeypatch):
    """numba raises when it is imported with a version of NumPy that it does not know."""
    monkeypatch.delitem(sys.modules, "unsmooth.remedies.kernels.adder_compiled")
    monkeypatch.delattr("unsmooth.remedies.kernels.adder_compiled")
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.warns(UserWarning, match="numba does not work here"):
        assert adder_ops.compiled_operators.__wrapped__() is None


PROCESSORS = {  # name, features and the vectors that follow: fp32 values, and vectors of 64 bytes
    "any": ("generic", "", 4, 4),
    "AVX2": ("haswell", "+avx,+avx2,+fma", 8, 2),
}


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("processor", PROCESSORS)
def test_other_processors_and_no_folder_for_the_cache(processor: str):
    """Code for other x86-64 processors, which runs on this one too, in an installation that cannot be written to."""
    name, features, lanes, parts = PROCESSORS[processor]
    if "+avx2" in features and "avx2" not in compiled.FEATURES:
        pytest.skip("this CPU has no AVX2")
    script = (
        "import numba.core.caching as c; c.CacheImpl._locator_classes = []\n"
        "import torch; from unsmooth.remedies.kernels import adder, adder_int8; m = adder.compiled_operators()\n"
        f"assert (m.LANES, m.SAD_PARTS) == ({lanes}, {parts})\n"
        "q, k, g = torch.randn(20, 33), torch.randn(18, 33), torch.randn(20, 18)\n"
        "def run():\n"
        "    a, b = q.clone().requires_grad_(), k.clone().requires_grad_(); out = adder.l1_scores(a, b)\n"
        "    return out, *torch.autograd.grad(out, (a, b), g), adder_int8.l1_scores_int8(q, k, 1.0)\n"
        "fast = run(); adder.compiled_operators = lambda: None\n"
        "assert all(torch.allclose(x, y, rtol=1e-5, atol=1e-5) for x, y in zip(fast, run()))"
    )
    environment = {**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=250, env=environment)
