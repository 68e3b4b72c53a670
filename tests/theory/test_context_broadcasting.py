"""Context broadcasting: entropy of attention, the two bands, and where it may be placed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unsmooth.theory import context_broadcasting as theory

SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 10**6)
quick = settings(max_examples=30, deadline=None)


def t(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x))


def cb(x: np.ndarray) -> np.ndarray:
    return np.stack([(token + sum(x) / len(x)) / 2 for token in x])


@quick
@given(SIZES, SEEDS, st.floats(0.0, 30.0))
def test_entropy_is_at_most_log_n(n: int, seed: int, scale: float) -> None:
    a = scipy.special.softmax(scale * np.random.default_rng(seed).normal(size=(2, n, n)), axis=-1)
    entropy = theory.attention_entropy(t(a)).numpy()
    assert np.allclose(entropy, scipy.stats.entropy(a, axis=-1), atol=1e-12)
    assert (entropy >= -1e-12).all()
    assert (entropy <= theory.entropy_bound(n) + 1e-12).all()
    denser = theory.attention_entropy(t((a + 1 / n) / 2)).numpy()
    assert (denser >= theory.broadcast_entropy_bound(t(entropy), n).numpy() - 1e-12).all()


def test_entropy_of_uniform_and_hard_rows() -> None:
    assert theory.attention_entropy(torch.full((5, 5), 0.2, dtype=torch.float64)).numpy() == pytest.approx(np.log(5))
    assert theory.attention_entropy(torch.eye(5)).tolist() == [0] * 5
    almost = torch.tensor([[0.2 + 1e-3, 0.2 - 1e-3, 0.2, 0.2, 0.2]], dtype=torch.float64)
    assert theory.attention_entropy(almost).item() < theory.entropy_bound(5)


def test_log_n_is_no_bound_for_rows_that_do_not_sum_to_one() -> None:
    """Adder attention adds I. And AttnScale may leave the range where entropy means anything."""
    n = 16
    a = torch.full((n, n), 1 / n, dtype=torch.float64)
    assert (theory.attention_entropy(2 * a) > theory.entropy_bound(n)).all()
    mean = torch.full((n, n), 1 / n)
    scaled = mean + 1.5 * (torch.eye(n) - mean)
    assert torch.isneginf(theory.attention_entropy(scaled)).all()


@quick
@given(SIZES, SIZES, SEEDS)
def test_broadcasting_halves_the_high_band_and_keeps_the_mean(n: int, d: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(n, d)) + 1
    y = theory.broadcast(t(x)).numpy()
    assert np.allclose(y, cb(x), atol=1e-12)
    assert np.allclose(y.mean(0), x.mean(0), atol=1e-12)
    assert np.allclose(y - y.mean(0), (x - x.mean(0)) / 2, atol=1e-12)
    twice = theory.broadcast(t(y)).numpy()
    assert np.allclose(twice - twice.mean(0), (x - x.mean(0)) / 4, atol=1e-12)


def test_batches_of_any_depth_and_any_precision() -> None:
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    y = theory.broadcast(x)
    assert y.dtype == torch.float64
    assert np.allclose(y[1, 2].numpy(), cb(x[1, 2].double().numpy()))


@quick
@given(SIZES, SIZES, SIZES, SEEDS)
def test_mid_and_end_are_one_function(n: int, hidden: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    h, w, b = rng.normal(size=(2, n, hidden)), rng.normal(size=(d, hidden)), rng.normal(size=d)
    assert theory.broadcast_affine_gap(t(h), t(w), t(b)).max().item() < 1e-12
    for tokens in h:
        assert np.allclose(cb(tokens) @ w.T + b, cb(tokens @ w.T + b))


def test_front_is_another_function_and_dropout_parts_mid_from_end() -> None:
    """An activation does not commute with the mean, and neither does a mask that differs from token to token."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 4))
    assert not np.allclose(np.maximum(cb(x), 0), cb(np.maximum(x, 0)), atol=1e-2)
    keep = rng.random((6, 4)) < 0.5
    assert not np.allclose(cb(x) * keep, cb(x * keep), atol=1e-2)
