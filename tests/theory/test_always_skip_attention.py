"""Condition numbers: what the skip paper proves, what it only suggests, and where it fails."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
import scipy.ndimage
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
@given(st.integers(2, 6), st.integers(0, 6), SEEDS, st.floats(0.0, 1.5))
def test_equations_10_to_12_of_projected_tokens(d: int, more: int, seed: int, decades: float) -> None:
    rng = np.random.default_rng(seed)
    x = tokens(rng, d + more, d, decades)
    weights = [tokens(rng, d, d, 0.5) for _ in range(3)]
    q, k, v = weights
    product = theory.projected_attention_bound(t(x), t(q), t(k), t(v)).item()
    assert product == pytest.approx(kappa(x @ q) * kappa(x @ k) * kappa(x @ v), rel=1e-6)
    assert kappa(x @ q @ k.T @ x.T @ x @ v) <= product * (1 + 1e-6)
    for w in weights:
        one = theory.projection_bound(t(x), t(w)).item()
        assert one == pytest.approx(kappa(w) * kappa(x), rel=1e-6)
        assert kappa(x @ w) <= one * (1 + 1e-6)
    constant = theory.weight_constant(t(q), t(k), t(v)).item()
    assert constant == pytest.approx(np.prod([kappa(w) for w in weights]), rel=1e-6)
    assert product <= constant * kappa(x) ** 3 * (1 + 1e-6)


def median_constant(rows: int, columns: int) -> float:
    draws = np.random.default_rng(rows).normal(size=(3, 200, rows, columns))
    return float(theory.weight_constant(*t(draws)).median())


def test_the_constant_of_square_gaussian_weights_grows_instead_of_tending_to_one() -> None:
    small, middle, large = (median_constant(d, d) for d in (8, 16, 32))
    assert 1e4 < small < middle / 4 < large / 16
    assert 5e4 < middle < 1e6


def test_the_constant_of_tall_gaussian_weights_tends_to_a_number_above_one() -> None:
    """The law of Marchenko and Pastur for heads of a quarter of the width: κ tends to 3, C to 27."""
    near, far = median_constant(32, 8), median_constant(256, 64)
    assert abs(far - 27) < abs(near - 27) + 1
    assert far == pytest.approx(27, rel=0.15)


@quick
@given(st.integers(2, 6), st.integers(0, 6), SEEDS, st.floats(0.0, 1.0), st.floats(0.05, 5.0))
def test_equations_13_to_18_of_the_map(d: int, more: int, seed: int, decades: float, scale: float) -> None:
    rng = np.random.default_rng(seed)
    x = scale * tokens(rng, d + more, d, decades)
    q, k, v = (tokens(rng, d, d, 0.3) for _ in range(3))
    m = q @ k.T @ x.T @ x @ v
    assert np.allclose(theory.linear_attention_map(t(x), t(q), t(k), t(v)).numpy(), m)
    assert np.allclose(x @ m, theory.linear_attention(t(x), t(q), t(k), t(v)).numpy())

    with_skip = theory.skip_product_bound(t(x), t(m)).item()
    assert with_skip == pytest.approx(kappa(x) * kappa(m + np.eye(d)), rel=1e-6)
    assert kappa(x @ m + x) <= with_skip * (1 + 1e-6)

    c = kappa(q) * kappa(k) * kappa(v)
    values = np.linalg.svd(x, compute_uv=False)
    high, low = values[0], values[-1]
    bound = theory.map_bound(c, high, low).item()
    assert bound == pytest.approx(c * high**2 / low**2)
    assert kappa(m) <= bound * (1 + 1e-6)
    cubed = theory.branch_bound(c, high, low).item()
    assert cubed == pytest.approx(c * high**3 / low**3)
    assert cubed == pytest.approx(theory.linear_attention_bound(t(x), t(q), t(k), t(v)).item(), rel=1e-6)
    assert kappa(x) * kappa(m) <= cubed * (1 + 1e-6)


@given(st.floats(1.0, 1e6), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_equations_17_and_19_to_21_as_printed(c: float, one: float, other: float) -> None:
    high, low = max(one, other), min(one, other)
    assert theory.skip_map_bound(c, high, low).item() == pytest.approx((c * high**2 + 1) / (low**2 + 1))
    with_skip, without = theory.skip_bound(c, high, low).item(), theory.branch_bound(c, high, low).item()
    assert with_skip == pytest.approx((c * high**3 + high) / (low**3 + low))
    above, below = theory.numerator_excess(c, high).item(), theory.denominator_excess(low).item()
    assert above == pytest.approx((c * high**3 + high) / (c * high**3) - 1, rel=1e-3, abs=1e-9)
    assert below == pytest.approx((low**3 + low) / low**3 - 1, rel=1e-3, abs=1e-9)
    assert with_skip == pytest.approx(without * (1 + above) / (1 + below))
    assert with_skip <= without * (1 + 1e-9)  # C ≥ 1: the skip never raises the printed bound
    assert theory.skip_premise(high, low).item() == (low < 1 < high)


def test_the_premise_of_proposition_4_2_depends_on_scale_and_shape() -> None:
    for shape, scale, expected in (((49, 16), 1.0, False), ((197, 192), 0.02, False), ((64, 64), 1.0, True)):
        draws = scale * np.random.default_rng(0).normal(size=(20, *shape))
        values = t(np.linalg.svd(draws, compute_uv=False))
        assert (theory.skip_premise(values[:, 0], values[:, -1]).numpy() == expected).all(), shape


def test_equations_17_and_19_fail_for_a_value_weight_with_a_negative_eigenvalue() -> None:
    """X = I, W_Q = W_K = I, W_V = diag(1, −0.99): the skip raises κ from 1.01 to 200, the printed bound is 1.005."""
    eye, value = torch.eye(2), torch.diag(torch.tensor([1.0, -0.99], dtype=torch.float64))
    m = theory.linear_attention_map(eye, eye, eye, value)
    assert torch.equal(m, value)
    c = theory.weight_constant(eye, eye, value).item()
    assert theory.condition_number(m).item() == pytest.approx(theory.map_bound(c, 1, 1).item())
    assert theory.skip_product_bound(eye, m).item() == pytest.approx(200)
    for printed in (theory.skip_map_bound(c, 1, 1), theory.skip_bound(c, 1, 1)):
        assert printed.item() == pytest.approx((1 / 0.99 + 1) / 2)
    before, after = theory.skip_condition_numbers(m, eye)
    assert before.item() == pytest.approx(1 / 0.99)
    assert after.item() == pytest.approx(200)


def test_equation_17_depends_on_the_scale_of_the_weights_though_its_right_side_does_not() -> None:
    """M positive definite, weights a hundred times smaller: C stays, κ(M + I) goes to 1; larger: to κ(M)."""
    x, v = torch.eye(2), torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    eye = torch.eye(2)
    kappas = [theory.skip_product_bound(x, theory.linear_attention_map(x, eye, eye, s * v)).item() for s in (0.01, 100)]
    assert kappas == pytest.approx([1.0198, 2.9802], rel=1e-3)
    assert theory.skip_map_bound(3.0, 1, 1).item() == pytest.approx(2)  # between: it holds for one of them only


@quick
@given(st.integers(2, 10), SEEDS, st.floats(0.1, 3.0))
def test_the_skip_of_semidefinite_maps(n: int, seed: int, decades: float) -> None:
    rng = np.random.default_rng(seed)
    u, _ = np.linalg.qr(rng.normal(size=(n, n)))
    m = u * np.logspace(0.5, 0.5 - decades, n) @ u.T
    values = np.linalg.svd(m, compute_uv=False)
    predicted = theory.semidefinite_skip_condition_number(values[0], values[-1]).item()
    assert predicted == pytest.approx(kappa(m + np.eye(n)))
    assert predicted < kappa(m)


@quick
@given(st.integers(2, 5), st.integers(2, 5), st.sampled_from([1, 3, 5]), SEEDS)
def test_equation_24_of_a_convolution(height: int, width: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel, d = rng.normal(size=(size, size)), 2
    x = rng.normal(size=(height * width, d))
    matrix = theory.convolution_matrix(t(kernel), height, width)
    images = [scipy.ndimage.correlate(x[:, c].reshape(height, width), kernel, mode="constant") for c in range(d)]
    y = np.stack([image.ravel() for image in images], axis=1)
    assert np.allclose(matrix.numpy() @ x, y)
    bound = theory.convolution_bound(t(x), matrix).item()
    assert bound == pytest.approx(kappa(matrix.numpy()) * kappa(x), rel=1e-4)
    assert kappa(y) <= bound * (1 + 1e-6)


def test_equation_24_is_of_degree_one() -> None:
    """A kernel of one entry has C_CD = 1: convolution keeps κ(X), attention cubes it."""
    x = tokens(np.random.default_rng(0), 9, 4, 1.0)
    matrix = theory.convolution_matrix(torch.tensor([[2.0]]), 3, 3)
    assert theory.condition_number(matrix @ t(x)).item() == pytest.approx(10)
    assert theory.convolution_bound(t(x), matrix).item() == pytest.approx(10)
    assert theory.linear_attention_bound(t(x), *(torch.eye(4),) * 3).item() == pytest.approx(1e3)


def test_equation_24_fails_with_a_kernel_per_channel() -> None:
    """One channel stays, the other is shifted onto it. Each channel keeps its norm, and the tokens lose a rank."""
    x = np.zeros((9, 2))
    x[4, 0], x[5, 1] = 1, 1
    kernels = np.zeros((2, 3, 3))
    kernels[0, 1, 1], kernels[1, 1, 2] = 1, 1
    matrices = theory.convolution_matrix(t(kernels), 3, 3).numpy()
    y = np.stack([matrix @ channel for matrix, channel in zip(matrices, x.T, strict=True)], axis=1)
    assert kappa(x) == pytest.approx(1)
    assert np.linalg.norm(y, axis=0) == pytest.approx(1)
    assert np.linalg.matrix_rank(y) == 1


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
