"""Context Broadcasting (ICCV 2023): the entropy of dense attention, the effect of averaging with the mean token on
tokens and gradients, and the printed FLOPs.

CB(X) = (X + DC[X])/2 = DC[X] + ½ HC[X] = BX, B = (I + J)/2, Bᵀ = B
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.theory.matrices import bands, double

Position = Literal["none", "front", "mid", "end"]


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


class MlpGradients(NamedTuple):
    """Gradients of the loss with respect to the weights, biases and inputs of fc2(GELU(fc1(x)))."""

    weight1: Tensor
    bias1: Tensor
    weight2: Tensor
    bias2: Tensor
    inputs: Tensor


def mlp_gradients(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, gradient: Tensor, position: Position
) -> MlpGradients:
    """Section 2.6: the gradients of an MLP with CB at a position, in closed form, for tokens (…, n, d).

    `gradient` g is that of the loss with respect to the output. Because B is symmetric, weights after CB have the
    gradients of the MLP without CB at inputs Bx, and weights before CB those of the MLP without CB for a gradient Bg:

        front   all weights follow CB    inputs Bx, gradient g
        end     all weights precede CB   inputs x, gradient Bg
        mid     the same as end, because CB commutes with fc2

    The paper's case 1 (Front: the weights of the MLP receive no gradient signals) is true only in the sense that none
    of their gradient passes through uniform attention: they are trained, with averaged inputs. Its case 2 (End) is
    true. Its guess that End trains better than Mid by these gradients is not: they are equal.
    """
    x, weight1, bias1, weight2, gradient = (double(value) for value in (x, weight1, bias1, weight2, gradient))
    x = broadcast(x) if position == "front" else x
    hidden = x @ weight1.mT + bias1
    gradient2 = broadcast(gradient) if position == "end" else gradient
    inputs2 = broadcast(F.gelu(hidden)) if position == "mid" else F.gelu(hidden)
    passed = gradient2 @ weight2
    gradient1 = (broadcast(passed) if position == "mid" else passed) * _gelu_slope(hidden)
    inputs = gradient1 @ weight1
    return MlpGradients(
        _outer(gradient1, x), gradient1.sum(-2), _outer(gradient2, inputs2), gradient2.sum(-2),
        broadcast(inputs) if position == "front" else inputs,
    )  # fmt: skip


def _outer(gradient: Tensor, inputs: Tensor) -> Tensor:
    return gradient.mT @ inputs


def _gelu_slope(x: Tensor) -> Tensor:
    return torch.special.ndtr(x) + x * torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


PRINTED_OPERATIONS = {"plain": 1, "gate": 1, "hybrid": 2}
"""FLOPs per token and channel in Tables S5 and S6. `context_broadcast` counts every addition and multiplication:
3, 2 and 5 (scaled: 2, which the tables leave out)."""


def printed_flops(kind: str, tokens: int, channels: int, blocks: int, branches: int = 1, ratio: int = 1) -> int:
    """FLOPs that Tables S5 and S6 count for CB: one per token, channel and block; two for the hybrid.

    Args:
        kind: plain, gate or hybrid.
        tokens: Number of tokens, including the class token.
        channels: Width of the model.
        blocks: Number of blocks.
        branches: 2 if CB is in both MLP and MSA.
        ratio: Hidden width of the MLP divided by `channels` for the position Mid, else 1.
    """
    return PRINTED_OPERATIONS[kind] * tokens * channels * ratio * blocks * branches
