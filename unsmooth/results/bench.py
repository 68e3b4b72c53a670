"""The result of `bench`: the cost of several models, measured together."""

from __future__ import annotations

from typing import Annotated

from unsmooth.rendering import renderer
from unsmooth.results.provenance import ClassName, Provenance
from unsmooth.results.record import Result, named, record, stored_as


@record
class Count:
    """Additions and multiplications."""

    add: int = 0
    multiply: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(add=self.add + other.add, multiply=self.multiply + other.multiply)


@record
class Operations:
    """Operations per image: sums, their parts, divisions, and the number of results of operators not counted."""

    add: int
    multiply: int
    divide: int
    parts: dict[str, Count]
    left_out: dict[str, int]

    @classmethod
    def from_parts(cls, parts: dict[str, Count], divide: int, left_out: dict[str, int]) -> Operations:
        total = sum(parts.values(), Count())
        return cls(total.add, total.multiply, divide, parts, left_out)


@record
class Energy:
    """Millijoules per image, and the ratio to the first model."""

    millijoules: float
    ratio: float


@record
class Quartiles:
    low: float
    median: float
    high: float


@record
class Throughput:
    """Median images per second with quartiles over rounds, and the ratio to the first model within each round."""

    images_per_second: float
    quartiles: tuple[float, float]
    ratio: Quartiles
    rounds: int


@record
class BenchRow:
    """The cost of one model."""

    name: str
    class_name: ClassName
    size: tuple[int, ...]
    remedies: list[str]
    parameters: int
    flops: int
    operations: Operations
    energy: dict[str, Energy]  # by precision
    inference: Throughput | None
    training: Throughput | None


@record
class TimingConditions:
    batch_size: int
    rounds: int
    amp: str
    threads: int
    device: str
    machine: str


@record
class Bench(Result):
    """The cost of several models. `bench["SPEC"]` is the `BenchRow` of a model, `str(bench)` is a table of 80 columns.

    Attributes:
        rows: Parameters, operations, energy and throughput of each model.
        precision: Precision of the energy column of the table.
        source: Source of the energies per operation.
        assumptions: Assumptions of the energy estimate.
        settings: Conditions of the timing.
        provenance (Provenance): Versions, command and duration.

    Example:
        >>> import unsmooth
        >>> spec = "vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)"
        >>> bench = unsmooth.bench([spec], throughput=False)
        >>> bench.keys() == [spec]
        True
        >>> bench[spec].parameters
        1123624
    """

    kind = "bench"
    command = "unsmooth bench"

    rows: list[BenchRow]
    precision: str
    source: str
    assumptions: list[str]
    settings: TimingConditions
    provenance: Annotated[Provenance, stored_as("made")]

    def keys(self) -> list[str]:
        """Names of the models."""
        return [row.name for row in self.rows]

    def __getitem__(self, name: str) -> BenchRow:
        return named({row.name: row for row in self.rows}, name, "model", "this bench")

    def __str__(self) -> str:
        return renderer().text(self)

    def __repr__(self) -> str:
        from unsmooth.utils.text import format_energy

        energies = ", ".join(f"{row.name} {format_energy(row.energy[self.precision].millijoules)}" for row in self.rows)
        return f"Bench({energies})"
