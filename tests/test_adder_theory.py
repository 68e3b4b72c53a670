"""What the adder paper proves, on drawn matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unsmooth.adder_ops import l1_scores


@pytest.mark.parametrize("d", [16, 64])
def test_theorem_1_variances_of_the_scores(d: int) -> None:
    """Standard normal q, k: Var(q·k) = d and Var(−‖q−k‖₁) = 2d(1−2/π)."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2000, d, generator=generator) for _ in range(2))
    dot, adder = (q @ k.T).numpy(), l1_scores(q, k).numpy()
    # Pairs share rows, so the spread of the estimate is that of ~2000 independent draws.
    assert dot.var() == pytest.approx(d, rel=0.05)
    assert adder.var() == pytest.approx(2 * d * (1 - 2 / np.pi), rel=0.08)


def share(values: np.ndarray) -> np.ndarray:
    """f(r): the share of the r largest singular values."""
    return np.cumsum(values) / values.sum()


def equivalent_rank(values: np.ndarray) -> int:
    return int(np.argmax(share(values) >= 0.9)) + 1


@pytest.mark.parametrize("seed", range(10))
def test_proposition_1_the_identity_raises_the_rank(seed: int) -> None:
    """For a symmetric positive semi-definite map, adding I adds one to each singular value: f falls, rank rises."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 6))
    kernel = np.exp(-np.abs(x[:, None] - x[None]).sum(-1) / 3)  # the L1 kernel is positive definite
    before = np.linalg.svd(kernel, compute_uv=False)
    after = np.linalg.svd(kernel + np.eye(40), compute_uv=False)
    assert np.allclose(after, before + 1)
    assert (share(after) <= share(before) + 1e-12).all()
    assert equivalent_rank(after) >= equivalent_rank(before)


def test_proposition_1_needs_its_assumption() -> None:
    """A row-stochastic map need not be symmetric: with a permutation of order two, adding I removes rank."""
    swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    before, after = (np.linalg.svd(m, compute_uv=False) for m in (swap, swap + np.eye(2)))
    assert equivalent_rank(before) == 2
    assert equivalent_rank(after) == 1
