"""Int8 adder operators against NumPy, written from their equations, and compiled code against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.remedies.test_adder_kernel import draw, ref_forward
from unsmooth.remedies.kernels import adder as adder_ops
from unsmooth.remedies.kernels.adder_int8 import adder_linear_int8, l1_scores_int8, pack, quantize, unpack

SHAPES = [(1, 3, 1), (5, 6, 4), (13, 24, 16), (30, 39, 21), (14, 48, 300)]  # rows, outputs, inputs


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(adder_ops, "compiled_operators", lambda: None)
    elif adder_ops.compiled_operators() is None:
        pytest.skip("numba is not installed")
    return request.param


def linear(x: Tensor, weight: Tensor, projections: int = 1) -> Tensor:
    bytes_, zero, step = quantize(weight)
    outputs = len(weight)
    ones, zeros = torch.ones(outputs), torch.zeros(outputs)
    width = outputs // projections
    return adder_linear_int8(x, pack(bytes_), zero[0].int(), float(step), width, ones, zeros)


def ref_bytes(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The bytes of both factors, and their step: a grid for the right one, to which the left one is clipped."""
    low, high = right.min(0), right.max(0)
    step = np.float32((high - low).max() / np.float32(254)) or np.float32(1)
    inverse = np.float32(1) / step

    def grid(x: np.ndarray) -> np.ndarray:
        return np.floor(x * inverse + np.float32(0.5)).astype(int)

    zero = grid(low)
    return np.clip(grid(left) - zero, 0, 255), np.clip(grid(right) - zero, 0, 255), float(step)


def ref_norm(y: np.ndarray, projections: int) -> np.ndarray:
    y = y.reshape(len(y), projections, -1)
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    return y.reshape(len(y), -1)


@pytest.mark.parametrize(("n", "m", "d"), SHAPES)
def test_linear_matches_reference(path, n, m, d):
    x, w = draw((n, d), (m, d), dtype=torch.float32)
    left, right, step = ref_bytes(x.numpy(), w.numpy())
    want = ref_norm(step * ref_forward(left, right), 3)
    got = linear(x, w, projections=3)
    np.testing.assert_allclose(got.numpy(), want, atol=2e-3 if d == 1 else 2e-4)


@pytest.mark.parametrize(("n", "m", "d"), SHAPES)
def test_scores_match_reference(path, n, m, d):
    q, k = draw((2, n, d), (2, m, d), dtype=torch.float32)
    got = l1_scores_int8(q, k, 0.5)
    for i in range(2):  # each with the range of its own keys
        left, right, step = ref_bytes(q[i].numpy(), k[i].numpy())
        np.testing.assert_allclose(got[i].numpy(), 0.5 * step * ref_forward(left, right), rtol=1e-6)


@pytest.mark.parametrize("outlier", [0.0, 40.0])
def test_near_single_precision_and_clipping_costs_nothing(path, outlier):
    """Inputs beyond the range of the weights add the same number to every output, which LayerNorm removes."""
    x, w = draw((40, 96), (72, 96), dtype=torch.float32)
    x[::2, ::5] += outlier
    x[1::2, ::7] -= outlier
    exact = torch.from_numpy(ref_norm(ref_forward(x.double().numpy(), w.double().numpy()), 1)).float()
    error = (linear(x, w) - exact).norm() / exact.norm()
    assert 1e-4 < error < 0.015
    scores = torch.from_numpy(ref_forward(x.double().numpy(), w.double().numpy())).float() / 10
    torch.testing.assert_close(l1_scores_int8(x, w, 0.1).softmax(-1), scores.softmax(-1), atol=0.02, rtol=0)


def test_the_error_of_a_score_is_bounded_by_its_step(path):
    """Each of two values is rounded by half a step, so a sum of d differences is wrong by at most d steps."""
    q, k = draw((20, 32), (25, 32), dtype=torch.float32)
    q = torch.minimum(torch.maximum(q, k.amin(0)), k.amax(0))  # inside the range of the keys: nothing is clipped
    step = float((k.amax(0) - k.amin(0)).max()) / 254
    difference = l1_scores_int8(q, k, 1.0).double() + torch.cdist(q.double(), k.double(), p=1)
    assert 0 < difference.abs().max() <= 32 * step


def test_equal_weights_have_a_step(path):
    x, w = torch.randn(3, 4), torch.ones(6, 4)
    assert torch.equal(linear(x, w), torch.zeros(3, 6))
    assert torch.equal(l1_scores_int8(x, w, 1.0).softmax(-1), torch.full((3, 6), 1 / 6))


def test_packing_is_undone():
    bytes_ = torch.randint(0, 256, (13, 21), dtype=torch.uint8)
    assert pack(bytes_).shape == (2, 3, 8, 8)
    assert torch.equal(unpack(pack(bytes_), 13, 21), bytes_)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (3, 4), (2, 3, 4)])
def test_shapes(path, shape):
    x, w = torch.randn(shape), torch.randn(6, 4)
    assert linear(x, w).shape == (*shape[:-1], 6)
    k = torch.randn(*shape[:-2], 6, 4)
    assert l1_scores_int8(x, k, 1.0).shape == (*shape[:-1], 6)


def test_registered_operators_are_sound():
    x, w = draw((5, 8), (6, 8), dtype=torch.float32)
    bytes_, zero, step = quantize(w)
    args = (x, pack(bytes_), zero[0].int(), float(step), 6, torch.ones(6), torch.zeros(6))
    torch.library.opcheck(adder_linear_int8, args)
    torch.library.opcheck(l1_scores_int8, (x, w, 1.0))
