"""Adder operators against plain NumPy references written from their equations."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unsmooth.remedies.kernels import adder as adder_ops
from unsmooth.remedies.kernels.adder import adder_linear, l1_scores


def ref_forward(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """out_nm = -sum_c |a_nc - b_mc|."""
    out = np.zeros((len(a), len(b)))
    for n in range(len(a)):
        out[n] = -np.abs(a[n] - b).sum(-1)
    return out


def ref_pull(a: np.ndarray, b: np.ndarray, g: np.ndarray, gain: float) -> np.ndarray:
    """da_n = sum_m clamp(gain * (b_m - a_n), -1, 1) g_nm."""
    out = np.zeros_like(a)
    for n in range(len(a)):
        out[n] = (np.clip(gain * (b - a[n]), -1, 1) * g[n][:, None]).sum(0)
    return out


def ref_weight_grad(x: np.ndarray, w: np.ndarray, g: np.ndarray, eta: float | None) -> np.ndarray:
    """dW_o = sum_n (x_n - W_o) g_no, at norm eta * sqrt(size)."""
    out = np.zeros_like(w)
    for o in range(len(w)):
        out[o] = ((x - w[o]) * g[:, o][:, None]).sum(0)
    norm = math.sqrt((out**2).sum())
    return out if eta is None or norm == 0 else eta * math.sqrt(out.size) / norm * out


def draw(*shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.tensor(rng.normal(size=s), dtype=dtype) for s in shapes]


def check_scores(q: Tensor, k: Tensor, g: Tensor, gain: float) -> None:
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    out = l1_scores(q, k, gain)
    assert out.shape == g.shape
    assert out.dtype == q.dtype
    dq, dk = torch.autograd.grad(out, (q, k), g)
    for i in np.ndindex(*q.shape[:-2]):
        qi, ki, gi = (t.detach().numpy()[i] for t in (q, k, g))
        np.testing.assert_allclose(out.detach().numpy()[i], ref_forward(qi, ki), atol=1e-12)
        np.testing.assert_allclose(dq.numpy()[i], ref_pull(qi, ki, gi, gain), atol=1e-12)
        np.testing.assert_allclose(dk.numpy()[i], ref_pull(ki, qi, gi.T, gain), atol=1e-12)


def check_linear(x: Tensor, w: Tensor, g: Tensor, eta: float | None, gain: float) -> None:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    out = adder_linear(x, w, eta, gain)
    assert out.shape == g.shape
    assert out.dtype == x.dtype
    dx, dw = torch.autograd.grad(out, (x, w), g)
    d_out, d_in = w.shape
    rows, weight = x.detach().numpy().reshape(-1, d_in), w.detach().numpy()
    gn = g.numpy().reshape(-1, d_out)
    np.testing.assert_allclose(out.detach().numpy().reshape(-1, d_out), ref_forward(rows, weight), atol=1e-12)
    np.testing.assert_allclose(dx.numpy().reshape(-1, d_in), ref_pull(rows, weight, gn, gain), atol=1e-12)
    np.testing.assert_allclose(dw.numpy(), ref_weight_grad(rows, weight, gn, eta), atol=1e-10)


sizes = st.integers(1, 6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=2), sizes, sizes, sizes,
    st.sampled_from([0.3, 1.0, 7.0]), st.sampled_from([1, 7, 40, 1 << 20]), st.integers(0, 99),
)  # fmt: skip
def test_scores_match_reference(lead, n, m, d, gain, budget, seed):
    q, k, g = draw((*lead, n, d), (*lead, m, d), (*lead, n, m), seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adder_ops, "_CPU_BUDGET", budget)
        check_scores(q, k, g, gain)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3), max_size=2), sizes, sizes, st.sampled_from([None, 0.2, 3.0]),
    st.sampled_from([0.3, 1.0, 7.0]), st.sampled_from([1, 7, 40, 1 << 20]), st.integers(0, 99),
)  # fmt: skip
def test_linear_matches_reference(lead, d_in, d_out, eta, gain, budget, seed):
    x, w, g = draw((*lead, d_in), (d_out, d_in), (*lead, d_out), seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adder_ops, "_CPU_BUDGET", budget)
        check_linear(x, w, g, eta, gain)


def test_many_tiles_along_every_axis(monkeypatch):
    """Sizes beyond the least tile extents, so that n, m and d are all cut, with ragged ends."""
    monkeypatch.setattr(adder_ops, "_CPU_BUDGET", 1 << 17)
    q, k, g = draw((2, 270, 5), (2, 301, 5), (2, 270, 301))
    check_scores(q, k, g, 1.0)
    check_linear(q[0], k[0], g[0], 0.2, 1.0)


def test_non_contiguous_inputs_and_expanded_gradient():
    q, k = draw((5, 3, 2, 4), (6, 3, 2, 4))
    q, k = q.permute(2, 1, 0, 3), k.permute(2, 1, 0, 3)
    check_scores(q, k, torch.ones(()).double().expand(2, 3, 5, 6), 1.0)
    x, w = draw((4, 7), (4, 3))
    check_linear(x.t(), w.t(), torch.ones(()).double().expand(7, 3), 0.2, 1.0)


def test_no_large_temporary(monkeypatch):
    """No allocation comes near n * m * d: the largest is an input, an output or the scratch buffer."""
    monkeypatch.setattr(adder_ops, "compiled_operators", lambda: None)
    monkeypatch.setattr(adder_ops, "_CPU_BUDGET", 1 << 16)
    n, m, d = 120, 110, 64
    q, k = (t.requires_grad_() for t in draw((2, n, d), (2, m, d), dtype=torch.float32))
    scratch, limit = 4 << 16, 4 * max(2 * n * m, 1 << 16)
    assert 4 * n * m * d > 10 * limit
    for op, other in ((l1_scores, k), (adder_linear, k[0])):
        with torch.profiler.profile(profile_memory=True) as profile:
            op(q, other).sum().backward()
        largest = max(event.self_cpu_memory_usage for event in profile.events())
        assert scratch / 2 < largest <= limit  # the lower bound shows that the profiler saw the tiles


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_half_inputs_compute_in_fp32(dtype):
    q, k, g = draw((2, 5, 8), (2, 6, 8), (2, 5, 6), dtype=torch.float32)
    q, k = q.to(dtype).requires_grad_(), k.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype):
        scores, linear = l1_scores(q, k), adder_linear(q, k[0])
        # Backward inside the region: its matmul must not be autocast.
        dq, dk = torch.autograd.grad(scores, (q, k), g, retain_graph=True)
        (dw,) = torch.autograd.grad(linear, k, g)
    assert scores.dtype == linear.dtype == torch.float32
    assert dq.dtype == dk.dtype == dw.dtype == dtype
    qd, kd = q.detach().double().requires_grad_(), k.detach().double().requires_grad_()
    want = torch.autograd.grad(l1_scores(qd, kd), (qd, kd), g.double())
    (want_w,) = torch.autograd.grad(adder_linear(qd, kd[0]), kd, g.double())
    torch.testing.assert_close(scores.double(), l1_scores(qd, kd), rtol=1e-5, atol=1e-5)
    for got, exact in zip((dq, dk, dw), (*want, want_w), strict=True):
        torch.testing.assert_close(got, exact.to(dtype), rtol=1e-2, atol=1e-2)


def test_weight_gradient_is_not_autocast():
    x, w, g = draw((64, 32), (16, 32), (64, 16), dtype=torch.float32)
    w.requires_grad_()
    out = adder_linear(x, w)
    (want,) = torch.autograd.grad(out, w, g, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        (got,) = torch.autograd.grad(out, w, g)
    assert torch.equal(got, want)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw((6, 4), dtype=torch.float32)[0])

    def forward(self, x: Tensor) -> Tensor:
        y = adder_linear(x, self.weight)
        return l1_scores(y, y * 0.5, gain=2.0)


def gradients(run, module: Both, x: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    out = run(x)
    return out.detach(), *torch.autograd.grad(out.square().sum(), (x, module.weight))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_fullgraph(dynamic):
    module = Both()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for batch in (2, 3):
        (x,) = draw((batch, 5, 4), dtype=torch.float32)
        for got, want in zip(gradients(compiled, module, x), gradients(module, module, x), strict=True):
            torch.testing.assert_close(got, want)


def test_export_round_trip():
    module = Both()
    (x,) = draw((2, 5, 4), dtype=torch.float32)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(module, (x,), dynamic_shapes={"x": {0: batch}})
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    (more,) = draw((7, 5, 4), dtype=torch.float32)
    torch.testing.assert_close(loaded(x), module(x))
    torch.testing.assert_close(loaded(more), module(more))


def test_checkpoint():
    module = Both()
    (x,) = draw((2, 5, 4), dtype=torch.float32)
    got = gradients(lambda t: checkpoint(module, t, use_reentrant=False), module, x)
    for a, b in zip(got, gradients(module, module, x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("op", [adder_ops._scores, adder_ops._pulls, adder_ops._weight_grad])
def test_registered_operators_are_sound(op):
    q, k, g = draw((5, 4), (3, 4), (5, 3))
    args = {
        adder_ops._scores: (q, k),
        adder_ops._pulls: (q, k, g, 1.0, True, False),
        adder_ops._weight_grad: (q, k, g, 0.2),
    }[op]
    torch.library.opcheck(op, args)


@pytest.mark.parametrize("first", [True, False])
def test_gradient_only_where_required(first, monkeypatch):
    q, k = draw((5, 4), (3, 4))
    (q if first else k).requires_grad_()
    calls, weight_calls = [], []
    pulls, weight_grad = adder_ops._pulls, adder_ops._weight_grad
    monkeypatch.setattr(adder_ops, "_pulls", lambda *a: calls.append(a[-2:]) or pulls(*a))
    monkeypatch.setattr(adder_ops, "_weight_grad", lambda *a: weight_calls.append(1) or weight_grad(*a))
    l1_scores(q, k).sum().backward()
    assert calls == [(first, not first)]
    adder_linear(q, k).sum().backward()
    assert len(calls) == (2 if first else 1)
    assert len(weight_calls) == (0 if first else 1)
    assert (q.grad is not None) == first
    assert (k.grad is not None) != first


@pytest.mark.parametrize("shapes", [((0, 4, 3), (0, 5, 3)), ((2, 0, 3), (2, 5, 3)), ((2, 4, 0), (2, 5, 0))])
def test_empty(shapes):
    q, k = (torch.randn(s, requires_grad=True) for s in shapes)
    out = l1_scores(q, k)
    out.sum().backward()
    assert out.shape == (*q.shape[:-1], k.shape[-2])
    assert out.count_nonzero() == 0
    assert q.grad.shape == q.shape
    assert not k.grad.any()
    x, w = torch.randn(0, 4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    y = adder_linear(x, w)
    y.sum().backward()
    assert y.shape == (0, 4, 5)
    assert x.grad.shape == x.shape
    assert torch.equal(w.grad, torch.zeros(5, 3))


def test_gradient_descent_pulls_together():
    """Raising a score moves the pair closer, with steps that shrink inside the clip."""
    q, k = torch.tensor([[0.0]], requires_grad=True), torch.tensor([[0.25]], requires_grad=True)
    l1_scores(q, k).sum().backward()
    assert q.grad.item() == 0.25
    assert k.grad.item() == -0.25


def test_equal_points_score_exactly_zero():
    q = torch.randn(9, 16) * 1e3
    assert torch.equal(l1_scores(q, q).diagonal(), torch.zeros(9))


def test_bad_arguments():
    q = torch.randn(2, 3, 4)
    for a, b in [(q, q[0]), (q, q[:1]), (q[0, 0], q[0, 0]), (q, q[..., :3])]:
        with pytest.raises(ValueError):
            l1_scores(a, b)
    with pytest.raises(ValueError, match="gain"):
        l1_scores(q, q, gain=0)
    with pytest.raises(ValueError):
        adder_linear(q, q)
