"""The augmented shortcuts paper: diversity, its decay under attention, and what shortcuts allow."""

from __future__ import annotations

import mpmath
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
@given(SIZES, SEEDS, st.integers(1, 3), st.integers(1, 3), st.floats(0.05, 3.0))
def test_one_augmented_block(n: int, seed: int, count: int, heads: int, scale: float) -> None:
    """Eq. S.1–S.4, S.6 and S.7 and the linear form, on one AugMSA and one AugMLP."""
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, 4)) + 1
    qk, vo = rng.normal(size=(2, heads, 4, 4)) / 2
    thetas, biases = rng.normal(size=(count, 4, 4)), rng.normal(size=(count, 4))
    norms = np.array([np.linalg.norm(theta, 2) for theta in thetas])

    # S.1 and S.2: the nearest rank-one matrix stays rank-one, and a path is Lipschitz.
    for theta, b, norm in zip(thetas, biases, norms, strict=True):
        path = gelu(z @ theta + b)
        shifted = np.linalg.norm(path - gelu(np.ones((n, 1)) * z.mean(0) @ theta + b))
        assert r(path) <= shifted * SLACK
        assert shifted <= GELU_SLOPE * norm * r(z) * SLACK

    alpha = 1 + GELU_SLOPE * norms.sum()
    assert theory.shortcut_gain(t(norms)).item() == pytest.approx(alpha, rel=1e-6)
    shortcuts = z + sum(gelu(z @ theta + b) for theta, b in zip(thetas, biases, strict=True))
    assert r(shortcuts) <= alpha * r(z) * SLACK

    # S.3 for the first head alone, S.4 for all of them. The width of a head is 4.
    gamma = max(np.linalg.norm(a, 2) * np.linalg.norm(b, 2) for a, b in zip(qk, vo, strict=True))
    half = gamma / 2
    first = theory.augmented_head_bound(r(z), half, 4, alpha).item()
    assert first == pytest.approx(half / 2 * r(z) ** 3 + alpha * r(z))
    assert r(msa(z, qk[:1], vo[:1], 4) + shortcuts) <= first * SLACK
    attention = msa(z, qk, vo, 4)
    total = theory.augmented_msa_bound(r(z), half, heads, 4, alpha).item()
    assert total == pytest.approx(heads * half / 2 * r(z) ** 3 + heads * alpha * r(z))
    step = theory.augmented_msa_step(r(z), gamma, heads, 4, alpha).item()
    assert step == pytest.approx(max(heads * gamma / 2 * r(z) ** 3, 2 * heads * alpha * r(z)))
    assert r(attention + shortcuts) <= total * SLACK <= step * SLACK**2

    # S.6 and S.7.
    w1, w2 = rng.normal(size=(4, 7)), rng.normal(size=(7, 4))
    delta = np.linalg.norm(w1, 2) * GELU_SLOPE * np.linalg.norm(w2, 2)
    y = attention + shortcuts
    after = gelu(y @ w1) @ w2 + y + sum(gelu(y @ theta + b) for theta, b in zip(thetas, biases, strict=True))
    mlp = theory.augmented_mlp_rate(delta, alpha).item()
    assert mlp == pytest.approx(delta + alpha)
    assert r(after) <= mlp * r(y) * SLACK
    block = theory.augmented_block_step(r(z), gamma, heads, 4, alpha, delta, alpha).item()
    assert block == pytest.approx((delta + alpha) * step)
    assert r(after) <= block * SLACK

    rate = theory.linear_msa_rate(r(attention) / r(z), alpha).item()
    assert rate == pytest.approx(r(attention) / r(z) + alpha)
    assert r(y) <= rate * r(z) * SLACK
    assert r(after) <= theory.linear_stack_bound(r(z), torch.tensor([rate, mlp])).item() * SLACK


def recursion(r0: float, c: float, linear: list[float], mlp: list[float]) -> list[mpmath.mpf]:
    """Eq. S.4 and S.7 layer by layer: r ← q·max(c r³, b r)."""
    values, value = [], mpmath.mpf(r0)
    for b, q in zip(linear, mlp, strict=True):
        value = q * max(c * value**3, b * value)
        values.append(value)
    return values


def printed(r0: float, c: float, linear: list[float], mlp: list[float]) -> mpmath.mpf:
    """Eq. S.5 and S.8, term by term; `linear` and `mlp` have the values for m = 0, …, l."""
    layers = len(linear) - 1
    return max(
        mpmath.mpf(c * mlp[m]) ** ((3**m - 1) // 2)
        * mpmath.mpf(linear[m] * mlp[m]) ** (3**m * (layers - m))
        * mpmath.mpf(r0) ** (3**m)
        for m in range(layers + 1)
    )


GAINS = st.floats(1.0, 20.0)
RADII = st.floats(1e-3, 10.0)
STACKS = {"r0": RADII, "gamma": st.floats(1e-3, 10.0), "heads": st.integers(1, 12), "dim": st.integers(1, 64)}


@quick
@given(**STACKS, alpha=GAINS, beta=GAINS, delta=st.floats(0.0, 20.0), layers=st.integers(1, 7))
def test_theorems_2_and_s1_are_the_recursion_if_all_layers_are_alike(
    r0: float, gamma: float, heads: int, dim: int, alpha: float, beta: float, delta: float, layers: int
) -> None:
    c, b, q = heads * gamma / dim**0.5, 2 * heads * alpha, delta + beta
    alphas, betas, gammas = (torch.full((layers,), value, dtype=torch.float64) for value in (alpha, beta, gamma))
    for rate, bound in (
        (1.0, theory.log_theorem_2(r0, gamma, heads, dim, alphas)),
        (q, theory.log_theorem_s1(r0, gamma, heads, dim, alphas, delta, betas)),
    ):
        steps = [float(mpmath.log(value)) for value in recursion(r0, c, [b] * layers, [rate] * layers)]
        unrolled = float(mpmath.log(printed(r0, c, [b] * (layers + 1), [rate] * (layers + 1))))
        assert bound.item() == pytest.approx(unrolled, rel=1e-9, abs=1e-9)
        assert bound.item() == pytest.approx(steps[-1], rel=1e-9, abs=1e-9)
        logs = theory.log_recursion(r0, gammas, heads, dim, alphas, rate)
        assert logs.tolist() == pytest.approx(steps, rel=1e-9, abs=1e-9)


@quick
@given(**STACKS, gains=st.lists(st.tuples(GAINS, GAINS), min_size=1, max_size=7), delta=st.floats(0.0, 20.0))
def test_the_largest_constants_repair_theorems_2_and_s1(
    r0: float, gamma: float, heads: int, dim: int, gains: list[tuple[float, float]], delta: float
) -> None:
    c = heads * gamma / dim**0.5
    alphas, betas = torch.tensor(gains, dtype=torch.float64).unbind(-1)
    linear, mlp = [2 * heads * a for a, _ in gains], [delta + b for _, b in gains]
    ones = [1.0] * len(gains)
    for rates, bound, as_printed in (
        (
            ones,
            theory.log_theorem_2(r0, gamma, heads, dim, alphas, "largest"),
            theory.log_theorem_2(r0, gamma, heads, dim, alphas),
        ),
        (
            mlp,
            theory.log_theorem_s1(r0, gamma, heads, dim, alphas, delta, betas, "largest"),
            theory.log_theorem_s1(r0, gamma, heads, dim, alphas, delta, betas),
        ),
    ):
        unrolled = printed(r0, c, [*linear, linear[-1]], [*rates, rates[-1]])
        assert as_printed.item() == pytest.approx(float(mpmath.log(unrolled)), rel=1e-9, abs=1e-9)
        end = recursion(r0, c, linear, rates)[-1]
        assert bound.item() >= float(mpmath.log(end)) - 1e-9 * max(1, abs(bound.item()))


def test_deep_models_have_finite_bounds() -> None:
    """3^m exceeds the integers of 64 bits from 40 layers on."""
    for layers in (39, 40, 41, 100):
        alphas = torch.full((layers,), 1.5, dtype=torch.float64)
        bound = theory.log_theorem_2(t(2.0), t(0.3), 2, 16, alphas)
        assert bound.isfinite() and bound > 0


def test_theorem_2_fails_if_alpha_differs_by_layer() -> None:
    """Two layers, H = 1, γ small: both steps are linear, r becomes 2·2·1·40 r = 160 r. S.5 has (2·α_0)² = 4."""
    alphas = torch.tensor([1.0, 40.0])
    end = theory.log_recursion(1.0, torch.full((2,), 1e-9), 1, 1, alphas)[-1].exp().item()
    assert end == pytest.approx(160)
    assert theory.log_theorem_2(1.0, 1e-9, 1, 1, alphas).exp().item() == pytest.approx(4)
    assert theory.log_theorem_2(1.0, 1e-9, 1, 1, alphas, "largest").exp().item() == pytest.approx(6400)
    # A stack that reaches it: no attention, Z + ReLU(ZΘ) on positive tokens with ‖Θ‖ = 0 and 39.
    z = np.array([[1.0], [2.0]])
    after = z + np.maximum(39 * z, 0)
    assert r(after) == pytest.approx(40 * r(z))
    assert r(after) > np.exp(theory.log_theorem_2(r(z), 0.0, 1, 1, alphas).item())


def test_theorem_s1_fails_if_beta_differs_by_block() -> None:
    alphas, betas = torch.ones(2), torch.tensor([1.0, 30.0])
    arguments = (1.0, 1e-9, 1, 1, alphas, 0.5, betas)
    end = theory.log_recursion(1.0, torch.full((2,), 1e-9), 1, 1, alphas, 0.5 + betas)[-1].exp().item()
    assert end == pytest.approx(2 * 1.5 * 2 * 30.5)
    assert theory.log_theorem_s1(*arguments).exp().item() == pytest.approx((2 * 1.5) ** 2)
    assert theory.log_theorem_s1(*arguments, "largest").exp().item() == pytest.approx((2 * 30.5) ** 2)


@quick
@given(st.lists(st.floats(0.0, 10.0), max_size=4), st.floats(0.0, 10.0))
def test_the_mlp_never_lowers_the_bound(norms: list[float], delta: float) -> None:
    """δ + β is not only usually larger than 1: it is 1 for an MLP and shortcuts of zero weights alone, else more."""
    rate = theory.augmented_mlp_rate(delta, theory.shortcut_gain(torch.tensor(norms, dtype=torch.float64))).item()
    assert rate >= 1
    assert rate == pytest.approx(1 + delta + GELU_SLOPE * sum(norms))


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
