"""What the adder paper proves, on drawn matrices."""

from __future__ import annotations

import math

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


# Proposition 1. The references are the printed sums over singular values, term by term.


def sums(sigma: np.ndarray, r: int) -> float:
    """σ_1 + … + σ_r."""
    return math.fsum(sigma[:r])


def f(sigma: np.ndarray, r: int) -> float:
    """Eq. 6 and 7, with f(0) = 0."""
    return sums(sigma, r) / sums(sigma, len(sigma))


def kernel(n: int, seed: int) -> np.ndarray:
    """A symmetric map that is positive definite: the L1 kernel of random points."""
    x = np.random.default_rng(seed).normal(size=(n, 6))
    return np.exp(-np.abs(x[:, None] - x[None]).sum(-1) / 3)


def singular(a: np.ndarray) -> np.ndarray:
    return np.linalg.svd(a, compute_uv=False)


@quick
@given(SIZES, SEEDS, st.integers(1, 4), st.floats(0.0, 5.0))
def test_assertion_1_the_share_increases_and_is_concave(n: int, seed: int, h: int, scale: float) -> None:
    """Eq. 9 and 10, for softmax maps as well: nothing but the order of the singular values is used."""
    a = scipy.special.softmax(scale * np.random.default_rng(seed).normal(size=(n, n)), axis=-1)
    sigma = singular(a)
    total = sums(sigma, n)
    slope = theory.share_slope(theory.singular_share(t(a)), h).numpy()
    assert slope == pytest.approx([math.fsum(sigma[r : r + h]) / (h * total) for r in range(n - h + 1)], abs=1e-12)
    assert (slope >= -1e-12).all()
    curvature = theory.share_curvature(theory.singular_share(t(a)), h).numpy()
    printed = [
        (math.fsum(sigma[r : r + h]) - math.fsum(sigma[r - h : r])) / (h**2 * total) for r in range(h, n - h + 1)
    ]
    assert curvature == pytest.approx(printed, abs=1e-12)
    assert (curvature <= 1e-12).all()


def test_assertion_1_needs_the_order_of_the_singular_values() -> None:
    ascending = theory.share_curvature(t(np.cumsum([1.0, 2.0, 3.0]) / 6)).numpy()
    assert (ascending > 0.1).all()
    assert theory.share_slope(t(np.cumsum([1.0, 2.0, 3.0]) / 6)).numpy() == pytest.approx([1 / 6, 1 / 3, 1 / 2])


@quick
@given(SIZES, SEEDS)
def test_adding_the_identity_adds_one_to_each_singular_value(n: int, seed: int) -> None:
    """Eq. 4 to 7 for a symmetric positive semi-definite map."""
    a = kernel(n, seed)
    assert singular(a + np.eye(n)) == pytest.approx(singular(a) + 1, abs=1e-12)
    assert np.allclose(theory.identity_share(t(singular(a))).numpy(), share(a + np.eye(n)))
    assert theory.semidefinite_distance(t(a)).item() == pytest.approx(0, abs=1e-12)


@quick
@given(SIZES, SEEDS)
def test_the_ratio_of_the_shares_is_at_least_one(n: int, seed: int) -> None:
    """Eq. 11 and 12."""
    a = kernel(n, seed)
    sigma, lifted = singular(a), singular(a + np.eye(n))
    ratio = theory.share_ratio(theory.singular_share(t(a)), theory.singular_share(t(a + np.eye(n)))).numpy()
    assert ratio == pytest.approx([f(sigma, r) / f(lifted, r) for r in range(1, n + 1)])
    total = sums(sigma, n)
    printed = [sums(sigma, r) * (total + n) / ((sums(sigma, r) + r) * total) for r in range(1, n + 1)]
    assert ratio == pytest.approx(printed)
    assert (ratio >= 1 - 1e-12).all()
    margin = theory.share_margin(t(sigma)).numpy()
    difference = [sums(sigma, r) * (total + n) - (sums(sigma, r) + r) * total for r in range(1, n + 1)]
    assert margin == pytest.approx(difference, abs=1e-9)
    assert (margin >= -1e-9).all()
    assert margin[-1] == pytest.approx(0, abs=1e-9)


@quick
@given(SIZES, SEEDS)
def test_assertions_2_and_3_for_semidefinite_maps(n: int, seed: int) -> None:
    """Eq. 13 and 14: f comes closer to r/N. Then the rank at 90 % does not fall."""
    a = kernel(n, seed)
    sigma, lifted = singular(a), singular(a + np.eye(n))
    before, after = (theory.share_excess(theory.singular_share(t(b))).numpy() for b in (a, a + np.eye(n)))
    assert before == pytest.approx([f(sigma, r) - r / n for r in range(1, n + 1)], abs=1e-12)
    assert after == pytest.approx([f(lifted, r) - r / n for r in range(1, n + 1)], abs=1e-12)
    assert (after <= before + 1e-12).all()
    assert (after >= -1e-12).all()
    assert theory.equivalent_rank(t(a + np.eye(n))) >= theory.equivalent_rank(t(a))


SWAP = scipy.special.softmax(np.array([[-3.0, 3.0], [3.0, -3.0]]), axis=-1)  # two tokens that attend to each other
CYCLE = scipy.special.softmax(6 * np.roll(np.eye(3), 1, axis=1), axis=-1)  # each token attends to the next one


@pytest.mark.parametrize("a", [SWAP, CYCLE], ids=["symmetric, indefinite", "not symmetric"])
def test_assertions_2_and_3_need_a_semidefinite_map(a: np.ndarray) -> None:
    """Softmax maps of finite scores. The first one is symmetric, as the paper assumes: this does not suffice."""
    n = len(a)
    treated = a + np.eye(n)
    assert not np.allclose(singular(treated), singular(a) + 1, atol=0.1)
    before, after = (theory.singular_share(t(b)) for b in (a, treated))
    assert theory.share_ratio(before, after).min() < 0.9
    assert (theory.share_excess(after) - theory.share_excess(before)).max() > 0.05
    assert theory.semidefinite_distance(t(a)).item() > 0.5
    # Eq. 12 is about σ + 1 and stays true. It says nothing about A + I here.
    assert (theory.share_margin(t(singular(a))) >= -1e-12).all()


def test_the_swap_loses_rank() -> None:
    assert [theory.equivalent_rank(t(a)).item() for a in (SWAP, SWAP + np.eye(2))] == [2, 1]


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
