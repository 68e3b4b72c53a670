"""What the arithmetic of one image costs in energy, from published energies of single operations.

This is the account of adder networks: so many additions and multiplications, each at the price that it has on a chip of
45 nm. It compares arithmetic, and nothing else: see `ASSUMPTIONS`, which go with every result.
"""

from __future__ import annotations

from dataclasses import dataclass

from unsmooth.errors import unknown
from unsmooth.evaluation.operations import Operations


@dataclass(frozen=True)
class Price:
    """Picojoules of one operation."""

    add: float
    multiply: float


SOURCE = "M. Horowitz, Computing's energy problem (and what we can do about it), ISSCC 2014, Fig. 1.1.9: 45 nm, 0.9 V"
PRICES = {
    "fp32": Price(add=0.9, multiply=3.7),
    "fp16": Price(add=0.4, multiply=1.1),
    "int32": Price(add=0.1, multiply=3.1),
    "int8": Price(add=0.03, multiply=0.2),
}
ASSUMPTIONS = (
    "arithmetic only: memory traffic, which costs more than arithmetic on most chips, control and leakage are left out",
    "a multiply-add is one multiplication and one addition; |a − b| and its sum are two additions, the sign is free",
    "norms, softmax, activations, comparisons and divisions are left out: no energy is published for them",
    "every operation has the precision of the column, sums too: an int8 network usually sums in 32 bits",
    "one image, attention computed in its parts, as a forward pass of this model runs it",
)


def price(precision: str) -> Price:
    if precision not in PRICES:
        raise unknown("precision", precision, PRICES)
    return PRICES[precision]


def energy(operations: Operations, precision: str = "fp32") -> float:
    """Millijoules of the additions and multiplications of one image."""
    each = price(precision)
    return 1e-9 * (operations.add * each.add + operations.multiply * each.multiply)
