"""What the adder paper proves, on drawn matrices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unsmooth.remedies.kernels.adder import l1_scores
from unsmooth.theory import adder_attention as theory

SIZES = st.integers(2, 12)
SEEDS = st.integers(0, 10**6)
quick = settings(max_examples=30, deadline=None)


def t(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x))


def share(a: np.ndarray) -> np.ndarray:
    """f(r): the share of the r largest singular values."""
    values = np.linalg.svd(a, compute_uv=False)
    return np.cumsum(values) / values.sum()


def rank(a: np.ndarray) -> int:
    return next(r + 1 for r, f in enumerate(share(a)) if f >= 0.9 - 1e-12)


@pytest.mark.parametrize("d", [16, 64])
def test_theorem_1_variances_of_the_scores(d: int) -> None:
    """Standard normal q, k: Var(q·k) = d and Var(−‖q−k‖₁) = 2d(1−2/π), on the scores that adder attention computes."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2000, d, generator=generator) for _ in range(2))
    dot, adder = (q @ k.T).numpy(), l1_scores(q, k).numpy()
    # Pairs share rows, so the spread of the estimate is that of ~2000 independent draws.
    assert dot.var() == pytest.approx(theory.dot_product_variance(d).item(), rel=0.05)
    assert adder.var() == pytest.approx(theory.adder_variance(d).item(), rel=0.08)
    assert (adder / theory.adder_scale(d)).var() == pytest.approx(1, rel=0.08)
    assert theory.adder_variance(d).item() == pytest.approx(2 * d * (1 - 2 / np.pi))
    assert theory.adder_scale(d) ** 2 == pytest.approx(2 * d * (1 - 2 / np.pi))


@quick
@given(st.integers(1, 512), st.floats(0.1, 5.0), st.floats(0.1, 5.0))
def test_theorem_1_for_other_spreads(d: int, a: float, b: float) -> None:
    """The difference is normal with variance σ_q² + σ_k²; |·| of it is half-normal."""
    half_normal = scipy.stats.halfnorm(scale=np.hypot(a, b)).var()
    assert theory.adder_variance(d, a, b).item() == pytest.approx(d * half_normal)
    products = scipy.stats.norm(scale=a).moment(2) * scipy.stats.norm(scale=b).moment(2)
    assert theory.dot_product_variance(d, a, b).item() == pytest.approx(d * products)


def test_theorem_1_needs_normal_independent_channels() -> None:
    """Signs instead of normal values, and channels that all carry the same value."""
    rng, d = np.random.default_rng(0), 64
    q, k = rng.choice([-1.0, 1.0], (2, 20_000, d))
    assert np.abs(q - k).sum(-1).var() > 1.2 * theory.adder_variance(d).item()
    q, k = (np.repeat(x, d, -1) for x in rng.normal(size=(2, 20_000, 1)))
    assert np.abs(q - k).sum(-1).var() == pytest.approx(d * theory.adder_variance(d).item(), rel=0.1)


@quick
@given(SIZES, SEEDS, st.floats(0.0, 5.0))
def test_the_share_of_singular_values(n: int, seed: int, scale: float) -> None:
    a = scipy.special.softmax(scale * np.random.default_rng(seed).normal(size=(n, n)), axis=-1)
    assert np.allclose(theory.singular_share(t(np.stack([a, a]))).numpy(), share(a))
    assert theory.equivalent_rank(t(a)).item() == rank(a)
    assert theory.equivalent_rank(torch.eye(n)).item() == int(np.ceil(round(0.9 * n, 9)))
    assert theory.equivalent_rank(torch.full((n, n), 1 / n)).item() == 1


@quick
@given(SIZES, SEEDS)
def test_proposition_1_the_identity_raises_the_rank(n: int, seed: int) -> None:
    """For a symmetric positive semi-definite map, adding I adds one to each singular value: f falls, rank rises."""
    x = np.random.default_rng(seed).normal(size=(n, 6))
    kernel = np.exp(-np.abs(x[:, None] - x[None]).sum(-1) / 3)  # the L1 kernel is positive definite
    values = np.linalg.svd(kernel, compute_uv=False)
    predicted = theory.identity_share(t(values)).numpy()
    assert np.allclose(predicted, share(kernel + np.eye(n)))
    assert (predicted <= share(kernel) + 1e-12).all()
    assert theory.equivalent_rank(t(kernel + np.eye(n))) >= theory.equivalent_rank(t(kernel))
    assert theory.semidefinite_distance(t(kernel)).item() == pytest.approx(0, abs=1e-12)


def test_proposition_1_needs_its_assumption() -> None:
    """Two tokens that look at each other, a softmax map with finite scores: adding I removes rank."""
    swap = scipy.special.softmax(np.array([[-3.0, 3.0], [3.0, -3.0]]), axis=-1)
    treated = swap + np.eye(2)
    assert [theory.equivalent_rank(t(a)).item() for a in (swap, treated)] == [2, 1]
    assert share(treated)[0] > share(swap)[0]
    assert not np.allclose(theory.identity_share(t(np.linalg.svd(swap, compute_uv=False))).numpy(), share(treated))
    assert theory.semidefinite_distance(t(swap)).item() > 0.5


@quick
@given(SIZES, SEEDS, st.floats(0.0, 5.0))
def test_distance_to_semidefinite_maps(n: int, seed: int, scale: float) -> None:
    """The nearest one, built from the eigenvectors of the symmetric part, is nearer than any other that is drawn."""
    rng = np.random.default_rng(seed)
    a = scipy.special.softmax(scale * rng.normal(size=(n, n)), axis=-1)
    values, vectors = np.linalg.eigh((a + a.T) / 2)
    nearest = vectors * values.clip(0) @ vectors.T
    distance = theory.semidefinite_distance(t(a)).item()
    assert distance == pytest.approx(np.linalg.norm(a - nearest) / np.linalg.norm(a), abs=1e-12)
    root = rng.normal(size=(n, n)) / n
    assert distance <= np.linalg.norm(a - root @ root.T) / np.linalg.norm(a) + 1e-12
    assert distance <= 1 + 1e-12
