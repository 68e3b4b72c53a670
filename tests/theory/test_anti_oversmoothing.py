"""The Fourier-domain paper: its bounds against NumPy, and where they stop."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unsmooth.theory import anti_oversmoothing as theory
from unsmooth.theory.matrices import GELU_LIPSCHITZ

SIZES = st.integers(2, 12)
SEEDS = st.integers(0, 10**6)
SCALES = st.floats(0.0, 8.0)
quick = settings(max_examples=30, deadline=None)
SLACK = 1 + 1e-9


def softmax(p: np.ndarray) -> np.ndarray:
    return scipy.special.softmax(p, axis=-1)


def high(x: np.ndarray) -> np.ndarray:
    return x - x.mean(-2, keepdims=True)


def norm(x: np.ndarray) -> float:
    return float(np.sqrt((x**2).sum()))


def draw(n: int, seed: int, alpha: float) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    """Scores within ±α, a third of them at its ends, and tokens with a large mean."""
    rng = np.random.default_rng(seed)
    p = np.where(rng.random((n, n)) < 1 / 3, rng.choice([-1.0, 1.0], (n, n)), rng.uniform(-1, 1, (n, n))) * alpha
    return rng, p, rng.normal(size=(n, 5)) + 3


def hard_map(n: int) -> np.ndarray:
    """Half of the tokens look at token 0, half at token 1."""
    a = np.zeros((n, n))
    a[: n // 2, 0] = a[n // 2 :, 1] = 1
    return a


def t(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x))


# Theorem 1, Corollary 2


@quick
@given(SIZES, SEEDS, st.floats(0.0, 1.0))
def test_theorem_1_powers_of_a_softmax_map_are_low_pass(n: int, seed: int, alpha: float) -> None:
    _, p, x = draw(n, seed, alpha)
    a = softmax(p)
    ratios = theory.low_pass_ratios(t(np.stack([a] * 40)), t(x)).numpy()
    power = np.linalg.matrix_power(a, 40) @ x
    assert ratios[0] == pytest.approx(norm(high(x)) / (np.sqrt(n) * norm(x.mean(0))))
    assert ratios[-1] == pytest.approx(norm(high(power)) / (np.sqrt(n) * norm(power.mean(0))), abs=1e-12)
    assert ratios[-1] < 1e-2 * ratios[0]
    assert np.allclose(theory.limit_token(t(a), t(x)).numpy(), np.linalg.matrix_power(a, 4000)[0] @ x)


@quick
@given(SIZES, SEEDS, SCALES)
def test_corollary_2_a_product_shrinks_with_its_rate(n: int, seed: int, alpha: float) -> None:
    rng, p, x = draw(n, seed, alpha)
    maps = np.stack([softmax(rng.permutation(p.ravel()).reshape(n, n)) for _ in range(4)])
    y = x
    for a in maps:
        y = a @ y
    assert norm(high(y)) <= theory.product_bound(t(maps)).item() * norm(high(x)) * SLACK + 1e-12


def test_theorem_1_fails_for_tokens_without_a_limit() -> None:
    """The tokens are an eigenvector of a smaller eigenvalue, so πᵀX = 0: both bands shrink alike."""
    a = softmax(np.random.default_rng(0).normal(size=(6, 6)))
    symmetric = (a + a.T) / 2
    scale = np.sqrt(1 / symmetric.sum(1))
    symmetric_map = symmetric / symmetric.sum(1, keepdims=True)  # similar to a symmetric matrix: real eigenvalues
    _, vectors = np.linalg.eigh(scale[:, None] * symmetric * scale)
    x = (scale * vectors[:, -2])[:, None]
    ratios = theory.low_pass_ratios(t(np.stack([symmetric_map] * 5)), t(x)).numpy()
    assert theory.limit_token(t(symmetric_map), t(x)).item() == pytest.approx(0, abs=1e-12)
    assert np.isfinite(ratios).all()
    assert ratios == pytest.approx(ratios[0], rel=1e-6)


def test_corollary_2_needs_bounded_scores_for_ever_new_maps() -> None:
    """A_k = (1 − ε_k)I + ε_k J is the softmax of finite scores; with Σε_k < ∞, half of HC survives any depth."""
    n, eye, j = 4, np.eye(4), np.full((4, 4), 1 / 4)
    maps = np.stack([(1 - e) * eye + e * j for e in 1 / np.arange(2, 400) ** 2])
    assert np.isfinite(np.log(maps)).all()
    x = np.random.default_rng(0).normal(size=(n, 3))
    ratios = theory.low_pass_ratios(t(maps), t(x)).numpy()
    assert ratios[-1] > 0.5 * ratios[0]


def test_a_low_pass_map_may_sharpen_in_one_step() -> None:
    """√(n/2) is reached, in the limit of large scores, by a map whose powers all collapse."""
    n = 16
    p = np.where(hard_map(n) > 0, 20.0, -20.0)
    a, x = softmax(p), np.eye(n)[:, :1] - np.eye(n)[:, 1:2]
    growth = norm(high(a @ x)) / norm(high(x))
    assert growth == pytest.approx(np.sqrt(n / 2), rel=1e-6)
    assert theory.high_band_norm(t(a)).item() == pytest.approx(growth, rel=1e-6)
    assert theory.product_bound(t(a[None])).item() == pytest.approx(growth, rel=1e-6)


# Theorem 3 and the propositions


@quick
@given(SIZES, SEEDS, SCALES)
def test_theorem_3_bounds_the_high_band(n: int, seed: int, alpha: float) -> None:
    rng, p, x = draw(n, seed, alpha)
    w = rng.normal(size=(5, 4))
    a = softmax(p)
    size = np.abs(p).max()
    reference = np.sqrt(n * np.exp(2 * size) / (np.exp(2 * size) + n - 1))
    assert theory.largest_score(t(p)).item() == size
    assert theory.smoothing_rate(size, n).item() == pytest.approx(reference)
    for centred in (False, True):
        bound = theory.attention_bound(theory.largest_score(t(p), centred), n, np.linalg.norm(w, 2)).item()
        assert norm(high(a @ x @ w)) <= bound * norm(high(x)) * SLACK
    projector = np.eye(n) - 1 / n
    exact = theory.high_band_norm(t(a)).item()
    assert exact == pytest.approx(np.linalg.norm(projector @ a @ projector, 2), abs=1e-12)
    assert norm(high(a @ x)) <= exact * norm(high(x)) * SLACK + 1e-12
    assert exact <= reference * SLACK


def test_the_rate_of_theorem_3_at_its_ends() -> None:
    alphas = torch.tensor([0.0, 1.0, 50.0, 400.0, torch.inf])
    rates = theory.smoothing_rate(alphas, 9)
    assert rates.dtype == torch.float64
    assert rates[0] == 1
    assert (rates[1:] >= rates[:-1]).all()
    assert rates[-2:].tolist() == [3, 3]
    assert theory.smoothing_rate(torch.inf, 1) == 1
    with pytest.raises(ValueError, match="α"):
        theory.smoothing_rate(-1.0, 9)
    with pytest.raises(ValueError, match="n"):
        theory.smoothing_rate(1.0, 0)


def test_theorem_3_proves_no_shrinking_by_itself() -> None:
    """Uniform attention removes HC altogether, and the bound still says 1."""
    x = np.random.default_rng(0).normal(size=(7, 3))
    assert norm(high(softmax(np.zeros((7, 7))) @ x)) < 1e-12
    assert theory.attention_bound(0.0, 7, 1.0).item() == 1


def test_theorem_3_as_printed_fails_for_pooled_keys() -> None:
    """64 queries on 2 keys: the number of queries belongs in front."""
    p = np.where(np.arange(64)[:, None] % 2 == np.arange(2), 3.0, -3.0)
    x = np.array([[1.0], [-1.0]])
    growth = norm(high(softmax(p) @ x)) / norm(high(x))
    assert growth > theory.smoothing_rate(3.0, 2).item()
    assert growth <= theory.smoothing_rate(3.0, 2, queries=64).item() * SLACK


def test_theorem_3_does_not_speak_about_what_a_norm_in_front_does() -> None:
    """Pre-norm: nearly equal tokens become very different ones, so Proposition 5 is exceeded."""
    rng, p, x = draw(6, 0, 1.0)
    x = 1e-3 * rng.normal(size=x.shape)
    normed = torch.nn.functional.layer_norm(t(x), x.shape[-1:], eps=1e-12).numpy()
    out = x + softmax(p) @ normed
    assert norm(high(out)) > 10 * theory.skip_bound(theory.smoothing_rate(1.0, 6)).item() * norm(high(x))


@quick
@given(SIZES, SEEDS, st.floats(0.0, 60.0), st.floats(0.05, 3.0))
def test_section_2_2_a_small_value_matrix_makes_the_high_band_fall(
    n: int, seed: int, alpha: float, relative: float
) -> None:
    """‖W_V‖₂ < 1/√n: monotone, whatever the scores, which may be new in each step."""
    rng, p, x = draw(n, seed, alpha)
    w = rng.normal(size=(5, 5))
    w *= relative / np.sqrt(n) / np.linalg.norm(w, 2)
    assert theory.smoothing_rate(alpha, n).item() <= np.sqrt(n) * SLACK
    shrinks = theory.always_shrinks(np.linalg.norm(w, 2), n).item()
    assert shrinks == (relative < 1) or relative == pytest.approx(1)
    for _ in range(4 if shrinks else 0):
        y = softmax(rng.permutation(p.ravel()).reshape(n, n)) @ x @ w
        assert norm(high(y)) < norm(high(x)) * SLACK + 1e-15
        x = y


def test_section_2_2_its_threshold_is_not_vacuous() -> None:
    """A hard map stretches HC by √(n/2), so with ‖W_V‖₂ above √(2/n) HC grows; at 1/√n it is ‖W_V‖₂ that saves it."""
    n, x = 16, np.eye(16)[:, :1] - np.eye(16)[:, 1:2]
    for size, grows in ((0.99 / np.sqrt(n), False), (1.01 * np.sqrt(2 / n), True)):
        assert (norm(high(hard_map(n) @ x * size)) > norm(high(x))) == grows
        assert theory.always_shrinks(size, n).item() != grows
    assert not theory.always_shrinks(1 / np.sqrt(n), n).item()  # printed with <


@quick
@given(SIZES, SEEDS, st.floats(0.01, 3.0), st.floats(-1.0, 1.0))
def test_section_2_2_the_sufficient_condition_for_dot_products(n: int, seed: int, gamma: float, slack: float) -> None:
    """γ²‖W_QW_Kᵀ‖₂/√d + ln‖W_V‖₂ ≤ ½ ln((n−1)/n): HC falls at least at Theorem 3's rate, in every step."""
    rng, _, x = draw(n, seed, 1.0)
    x *= gamma / np.linalg.norm(x, axis=1).max()
    q, k, w = (rng.normal(size=(5, 5)) for _ in range(3))
    score = gamma**2 * np.linalg.norm(q @ k.T, 2) / np.sqrt(5)
    q, k = q / np.sqrt(max(1.0, score / 3)), k / np.sqrt(max(1.0, score / 3))
    score = gamma**2 * np.linalg.norm(q @ k.T, 2) / np.sqrt(5)
    w *= np.exp(np.log((n - 1) / n) / 2 - score - slack) / np.linalg.norm(w, 2)
    found = theory.dot_product_shrinks(t(q), t(k), t(w), gamma, 5, n).item()
    left = score + np.log(np.linalg.norm(w, 2))
    assert found == (left <= np.log((n - 1) / n) / 2) or left == pytest.approx(np.log((n - 1) / n) / 2, abs=1e-9)
    if not found:
        return
    rate = np.sqrt(n * np.exp(2 * score) / (np.exp(2 * score) + n - 1)) * np.linalg.norm(w, 2)
    assert rate < 1
    start, steps = norm(high(x)), int(np.ceil(np.log(1e-3) / np.log(rate)))  # "logarithmic time"
    for step in range(1, min(steps, 300) + 1):
        x = softmax((x @ q) @ (x @ k).T / np.sqrt(5)) @ x @ w
        assert np.linalg.norm(x, axis=1).max() <= gamma * SLACK  # so the condition holds in the next step as well
        assert norm(high(x)) <= rate**step * start * SLACK + 1e-12
    assert steps > 300 or norm(high(x)) <= 1e-3 * start * SLACK


@quick
@given(SIZES, SEEDS, SCALES, st.integers(1, 4))
def test_propositions_4_5_6_bound_a_block(n: int, seed: int, alpha: float, heads: int) -> None:
    rng, p, x = draw(n, seed, alpha)
    maps = [softmax(rng.permutation(p.ravel()).reshape(n, n)) for _ in range(heads)]
    values, outputs = rng.normal(size=(heads, 5, 2)), rng.normal(size=(heads, 2, 5))
    out = sum(a @ x @ v @ o for a, v, o in zip(maps, values, outputs, strict=True)) + rng.normal(size=5)
    sigma_1, sigma_2 = (max(np.linalg.norm(w, 2) for w in ws) for ws in (values, outputs))
    size = np.abs(p).max()
    rate = theory.multi_head_bound(size, n, sigma_1, sigma_2, heads)
    assert rate.item() == pytest.approx(
        sigma_1 * sigma_2 * heads * np.sqrt(n * np.exp(2 * size) / (np.exp(2 * size) + n - 1))
    )
    assert norm(high(out)) <= rate.item() * norm(high(x)) * SLACK
    whole = np.linalg.norm(outputs.reshape(-1, 5), 2)  # with the whole projection, √H is enough
    tight = theory.attention_bound(size, n, sigma_1 * whole).item() * np.sqrt(heads)
    assert norm(high(out)) <= tight * norm(high(x)) * SLACK

    skip = theory.skip_bound(rate)
    assert norm(high(x + out)) <= skip.item() * norm(high(x)) * SLACK

    w1, w2 = rng.normal(size=(5, 9)), rng.normal(size=(9, 5))

    def ffn(y: np.ndarray) -> np.ndarray:
        h = y @ w1 + 0.3
        return h * scipy.special.ndtr(h) @ w2 - 1

    sigma_3 = theory.mlp_lipschitz(t(w1), t(w2))
    assert sigma_3.item() == pytest.approx(np.linalg.norm(w1, 2) * 1.1289042 * np.linalg.norm(w2, 2), rel=1e-6)
    assert norm(high(ffn(out))) <= theory.ffn_bound(rate, sigma_3).item() * norm(high(x)) * SLACK
    after, bound = x + out + ffn(x + out), theory.ffn_skip_bound(skip, sigma_3).item()
    assert bound == pytest.approx((1 + sigma_3.item()) * (1 + rate.item()))
    assert norm(high(after)) <= bound * norm(high(x)) * SLACK


def test_proposition_5_does_not_keep_the_high_band_alive() -> None:
    """The bound exceeds 1, yet a softmax map and W_V = −1/(1−ε)·I remove HC in one step."""
    n, e = 5, 0.25
    a = (1 - e) * np.eye(n) + e / n
    x = np.random.default_rng(0).normal(size=(n, 3)) + 1
    assert norm(high(x + a @ x @ (-np.eye(3) / (1 - e)))) < 1e-12
    assert theory.skip_bound(theory.attention_bound(np.log(a.max() / a.min()) / 2, n, 1 / (1 - e))).item() > 1


def test_gelu_is_steeper_than_one() -> None:
    """Proposition 6 with σ₃ = ‖W₁‖‖W₂‖ alone is too small: GELU's slope is 1.1289 at √2."""
    grid = np.linspace(-6, 6, 200_001)
    slope = scipy.special.ndtr(grid) + grid * np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    assert slope.max() == pytest.approx(GELU_LIPSCHITZ, abs=1e-9)
    assert grid[slope.argmax()] == pytest.approx(np.sqrt(2), abs=1e-4)
    y = torch.tensor([[np.sqrt(2) - 0.1], [np.sqrt(2) + 0.1]])
    grown = norm(high(torch.nn.functional.gelu(y).numpy())) / norm(high(y.numpy()))
    assert 1.12 < grown <= GELU_LIPSCHITZ


# Lemmas and D.1


@quick
@given(SIZES, SEEDS)
def test_lemma_7_the_mean_token_is_nearest(n: int, seed: int) -> None:
    rng, _, x = draw(n, seed, 1.0)
    best = theory.nearest_token(t(np.stack([x, 2 * x]))).numpy()
    solved = np.linalg.lstsq(np.ones((n, 1)), x, rcond=None)[0][0]
    assert np.allclose(best, [solved, 2 * solved])
    other = best[0] + rng.normal(size=5)
    assert norm(x - best[0]) <= norm(x - other)


@quick
@given(SIZES, SEEDS, SCALES)
def test_lemma_8_the_best_coefficient_of_the_mean_filter_is_one(n: int, seed: int, alpha: float) -> None:
    _, p, _ = draw(n, seed, alpha)
    a, j = softmax(p), np.full((n, n), 1 / n)
    solved = np.linalg.lstsq(j.reshape(-1, 1), a.ravel(), rcond=None)[0][0]
    assert theory.mean_filter_coefficient(t(a)).item() == pytest.approx(1)
    assert solved == pytest.approx(1)
    assert all(np.linalg.norm(a - j, 2) <= np.linalg.norm(a - b * j, 2) + 1e-12 for b in np.linspace(0, 2, 21))
    assert theory.mean_filter_coefficient(t(a + np.eye(n))).item() == pytest.approx(2)  # adder attention
    fourier = scipy.linalg.dft(n, scale="sqrtn")
    assert np.allclose(fourier.conj().T @ np.diag([1.0] + [0] * (n - 1)) @ fourier, j)  # so L = βJ, not β11ᵀ (Eq. 70)
    literal = np.linalg.lstsq(np.ones((n * n, 1)), a.ravel(), rcond=None)[0][0]
    assert literal == pytest.approx(1 / n)


def test_lemma_8_is_about_unitarily_invariant_norms() -> None:
    """In the norm of the largest row sum, I is nearest to no mean filter at all."""
    j = np.full((5, 5), 1 / 5)
    distances = [np.linalg.norm(np.eye(5) - b * j, np.inf) for b in (0.0, 1.0)]
    assert distances == pytest.approx([1, 1.6])


@quick
@given(SIZES, SEEDS, st.floats(0.0, 3.0))
def test_d1_mixing_rate_and_ergodicity(n: int, seed: int, alpha: float) -> None:
    _, p, x = draw(n, seed, alpha)
    a = softmax(p)
    second = np.sort(np.abs(scipy.linalg.eigvals(a)))[-2]
    tau = max(np.abs(a[i] - a[k]).sum() / 2 for i in range(n) for k in range(n))
    assert theory.mixing_rate(t(a)).item() == pytest.approx(second, abs=1e-6)
    assert theory.ergodicity_coefficient(t(np.stack([a, a]))).numpy() == pytest.approx(tau, abs=1e-12)
    assert second <= tau + 1e-6
    spread = np.ptp(a @ x, axis=0) <= tau * np.ptp(x, axis=0) * SLACK + 1e-12
    assert spread.all()
    doeblin = 1 - n / (1 + (n - 1) * np.exp(2 * alpha))
    assert theory.ergodicity_bound(alpha, n).item() == pytest.approx(doeblin, abs=1e-12)
    assert tau <= 1 - n * a.min() + 1e-12 <= doeblin + 2e-12
    assert theory.ergodicity_coefficient(t(a @ a)).item() <= tau**2 * SLACK + 1e-12


def test_the_mixing_rate_is_no_bound_for_one_step() -> None:
    """λ₂ = 0, and still HC grows: A is far from normal."""
    a = np.zeros((8, 8))
    a[:4, 4] = a[4:, 5] = 1  # tokens 4 and 5 both look at token 5: A² has equal rows
    x = np.zeros((8, 1))
    x[4], x[5] = 1, -1
    assert theory.mixing_rate(t(a)).item() == pytest.approx(0, abs=1e-6)
    assert norm(high(a @ x)) == pytest.approx(2 * norm(high(x)))
    assert norm(high(a @ a @ x)) == 0


def stationary(a: np.ndarray) -> np.ndarray:
    """π as the left eigenvector of eigenvalue one."""
    values, vectors = np.linalg.eig(a.T)
    pi = np.real(vectors[:, np.abs(values - 1).argmin()])
    return pi / pi.sum()


@quick
@given(SIZES, SEEDS, st.floats(0.1, 3.0))
def test_d1_the_ergodicity_coefficient_contracts_in_every_step(n: int, seed: int, alpha: float) -> None:
    """‖a_iᵀA − πᵀ‖₁ ≤ λ‖a_i − π‖₁ for all rows, with λ = τ(A) < 1, and so Aˡ → 1πᵀ."""
    _, p, _ = draw(n, seed, alpha)
    a = softmax(p)
    pi, tau = stationary(a), theory.ergodicity_coefficient(t(a)).item()
    assert 0 <= tau < 1
    before, after = np.abs(a - pi).sum(1), np.abs(a @ a - pi).sum(1)
    assert (after <= tau * before * SLACK + 1e-12).all()
    if before.min() > 1e-6:
        assert theory.row_contraction(t(a)).item() == pytest.approx((after / before).max(), abs=1e-6)
    power = np.linalg.matrix_power(a, 50)
    assert (np.abs(power - pi).sum(1) <= tau**49 * before * SLACK + 1e-12).all()


def test_d1_the_second_eigenvalue_is_no_contraction() -> None:
    """One step exceeds |λ₂| for most maps, and in ℓ₂ some maps have no λ below one at all."""
    rng = np.random.default_rng(0)
    maps = [softmax(rng.uniform(0.5, 4) * rng.normal(size=(n, n))) for n in rng.integers(3, 12, 300)]
    smallest = np.array([theory.row_contraction(t(a)).item() for a in maps])
    second = np.array([theory.mixing_rate(t(a)).item() for a in maps])
    assert (smallest > second * (1 + 1e-9)).mean() > 0.8
    euclidean = [
        max(np.linalg.norm(row @ a - stationary(a)) / np.linalg.norm(row - stationary(a)) for row in a) for a in maps
    ]
    assert max(euclidean) > 1
    assert theory.row_contraction(torch.full((2, 4, 4), 0.25)).tolist() == [0, 0]


def test_one_token_mixes_at_once() -> None:
    assert theory.mixing_rate(torch.ones(2, 1, 1)).tolist() == [0, 0]
    assert theory.ergodicity_bound(torch.inf, 1) == 0
    assert theory.ergodicity_bound(torch.inf, 3) == 1
    assert theory.mixing_rate(torch.eye(3)) == 1


# D.2 and D.3


def test_d2_the_counterexample_to_a_step_of_dong_et_al() -> None:
    eye = np.eye(2)
    left, right = theory.rank_collapse_step(t(np.diag([2.0, 3.0])), t(np.array([0.8, 0.2])), t(eye), t(eye))
    assert (left.item(), right.item()) == (pytest.approx(4), 3)


@quick
@given(SIZES, SEEDS)
def test_d2_the_step_with_its_norm_repaired(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    d, r, v = np.diag(rng.normal(size=n)), rng.normal(size=(n, 4)), rng.normal(size=(4, 4))
    p = softmax(rng.normal(size=n))
    left, right = theory.rank_collapse_step(t(d), t(p), t(r), t(v))
    ones = np.ones((n, 1))
    assert left.item() == pytest.approx(np.linalg.norm(d @ ones @ p[None] @ r @ v, 1))
    assert right.item() == pytest.approx(np.abs(d @ ones).max() * np.linalg.norm(r, 1) * np.linalg.norm(v, 1))
    assert left.item() <= np.abs(np.diag(d)).sum() * np.linalg.norm(r, 1) * np.linalg.norm(v, 1) * SLACK


@quick
@given(SIZES, SEEDS)
def test_d3_score_bounds(n: int, seed: int) -> None:
    rng, _, x = draw(n, seed, 1.0)
    q, k, gamma = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), np.linalg.norm(x, axis=1).max()
    product = np.abs((x @ q) @ (x @ k).T / np.sqrt(3)).max()
    bound = theory.dot_product_score_bound(t(q), t(k), gamma, 3).item()
    assert bound == pytest.approx(gamma**2 * np.linalg.norm(q @ k.T, 2) / np.sqrt(3))
    assert product <= bound * SLACK

    u, v, b = q[:, 0], k[:, 0], rng.normal()
    logistic = np.abs((x @ u)[:, None] + (x @ v)[None] + b).max()
    bound = theory.logistic_score_bound(t(u), t(v), gamma, b).item()
    assert bound == pytest.approx((np.linalg.norm(u) + np.linalg.norm(v)) * gamma + abs(b))
    assert logistic <= bound * SLACK

    l2 = (((x @ q)[:, None] - (x @ k)[None]) ** 2).sum(-1).max() / 2.5
    bound = theory.l2_score_bound(t(q), t(k), gamma, 2.5).item()
    assert bound == pytest.approx((np.linalg.norm(q, 2) + np.linalg.norm(k, 2)) ** 2 * gamma**2 / 2.5)
    assert l2 <= bound * SLACK


def test_score_bounds_do_not_see_biases() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3))
    w, gamma = 0.1 * np.eye(3), np.linalg.norm(x, axis=1).max()
    biased = np.abs((x @ w + 2) @ (x @ w + 2).T / np.sqrt(3)).max()
    assert biased > theory.dot_product_score_bound(t(w), t(w), gamma, 3).item()
    u, b = np.full(3, 1e-3), -5.0  # Eq. 68 as printed adds b, not |b|
    assert np.abs((x @ u)[:, None] + (x @ u)[None] + b).max() > 2 * np.linalg.norm(u) * gamma + b
