"""Token graying: what its theory promises, and what is hard about computing it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unsmooth.remedies.token_graying import Graying, dct_matrix, gray_dct, gray_svd

SHAPES = [(12, 20), (20, 12), (16, 16), (1, 7), (7, 1)]


def tokens(n: int, d: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    """Tokens whose singular values fall by `spread` decades."""
    rng = np.random.default_rng(seed)
    u, _ = np.linalg.qr(rng.normal(size=(n, n)))
    v, _ = np.linalg.qr(rng.normal(size=(d, d)))
    k = min(n, d)
    s = np.logspace(1, 1 - spread, k)
    return torch.from_numpy(u[:, :k] * s @ v[:, :k].T)


def gray(x: torch.Tensor, transform: str, epsilon: float, rescale: bool = True) -> torch.Tensor:
    part = Graying(transform, epsilon, rescale, *x.shape[-2:], channels_last=True).to(x.dtype)
    return part.treat(x.unsqueeze(0), None)[0]


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_the_dct_matrix_is_scipys(size: int) -> None:
    x = np.random.default_rng(0).normal(size=size)
    matrix = dct_matrix(size).numpy()
    assert np.allclose(matrix @ x, scipy.fft.dct(x, norm="ortho"))
    assert np.allclose(matrix.T @ matrix, np.eye(size))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("transform", ["dct", "svd"])
def test_epsilon_one_is_the_identity(shape: tuple[int, int], transform: str) -> None:
    x = tokens(*shape)
    assert torch.allclose(gray(x, transform, 1.0), x, atol=1e-9)
    assert torch.allclose(gray(x.float(), transform, 1.0), x.float(), atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 24), st.integers(2, 24), st.floats(0.05, 1.0), st.integers(0, 10**6), st.floats(0.0, 4.0)
)  # fmt: skip
def test_svd_graying_scales_the_log_condition_number(n: int, d: int, epsilon: float, seed: int, spread: float) -> None:
    """log κ(X̃) = ε·log κ(X), exactly."""
    x = tokens(n, d, seed, spread)
    before, after = (np.linalg.svd(m.numpy(), compute_uv=False) for m in (x, gray(x, "svd", epsilon)))
    assert np.log(after[0] / after[-1]) == pytest.approx(epsilon * np.log(before[0] / before[-1]), abs=1e-6)
    assert after[0] == pytest.approx(before[0])


def test_dct_graying_is_not_monotone_in_the_condition_number() -> None:
    """A fact to state, not to hide: the DCT form may raise κ."""
    raised = 0
    for seed in range(40):
        x = tokens(10, 10, seed, spread=2.0)
        raised += np.linalg.cond(gray(x, "dct", 0.7).numpy()) > np.linalg.cond(x.numpy())
    assert 0 < raised < 40


@pytest.mark.parametrize("shape", [(196, 384), (384, 196)])
@pytest.mark.parametrize("spread", [1.0, 4.0, 6.0])
def test_single_precision_keeps_small_singular_values(shape: tuple[int, int], spread: float) -> None:
    """Within 1e-3 of a double-precision SVD, relative to the result, for tokens as bad as κ = 1e6."""
    x = tokens(*shape, spread=spread).float()
    u, s, vt = np.linalg.svd(x.double().numpy(), full_matrices=False)
    expected = u @ np.diag(s[0] * (s / s[0]) ** 0.65) @ vt
    actual = gray(x, "svd", 0.65).double().numpy()
    assert np.abs(actual - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("transform", ["dct", "svd"])
@pytest.mark.parametrize("kind", ["zero", "constant", "one row", "repeated"])
def test_degenerate_images_stay_finite(transform: str, kind: str) -> None:
    x = {
        "zero": torch.zeros(6, 9),
        "constant": torch.full((6, 9), 2.0),
        "one row": torch.eye(6, 9)[:1].expand(6, 9).clone(),
        "repeated": torch.eye(6, 9) * 3,
    }[kind].requires_grad_()
    y = gray(x, transform, 0.6)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None and x.grad.isfinite().all()
    if kind == "zero":
        assert not y.any()
    if kind == "repeated" and transform == "svd":
        assert torch.allclose(y, x, atol=1e-5)  # all singular values are the largest


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
@pytest.mark.parametrize("rescale", [True, False])
def test_gradients_are_those_of_the_function(shape: tuple[int, int], rescale: bool) -> None:
    x = tokens(*shape, spread=1.0).requires_grad_()
    rows, columns = dct_matrix(shape[0]), dct_matrix(shape[1])
    assert torch.autograd.gradcheck(lambda x: gray_svd(x, 0.65, rescale), (x,))
    assert torch.autograd.gradcheck(lambda x: gray_dct(x, 0.8, rescale, rows, columns), (x,))


def test_gradient_where_singular_values_meet() -> None:
    """Divided differences stay right where the derivative of a plain eigenvector blows up."""
    x = torch.diag(torch.tensor([3.0, 2.0, 2.0, 1.0], dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: gray_svd(x, 0.5, True), (x,), atol=1e-4)


def test_another_image_size_is_another_matrix() -> None:
    part = Graying("dct", 0.9, True, 6, 8, channels_last=True)
    x = torch.randn(2, 10, 8)
    assert torch.allclose(part.treat(x, None), Graying("dct", 0.9, True, 10, 8, True).treat(x, None), atol=1e-6)


def test_a_half_precision_host_is_grayed_in_single() -> None:
    part = Graying("dct", 0.9, True, 6, 8, channels_last=True).to(torch.bfloat16)
    assert part.rows.dtype == torch.float32
    x = torch.randn(2, 6, 8)
    exact = Graying("dct", 0.9, True, 6, 8, True).treat(x.bfloat16().float(), None)
    assert torch.equal(part.treat(x.bfloat16(), None), exact.bfloat16())
