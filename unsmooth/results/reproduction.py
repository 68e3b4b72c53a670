"""The result of `unsmooth paper`: published values next to measured ones, claims, and what differs from the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from unsmooth.rendering import renderer
from unsmooth.results.provenance import Provenance
from unsmooth.results.record import Result, record, stored_as
from unsmooth.utils.files import write

RESULT, TABLE, PAGE = "paper.json", "paper.md", "report.html"


def _optional() -> Any:
    """A key that is left out of the JSON if there is no value."""
    return Field(default=None, exclude_if=lambda value: value is None)


@record
class MeasuredValue:
    """One measure of one arm, published and measured, in the unit of the papers.

    `gain` is relative to the first arm: a difference, or a ratio for measures of speed and energy. `low` and `high` are
    the ends of its 95 % interval, or quartiles over timing rounds (`ends`).
    """

    published: float | None
    published_gain: float | None
    measured: float | None = None
    sd: float | None = None
    seeds: int | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    ends: str = "interval"
    published_words: str | None = _optional()


@record
class MeasuredCurve:
    """A vital by block or a metric by epoch: means with their spread over images or seeds."""

    by: str
    mean: list[float | None]
    sd: list[float | None]
    at: list[int | float] | None = _optional()  # positions; without, 0, 1, 2, …
    low: list[float | None] | None = _optional()
    high: list[float | None] | None = _optional()

    @property
    def points(self) -> dict[float, float]:
        """Measured means by position."""
        positions = self.at or range(len(self.mean))
        return {x: mean for x, mean in zip(positions, self.mean, strict=True) if mean is not None}


@record
class ArmResult:
    """One arm of a table or figure.

    `skipped` lists why vitals were not measured on some blocks, `why` says why a printed row has no model.
    """

    name: str
    spec: str
    values: dict[str, MeasuredValue]
    curves: dict[str, MeasuredCurve]
    failed: str | None = _optional()
    why: str | None = _optional()
    skipped: list[str] | None = _optional()


@record
class GroupResult:
    """Arms that are compared with the first of them.

    `like` names the group whose runs are the same at small scale, `ran` the host that ran instead of the published.
    """

    name: str
    rows: list[ArmResult]
    picture: str | None = _optional()
    like: str | None = _optional()
    assumptions: list[str] | None = _optional()
    ran: str | None = _optional()

    @property
    def title(self) -> str:
        """Name of the model that ran; the published name only if it has the published size."""
        return self.name if self.ran is None else f"{self.ran}, in place of {self.name}"


@record
class ClaimCheck:
    """Whether a claim holds for one arm."""

    group: str
    arm: str
    state: Literal["confirmed", "contradicted", "undecided"]


@record
class ClaimResult:
    """A claim of the paper, where it comes from, and its checks; none if this run did not measure what it is about."""

    text: str
    source: str
    checks: list[ClaimCheck]


@record
class ReproductionScale:
    """The data, and every difference from the paper."""

    small: bool
    data: str
    differs: list[str]


@record
class Reproduction(Result):
    """One experiment of a paper, run here. `str(reproduction)` is a page in Markdown."""

    kind = "paper"
    command = "unsmooth paper"

    id: str
    title: str
    source: str
    evidence: str
    shows: str
    lines: str
    fingerprint: str
    scale: ReproductionScale
    groups: list[GroupResult]
    claims: list[ClaimResult]
    provenance: Annotated[Provenance, stored_as("made")]
    picture: str | None = _optional()

    def __str__(self) -> str:
        return renderer().text(self)

    def write(self, folder: Path) -> list[Path]:
        """Write paper.json, paper.md and report.html to a folder, which has the figures."""
        self.to_json(folder / RESULT)
        write(folder / TABLE, str(self))
        write(folder / PAGE, renderer().report(self, "html", folder))
        return [folder / RESULT, folder / TABLE, folder / PAGE]
