"""Context Broadcasting (ICCV 2023): the entropy of dense attention, and the effect of averaging with the mean token.

CB(X) = (X + DC[X])/2 = DC[X] + ½ HC[X]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.theory.matrices import bands, double


def attention_entropy(attention: Tensor) -> Tensor:
    """−Σ_j a_ij log a_ij of each row (…, n): between 0 (one token) and log n (uniform).

    Assumes rows that sum to 1 without negative entries. H + I of adder attention has rows that sum to 2, so log n is
    not a bound; AttnScale can make entries negative, where the result is −∞ and has no meaning.
    """
    return torch.special.entr(double(attention)).sum(-1)


def entropy_bound(n: int) -> float:
    """log n: the entropy of the uniform row only. With a mask, n is the number of visible keys."""
    return math.log(n)


def broadcast_entropy_bound(entropy: Tensor, n: int) -> Tensor:
    """(H + log n)/2 ≤ entropy of (A + J)/2: mixing with the uniform map makes attention denser (ours, by concavity)."""
    return (double(entropy) + math.log(n)) / 2


def broadcast(x: Tensor) -> Tensor:
    """CB(X) for tokens (…, n, d): DC is unchanged and HC is halved, so r(CB(X)) = r(X)/2."""
    low, high = bands(x)
    return low + high / 2


def broadcast_affine_gap(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max |CB(H)Wᵀ + b − CB(HWᵀ + b)|: Mid (before fc2) minus End (after it) without dropout. Zero up to rounding.

    The mean of an affine map of tokens is the affine map of their mean. An activation or dropout in between breaks
    this, so Front (before fc1) is another function, and so are Mid and End while a model trains with dropout.
    """
    hidden, weight, bias = double(hidden), double(weight), double(bias)
    mid = broadcast(hidden) @ weight.mT + bias
    end = broadcast(hidden @ weight.mT + bias)
    return (mid - end).abs().amax((-2, -1))
