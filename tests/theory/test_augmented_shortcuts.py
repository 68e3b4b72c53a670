"""The augmented shortcuts paper: diversity, its decay under attention, and what shortcuts allow."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unsmooth.theory import augmented_shortcuts as theory

SIZES = st.integers(2, 10)
SEEDS = st.integers(0, 10**6)
quick = settings(max_examples=30, deadline=None)
SLACK = 1 + 1e-9
GELU_SLOPE = 1.1289043


def t(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x))


def r(z: np.ndarray) -> float:
    return float(np.linalg.norm(z - z.mean(0)))


def gelu(x: np.ndarray) -> np.ndarray:
    return x * scipy.special.ndtr(x)


def msa(z: np.ndarray, qk: np.ndarray, vo: np.ndarray, dim: int, common: float | np.ndarray = 0.0) -> np.ndarray:
    """Σ_h softmax(Z W_QK^h Zᵀ/√d + what all rows share) Z W_VO^h."""
    maps = [scipy.special.softmax(z @ w @ z.T / np.sqrt(dim) + common, axis=-1) for w in qk]
    return sum(a @ z @ w for a, w in zip(maps, vo, strict=True))


@quick
@given(SIZES, SIZES, SEEDS)
def test_diversity_in_both_norms(n: int, d: int, seed: int) -> None:
    z = np.random.default_rng(seed).normal(size=(n, d)) + 2
    rest = z - z.mean(0)
    assert theory.diversity(t(z)).item() == pytest.approx(np.linalg.norm(rest))
    composite = np.sqrt(np.linalg.norm(rest, 1) * np.linalg.norm(rest, np.inf))
    both = theory.diversity(t(np.stack([z, 3 * z])), "composite").numpy()
    assert both == pytest.approx(np.array([composite, 3 * composite]))
    assert np.linalg.norm(rest, 2) <= composite * SLACK


def test_the_mean_token_is_not_nearest_in_the_composite_norm() -> None:
    z = np.array([[0.0], [0.0], [0.0], [4.0]])

    def distance(c: float) -> float:
        return float(np.sqrt(np.abs(z - c).sum() * np.abs(z - c).max()))

    best = scipy.optimize.minimize_scalar(distance, bounds=(0, 4), method="bounded").fun
    assert best < theory.diversity(t(z), "composite").item() - 0.1


def test_the_composite_norm_breaks_the_triangle_inequality() -> None:
    column, row = np.zeros((6, 6)), np.zeros((6, 6))
    column[:, 0], row[0] = 1, 1
    apart, together = (theory.composite_norm(t(x)) for x in (np.stack([column, row]), column + row))
    assert together.item() == pytest.approx(7)
    assert apart.sum().item() == pytest.approx(2 * np.sqrt(6))


@quick
@given(SIZES, SEEDS, st.integers(1, 3), st.floats(0.05, 1.5), st.integers(1, 3))
def test_theorem_1_attention_alone_loses_diversity(n: int, seed: int, heads: int, scale: float, layers: int) -> None:
    """In the Frobenius norm, with factor ½, for scores of any size and with what biases add to them."""
    rng = np.random.default_rng(seed)
    z = start = scale * rng.normal(size=(n, 4)) + rng.normal(size=4)
    weights = rng.normal(size=(layers, 2, heads, 4, 4)) / 2
    gamma = max(np.linalg.norm(a, 2) * np.linalg.norm(b, 2) for layer in weights for a, b in zip(*layer, strict=True))
    each = theory.attention_gamma(t(weights[:, 0]), t(weights[:, 1]))
    assert each.amax().item() == pytest.approx(gamma)
    for qk, vo in weights:
        z = msa(z, qk, vo, 4, rng.normal(size=n))
    for factor in (0.5, 4.0):
        bound = theory.stacked_attention_bound(r(start), gamma, heads, 4, layers, factor).item()
        power = 3**layers
        c = factor * heads * gamma / 2
        with np.errstate(over="ignore"):
            assert bound == pytest.approx(np.float64(c) ** ((power - 1) / 2) * np.float64(r(start)) ** power)
        assert r(z) <= bound * SLACK + 1e-12


def test_theorem_1_at_its_ends() -> None:
    assert theory.stacked_attention_bound(0.3, 1.0, 6, 64, layers=0).item() == pytest.approx(0.3)
    assert theory.stacked_attention_bound(0.0, 1.0, 6, 64, layers=3).item() == 0
    assert theory.stacked_attention_bound(2.0, 0.0, 6, 64, layers=0).item() == pytest.approx(2)
    log = theory.log_stacked_attention_bound(torch.tensor([0.1, 10.0]), 1.0, 6, 64, layers=12)
    assert torch.isfinite(log).all()
    assert log[0] < 0 < log[1]  # above r = √(√d/4Hγ) the theorem proves no collapse


def test_theorem_1_fails_with_position_biases_or_masks() -> None:
    """Each token sees itself only: nothing is lost, however alike the tokens are."""
    z = 1e-3 * np.random.default_rng(0).normal(size=(5, 4))
    eye = np.eye(4)[None]
    bias = np.where(np.eye(5) > 0, 0.0, -50.0)
    out = msa(z, eye, eye, 4, bias)
    assert r(out) == pytest.approx(r(z))
    assert r(out) > 1e3 * theory.stacked_attention_bound(r(z), 1.0, 1, 4, layers=1).item()


@quick
@given(SIZES, SEEDS, st.integers(1, 3), st.floats(0.05, 3.0))
def test_theorems_2_and_s1_bound_augmented_layers(n: int, seed: int, count: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, 4)) + 1
    qk, vo = rng.normal(size=(2, 2, 4, 4)) / 2
    thetas, biases = rng.normal(size=(count, 4, 4)), rng.normal(size=(count, 4))
    norms = np.array([np.linalg.norm(theta, 2) for theta in thetas])
    alpha = 1 + GELU_SLOPE * norms.sum()
    gamma = theory.attention_gamma(t(qk), t(vo)).item()
    shortcuts = z + sum(gelu(z @ theta + b) for theta, b in zip(thetas, biases, strict=True))
    attention = msa(z, qk, vo, 4)

    assert theory.shortcut_gain(t(norms)).item() == pytest.approx(alpha, rel=1e-6)
    assert r(shortcuts) <= alpha * r(z) * SLACK
    cubic = theory.augmented_msa_bound(r(z), gamma, 2, 4, t(norms)).item()
    assert cubic == pytest.approx(4 * 2 * gamma / 2 * r(z) ** 3 + alpha * r(z), rel=1e-6)
    assert r(attention + shortcuts) <= cubic * SLACK
    rate = theory.augmented_msa_rate(r(attention) / r(z), t(norms))
    assert rate.item() == pytest.approx(r(attention) / r(z) + alpha, rel=1e-6)
    assert r(attention + shortcuts) <= rate.item() * r(z) * SLACK

    w1, w2 = rng.normal(size=(4, 7)), rng.normal(size=(7, 4))
    sigma = np.linalg.norm(w1, 2) * GELU_SLOPE * np.linalg.norm(w2, 2)
    y = attention + shortcuts
    after = gelu(y @ w1) @ w2 + y + sum(gelu(y @ theta + b) for theta, b in zip(thetas, biases, strict=True))
    mlp_rate = theory.augmented_mlp_rate(sigma, t(norms))
    assert mlp_rate.item() == pytest.approx(sigma + alpha, rel=1e-6)
    assert r(after) <= theory.augmented_stack_bound(r(z), torch.stack([rate, mlp_rate])).item() * SLACK


def test_a_larger_upper_bound_does_not_prevent_collapse() -> None:
    """Θ = −I on tokens far below zero: Z + GELU(−Z) = GELU(Z) ≈ 0, while the bound rises from 1 to 2.13."""
    z = np.random.default_rng(0).normal(size=(6, 4)) - 12
    assert r(z + gelu(-z)) < 1e-6 * r(z)
    assert theory.shortcut_gain(torch.ones(1)).item() > 2


def test_the_slope_of_gelu_counts() -> None:
    """With L = 1 the inequality fails."""
    z = np.array([[1.3], [1.5]])
    assert r(z + gelu(z)) > theory.shortcut_gain(torch.ones(1), lipschitz=1.0).item() * r(z)
    assert r(z + gelu(z)) <= theory.shortcut_gain(torch.ones(1)).item() * r(z)


@quick
@given(st.integers(1, 4), st.integers(1, 7), SEEDS)
def test_the_norm_of_a_block_circulant_matrix(blocks: int, size: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(2, blocks, blocks, size))
    dense = [np.block([[scipy.linalg.circulant(c) for c in row] for row in grid]) for grid in vectors]
    expected = [np.linalg.norm(matrix, 2) for matrix in dense]
    assert theory.block_circulant_norm(t(vectors)).numpy() == pytest.approx(expected)
