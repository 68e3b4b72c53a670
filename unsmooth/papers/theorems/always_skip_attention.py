"""Always Skip Attention: condition numbers of attention without softmax, of its skip, and of convolution."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unsmooth.papers.theorems.draws import TOKENS, Theorem, normal, row
from unsmooth.results.reproduction import ArmResult
from unsmooth.theory import always_skip_attention as theory

DIM = 16
SHAPES = ((TOKENS, DIM, 128, False), (TOKENS, DIM, 128, True), (64, 64, 32, False), (197, 192, 8, False))
POWERS = (0.25, 0.5, 1.0, 2.0)  # of the singular values of normal tokens


def condition_cubed(small: bool) -> list[ArmResult]:
    """κ(XW_QW_KᵀXᵀXW_V) and its bounds, for tokens with a wider and wider range of singular values."""
    draws = 32 if small else 512
    weights = _weights(draws, DIM)
    curves = _curves(_tokens_by_power(draws), _attention, *weights)
    return [row(f"{TOKENS} normal tokens of {DIM} channels", "power of singular values", POWERS, curves)]


def weight_constant(small: bool) -> list[ArmResult]:
    """C = κ(W_Q)κ(W_K)κ(W_V) of random weights of more and more channels."""
    draws, dims = (64 if small else 512), (8, 16, 32, 64, 128)
    makers: dict[str, Callable[[int, int], Tensor]] = {
        "normal weights": lambda d, seed: normal(draws, d, d, seed=seed),
        "uniform weights": lambda d, seed: torch.special.ndtr(normal(draws, d, d, seed=seed)) - 0.5,
        "normal weights of a head, a quarter as wide": lambda d, seed: normal(draws, d, d // 4, seed=seed),
        "orthogonal weights": lambda d, seed: torch.linalg.qr(normal(draws, d, d, seed=seed))[0],
    }
    rows = []
    for name, make in makers.items():
        constants = [theory.weight_constant(*(make(d, seed) for seed in (1, 2, 3))) for d in dims]
        curves = {"ln C, median": [round(float(constant.median().log()), 9) for constant in constants]}
        rows.append(row(name, "channels", dims, curves))
    return rows


def skip_condition(small: bool) -> list[ArmResult]:
    """κ(X)κ(M) and κ(X)κ(M + I), Eq. 15 to 21, for i.i.d. tokens of several shapes and scales."""
    deviations = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    rows = []
    for n, d, count, orthogonal in SHAPES:
        draws = count if small else 16 * count
        weights = [torch.linalg.qr(weight)[0] if orthogonal else weight for weight in _weights(draws, d)]
        x = normal(draws, n, d)
        curves = _curves([deviation * x for deviation in deviations], _skip, *weights)
        name = f"{n} tokens of {d} channels, {'orthogonal weights (C = 1)' if orthogonal else 'normal weights'}"
        rows.append(row(name, "deviation of the entries", deviations, curves))
    return rows


def convolution_condition(small: bool) -> list[ArmResult]:
    """κ(W_CD X) of a 5 × 5 convolution and its bound, beside those of attention: degree 1 against 3 in κ(X)."""
    draws, side, size = (32 if small else 512), 7, 5
    kernels = {"one kernel for all channels": normal(draws, 1, size, size, seed=4)}
    kernels["a kernel per channel"] = normal(draws, DIM, size, size, seed=4)
    rows = []
    for name, kernel in kernels.items():
        matrices = theory.convolution_matrix(kernel, side, side)
        curves = _curves(_tokens_by_power(draws), _convolution, matrices, *_weights(draws, DIM))
        rows.append(row(name, "power of singular values", POWERS, curves))
    return rows


def _weights(draws: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (normal(draws, dim, dim, seed=seed) / dim**0.5 for seed in (1, 2, 3))
    return query, key, value


def _tokens_by_power(draws: int) -> list[Tensor]:
    u, s, vh = torch.linalg.svd(normal(draws, TOKENS, DIM), full_matrices=False)
    return [u * s.unsqueeze(-2) ** power @ vh for power in POWERS]


def _curves(
    inputs: list[Tensor], measure: Callable[..., dict[str, Tensor]], *weights: Tensor
) -> dict[str, list[float]]:
    """Means over draws of what is measured, by input."""
    measured = [measure(x, *weights) for x in inputs]
    return {label: [float(values[label].double().mean()) for values in measured] for label in measured[0]}


def _excess(measured: Tensor, bound: Tensor) -> Tensor:
    """The largest difference over draws, 0 if it is rounding."""
    largest = (measured - bound).max()
    return torch.where(largest.abs() < 1e-9, 0, largest)


def _attention(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
    kappa = theory.condition_number(theory.linear_attention(x, query, key, value)).log()
    product = theory.projected_attention_bound(x, query, key, value).log()
    bound = theory.linear_attention_bound(x, query, key, value).log()
    return {
        "ln κ of the tokens": theory.condition_number(x).log(),
        "ln κ of linear attention": kappa,
        "bound of Eq. 10": product,
        "its bound": bound,
        "largest excess over Eq. 10": _excess(kappa, product),
        "largest excess over it": _excess(kappa, bound),
    }


def _skip(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
    m = theory.linear_attention_map(x, query, key, value)
    constant = theory.weight_constant(query, key, value)
    sigma = torch.linalg.svdvals(x)
    largest, smallest = sigma[..., 0], sigma[..., -1]
    without = (theory.condition_number(x) * theory.condition_number(m)).log()
    with_skip = theory.skip_product_bound(x, m).log()
    bounds = [bound(constant, largest, smallest).log() for bound in (theory.branch_bound, theory.skip_bound)]
    branch, total = theory.skip_condition_numbers(x @ m, x)
    return {
        "share with σ_min < 1 < σ_max": theory.skip_premise(largest, smallest),
        "ln κ(X)κ(M)": without,
        "ln κ(X)κ(M + I)": with_skip,
        "Eq. 18": bounds[0],
        "Eq. 19": bounds[1],
        "Eq. 18 − Eq. 19": bounds[0] - bounds[1],
        "largest excess over Eq. 15": _excess(total.log(), with_skip),
        "largest excess over Eq. 18": _excess(without, bounds[0]),
        "largest excess over Eq. 19": _excess(with_skip, bounds[1]),
        "share within Eq. 17": with_skip <= bounds[1],
        "relative error of Eq. 20": theory.numerator_excess(constant, largest),
        "relative difference of Eq. 21, median": theory.denominator_excess(smallest).median(),
        "share of draws in which the skip lowers κ": total < branch,
    }


def _convolution(x: Tensor, matrices: Tensor, *weights: Tensor) -> dict[str, Tensor]:
    """For matrices (draws, 1 or channels, n, n). A kernel per channel is the block diagonal of its matrices."""
    values = torch.linalg.svdvals(matrices)
    constant = values[..., 0].amax(-1) / values[..., -1].amin(-1)
    convolved = (matrices @ x.mT.unsqueeze(-1)).squeeze(-1).mT
    kappa, bound = theory.condition_number(convolved).log(), (constant * theory.condition_number(x)).log()
    return {
        "ln κ of convolution": kappa,
        "its bound": bound,
        "largest excess over it": _excess(kappa, bound),
        "ln κ of linear attention": theory.condition_number(theory.linear_attention(x, *weights)).log(),
        "bound of attention": theory.linear_attention_bound(x, *weights).log(),
    }


THEOREMS: dict[str, Theorem] = {
    "condition_cubed": condition_cubed, "weight_constant": weight_constant, "skip_condition": skip_condition,
    "convolution_condition": convolution_condition,
}  # fmt: skip
