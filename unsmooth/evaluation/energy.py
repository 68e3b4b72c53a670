"""Energy of the arithmetic per image, from published energies per operation.

Papers on adder networks compare models this way: additions and multiplications, each with its energy on a 45 nm
chip. It covers arithmetic only; `ASSUMPTIONS` are part of every result.
"""

from __future__ import annotations

from dataclasses import dataclass

from unsmooth.errors import unknown
from unsmooth.results.bench import Operations


@dataclass(frozen=True)
class Price:
    """Picojoules per operation."""

    add: float
    multiply: float


SOURCE = "M. Horowitz, Computing's energy problem (and what we can do about it), ISSCC 2014, Fig. 1.1.9: 45 nm, 0.9 V"
PRICES = {
    "fp32": Price(add=0.9, multiply=3.7),
    "fp16": Price(add=0.4, multiply=1.1),
    "int32": Price(add=0.1, multiply=3.1),
    "int8": Price(add=0.03, multiply=0.2),
}
# Parts of a model folded to int8 run in these, whatever the precision of the rest.
FIXED = {"int8": "int8", "int8_sums": "int32"}
ASSUMPTIONS = (
    "arithmetic only: memory traffic, which costs more than arithmetic on most chips, control and leakage are excluded",
    "a multiply-add is one multiplication and one addition; |a − b| and its sum are two additions, the sign is free",
    "norms, softmax, activations, comparisons and divisions are excluded: no energies are published for them",
    "every operation, sums included, has the given precision, although an int8 network usually accumulates in 32 bits; "
    "the int8 layers of a folded model are counted as they run: bytes, and one 32-bit sum for eight of them",
    "one image, one forward pass, attention not fused",
)


def price(precision: str) -> Price:
    if precision not in PRICES:
        raise unknown("precision", precision, PRICES)
    return PRICES[precision]


def energy(operations: Operations, precision: str = "fp32") -> float:
    """Millijoules per image of the additions and multiplications."""
    each = price(precision)
    parts = [(count, PRICES[FIXED[part]] if part in FIXED else each) for part, count in operations.parts.items()]
    return 1e-9 * sum(count.add * cost.add + count.multiply * cost.multiply for count, cost in parts)
