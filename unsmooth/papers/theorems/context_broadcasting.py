"""Context Broadcasting: the gradients that reach the weights of an MLP with CB before, in or after it."""

from __future__ import annotations

from torch import Tensor

from unsmooth.papers.theorems.draws import TOKENS, Theorem, normal, row
from unsmooth.results.reproduction import ArmResult
from unsmooth.theory.context_broadcasting import MlpGradients, Position, broadcast, mlp_gradients

WIDTHS = (16, 32, 64)
POSITIONS: tuple[Position, ...] = ("front", "mid", "end")
LABELS = (
    "gradient of fc1", "gradient of fc2", "distance to End", "distance to averaged inputs",
    "distance to averaged gradients",
)  # fmt: skip


def broadcast_gradients(small: bool) -> list[ArmResult]:
    """Norms of the gradients of both layers, and their relative distance to three others, for each position."""
    draws, rows = (16 if small else 256), []
    for position in POSITIONS:
        by_width = [_compare(draws, width, position) for width in WIDTHS]
        rows.append(row(position, "channels", WIDTHS, {label: [d[label] for d in by_width] for label in LABELS}))
    return rows


def _compare(draws: int, width: int, position: Position) -> dict[str, float]:
    hidden = 4 * width
    x, gradient = normal(draws, TOKENS, width), normal(draws, TOKENS, width, seed=1)
    fc1, bias, fc2 = normal(hidden, width, seed=2) / width**0.5, normal(hidden, seed=3), normal(width, hidden, seed=4)

    def gradients(x: Tensor, g: Tensor, where: Position) -> MlpGradients:
        return mlp_gradients(x, fc1, bias, fc2 / hidden**0.5, g, where)

    own = gradients(x, gradient, position)
    values = (
        float(own.weight1.norm() / draws**0.5),
        float(own.weight2.norm() / draws**0.5),
        _distance(own, gradients(x, gradient, "end")),
        _distance(own, gradients(broadcast(x), gradient, "none")),
        _distance(own, gradients(x, broadcast(gradient), "none")),
    )
    return dict(zip(LABELS, values, strict=True))


def _distance(own: MlpGradients, other: MlpGradients) -> float:
    """Relative distance of the gradients of both weights."""
    pairs = ((own.weight1, other.weight1), (own.weight2, other.weight2))
    squared = sum(float((a - b).square().sum()) for a, b in pairs)
    return round((squared / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5, 9)


THEOREMS: dict[str, Theorem] = {"broadcast_gradients": broadcast_gradients}
