"""Augmented shortcuts: Theorems 2 and S.1 against the recursion that they unroll."""

from __future__ import annotations

from torch import Tensor

from unsmooth.papers.theorems.draws import Theorem, normal, row
from unsmooth.results.reproduction import ArmResult
from unsmooth.theory import augmented_shortcuts as theory

HEADS, DIM = 6, 64


def unrolled_recursion(small: bool) -> list[ArmResult]:
    """Share of random constants for which Eq. S.5 and S.8 bound Eq. S.4 and S.7 applied layer by layer."""
    draws, depth = (1000 if small else 100_000), 8
    start, gamma, delta = normal(3, draws).exp() / 2
    alphas, betas = 1 + normal(2, draws, depth, seed=1).exp()
    kinds = {
        "one α and β for all layers": (alphas[:, :1].expand_as(alphas), betas[:, :1].expand_as(betas)),
        "α and β of each layer": (alphas, betas),
    }
    return [_shares(name, start, gamma, delta, *constants) for name, constants in kinds.items()]


def _shares(name: str, start: Tensor, gamma: Tensor, delta: Tensor, alphas: Tensor, betas: Tensor) -> ArmResult:
    depth = alphas.shape[-1]
    gammas, deltas = (constant.unsqueeze(-1).expand_as(alphas) for constant in (gamma, delta))
    msa = theory.log_recursion(start, gammas, HEADS, DIM, alphas)
    block = theory.log_recursion(start, gammas, HEADS, DIM, alphas, theory.augmented_mlp_rate(deltas, betas))
    curves: dict[str, list[float]] = {}
    for layers in range(1, depth + 1):
        alpha, beta, deltas_so_far = (constants[:, :layers] for constants in (alphas, betas, deltas))
        forms: dict[str, theory.Constants] = {"": "printed", " with the largest constants": "largest"}
        for form, constants in forms.items():
            theorem_2 = theory.log_theorem_2(start, gamma, HEADS, DIM, alpha, constants)
            theorem_s1 = theory.log_theorem_s1(start, gamma, HEADS, DIM, alpha, deltas_so_far, beta, constants)
            for equation, bound, exact in (("S.5", theorem_2, msa), ("S.8", theorem_s1, block)):
                holds = bound >= exact[:, layers - 1] - 1e-9 * bound.abs().clamp_min(1)
                curves.setdefault(f"share bounded by {equation}{form}", []).append(float(holds.double().mean()))
    return row(name, "layer", range(1, depth + 1), curves)


THEOREMS: dict[str, Theorem] = {"unrolled_recursion": unrolled_recursion}
