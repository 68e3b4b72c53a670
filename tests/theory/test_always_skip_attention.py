"""Condition numbers: what the skip paper proves, what it only suggests, and where it fails."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unsmooth.theory import always_skip_attention as theory

SEEDS = st.integers(0, 10**6)
quick = settings(max_examples=30, deadline=None)


def t(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x))


def kappa(x: np.ndarray) -> float:
    return float(np.linalg.cond(x))


def effective_kappa(x: np.ndarray) -> float:
    """The largest singular value over the smallest that is not zero."""
    values = np.linalg.svd(x, compute_uv=False)
    return float(values[0] / values[values > 1e-9 * values[0]][-1])


def tokens(rng: np.random.Generator, n: int, d: int, decades: float) -> np.ndarray:
    u, _ = np.linalg.qr(rng.normal(size=(n, n)))
    v, _ = np.linalg.qr(rng.normal(size=(d, d)))
    k = min(n, d)
    return u[:, :k] * np.logspace(0, -decades, k) @ v[:, :k].T


@quick
@given(st.integers(2, 6), st.integers(0, 6), SEEDS, st.floats(0.0, 1.5))
def test_proposition_4_1_linear_attention_cubes_the_condition_number(
    d: int, more: int, seed: int, decades: float
) -> None:
    rng = np.random.default_rng(seed)
    x = tokens(rng, d + more, d, decades)
    q, k, v = (tokens(rng, d, d, 0.5) for _ in range(3))
    out = theory.linear_attention(t(x), t(q), t(k), t(v))
    assert np.allclose(out.numpy(), x @ q @ k.T @ x.T @ x @ v)
    bound = theory.linear_attention_bound(t(x), t(q), t(k), t(v)).item()
    assert bound == pytest.approx(kappa(q) * kappa(k) * kappa(v) * kappa(x) ** 3, rel=1e-6)
    assert theory.condition_number(t(np.stack([x, x]))).numpy() == pytest.approx(kappa(x), rel=1e-6)
    assert kappa(out.numpy()) <= bound * (1 + 1e-6)


def test_proposition_4_1_reaches_the_cube() -> None:
    x = tokens(np.random.default_rng(0), 8, 4, 1.0)
    eye = torch.eye(4)
    assert theory.condition_number(theory.linear_attention(t(x), eye, eye, eye)).item() == pytest.approx(1e3)


@pytest.mark.parametrize(("n", "d", "head"), [(4, 8, 8), (12, 8, 2)])
def test_proposition_4_1_needs_many_tokens_and_square_weights(n: int, d: int, head: int) -> None:
    """Fewer tokens than channels, or one head of several: on nonzero singular values the bound fails for some."""
    worst = 0.0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        x = tokens(rng, n, d, 0.0)  # κ(X) = 1
        q, k = (tokens(rng, d, head, 0.0) for _ in range(2))
        v = tokens(rng, d, head, 0.0)
        out = theory.linear_attention(t(x), t(q), t(k), t(v)).numpy()
        worst = max(worst, effective_kappa(out) / theory.linear_attention_bound(t(x), t(q), t(k), t(v)).item())
    assert worst > 2


@quick
@given(st.integers(2, 10), SEEDS, st.floats(0.1, 3.0))
def test_proposition_4_2_holds_for_semidefinite_maps(n: int, seed: int, decades: float) -> None:
    rng = np.random.default_rng(seed)
    u, _ = np.linalg.qr(rng.normal(size=(n, n)))
    m = u * np.logspace(0.5, 0.5 - decades, n) @ u.T
    values = np.linalg.svd(m, compute_uv=False)
    predicted = theory.skip_condition_number(values[0], values[-1]).item()
    assert predicted == pytest.approx(kappa(m + np.eye(n)))
    assert predicted < kappa(m)


def test_proposition_4_2_fails_for_a_map_with_a_negative_eigenvalue() -> None:
    m = np.diag([1.0, -0.99])
    before, after = theory.skip_condition_numbers(t(m), torch.eye(2))
    assert before.item() == pytest.approx(1 / 0.99)
    assert after.item() == pytest.approx(200)
    assert theory.skip_condition_number(1.0, 0.99).item() < before.item()


def test_proposition_4_2_fails_for_attention_that_undoes_its_tokens() -> None:
    """A softmax map close to I and W_V close to −I: the branch is well conditioned, the sum is not."""
    rng = np.random.default_rng(0)
    x = tokens(rng, 6, 3, 0.1)
    a = scipy.special.softmax(12 * np.eye(6), axis=-1)
    branch = a @ x @ np.diag([-1.001, -0.8, -0.5])
    before, after = theory.skip_condition_numbers(t(branch), t(x))
    assert after > 10 * before


def lowered_share(kind: str, decades: float, scale: float) -> float:
    """In how many of 300 random layers the skip lowers κ."""
    rng = np.random.default_rng(0)
    draws, n, d = 300, 16, 8
    x = np.stack([tokens(rng, n, d, decades) * np.sqrt(n) for _ in range(draws)])
    q, k, v = scale * rng.normal(size=(3, draws, d, d)) / np.sqrt(d)
    if kind == "linear":
        branch = theory.linear_attention(t(x), t(q), t(k), t(v)).numpy()
    else:
        scores = x @ q @ (x @ k).transpose(0, 2, 1) / np.sqrt(d)
        branch = scipy.special.softmax(scores, axis=-1) @ x @ v
    before, after = theory.skip_condition_numbers(t(branch), t(x))
    return (after < before).double().mean().item()


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_proposition_4_2_holds_for_most_random_layers(kind: str) -> None:
    """A statistic, not a law: with weights of the usual spread the skip lowers κ in nearly all draws."""
    assert lowered_share(kind, decades=1.0, scale=1.0) > 0.95


def test_proposition_4_2_loses_its_majority_with_large_weights() -> None:
    """Well conditioned tokens and weights twice as large, without softmax: every fourth draw or more contradicts."""
    assert lowered_share("linear", decades=0.0, scale=2.0) < 0.75


@quick
@given(st.integers(2, 12), st.integers(2, 12), SEEDS, st.floats(0.0, 4.0), st.floats(0.05, 1.0))
def test_graying_by_svd_scales_the_log_condition_number(
    n: int, d: int, seed: int, decades: float, epsilon: float
) -> None:
    x = tokens(np.random.default_rng(seed), n, d, decades)
    u, s, v = np.linalg.svd(x, full_matrices=False)
    grayed = u * (s / s[0]) ** epsilon @ v
    predicted = theory.grayed_condition_number(theory.condition_number(t(x)), epsilon).item()
    assert np.log(kappa(grayed)) == pytest.approx(epsilon * np.log(kappa(x)), abs=1e-6)
    assert predicted == pytest.approx(kappa(grayed), rel=1e-6)


def test_graying_by_dct_can_raise_the_condition_number() -> None:
    """Orthogonal tokens have κ = 1, the least there is; a power of their DCT is no longer orthogonal."""
    x, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))
    spectrum = scipy.fft.dctn(x, norm="ortho")
    peak = np.abs(spectrum).max()
    sizes = [
        kappa(scipy.fft.idctn(np.sign(spectrum) * (np.abs(spectrum) / peak) ** e, norm="ortho"))
        for e in (1.0, 0.95, 0.6)
    ]
    assert sizes[0] == pytest.approx(1)
    assert sizes[0] < sizes[1] < sizes[2]
    assert theory.grayed_condition_number(sizes[0], 0.6).item() == pytest.approx(1)
