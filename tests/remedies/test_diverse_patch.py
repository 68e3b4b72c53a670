"""The losses of diverse_patch, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unsmooth.remedies.diverse_patch import contrastive_loss, cosine_loss


def numpy_cosine(h: np.ndarray) -> float:
    images = []
    for x in h:
        pairs = [(i, j) for i in range(len(x)) for j in range(len(x)) if i != j]
        images.append(np.mean([abs(x[i] @ x[j]) / (np.linalg.norm(x[i]) * np.linalg.norm(x[j])) for i, j in pairs]))
    return float(np.mean(images))


def numpy_contrastive(g: np.ndarray, h: np.ndarray) -> float:
    images = []
    for early, late in zip(g, h, strict=True):
        terms = []
        for i in range(len(late)):
            own, others = early[i] @ late[i], early[i] @ np.delete(late, i, axis=0).mean(axis=0)
            terms.append(-(own - np.logaddexp(own, others)))
        images.append(np.mean(terms))
    return float(np.mean(images))


def test_the_losses_are_their_equations() -> None:
    g, h = (torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (0, 1))
    assert float(cosine_loss(h)) == pytest.approx(numpy_cosine(h.numpy()), rel=1e-12)
    assert float(contrastive_loss(g, h)) == pytest.approx(numpy_contrastive(g.numpy(), h.numpy()), rel=1e-12)


def test_closed_forms() -> None:
    equal, apart = torch.ones(1, 4, 6), torch.eye(4, 6).unsqueeze(0)
    assert float(cosine_loss(equal)) == pytest.approx(1)
    assert float(cosine_loss(-3 * apart)) == 0
    opposite = torch.tensor([[[1.0, 0.0], [-2.0, 0.0]]])
    assert float(cosine_loss(opposite)) == pytest.approx(1), "tokens that point away from each other are alike too"
    assert float(contrastive_loss(apart, equal)) == pytest.approx(np.log(2)), "no early token knows its own"
    assert float(contrastive_loss(apart, apart)) == pytest.approx(np.log1p(np.exp(-1)))


def test_large_tokens_stay_finite() -> None:
    """Residual streams of trained hosts have products far beyond what an exponential holds."""
    g, h = torch.randn(2, 2, 9, 16, generator=torch.Generator().manual_seed(0)) * 1e4
    h.requires_grad_()
    value = cosine_loss(h) + contrastive_loss(g, h)
    value.backward()
    assert value.isfinite()
    assert h.grad is not None
    assert h.grad.isfinite().all()


def test_gradients_are_the_derivative_and_hold_the_first_block_constant() -> None:
    g, h = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h.requires_grad_()
    assert torch.autograd.gradcheck(cosine_loss, (h,))
    assert torch.autograd.gradcheck(lambda h: contrastive_loss(g, h), (h,))
    early = g.clone().requires_grad_()
    contrastive_loss(early, h).backward()
    assert early.grad is None
