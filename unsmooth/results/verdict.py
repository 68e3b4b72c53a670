"""Conclusion of a diagnosis: findings with their evidence, limits and remedies, and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from unsmooth.rendering import renderer
from unsmooth.results.record import if_set, record
from unsmooth.utils.notebook import frame

if TYPE_CHECKING:
    import pandas

Severity = Literal["severe", "warning", "note"]


@record
class Limit:
    """A limit of a vital, by block: values at or above it (`above`), or at or below it, count as abnormal.

    `threshold` is its name in docs/verdict.md, `source` says where it comes from.
    """

    threshold: str
    vital: str
    part: str
    above: bool
    values: list[float | None]
    meaning: str
    source: str


@record
class Evidence:
    """A measurement that supports a finding: its value in a block, the limit, and where the limit comes from.

    `margin` is the distance by which the value is past the limit; it is negative if the value is within the limit.
    Evidence without a limit only describes the finding.
    """

    vital: str
    part: str
    family: str
    text: str
    block: int | None = if_set()
    value: float | None = if_set()
    limit: float | None = if_set()
    margin: float | None = if_set()
    threshold: str = if_set("")
    source: str = if_set("")


@record
class Candidate:
    """A candidate remedy for a finding.

    `safe`: it leaves the outputs of a pretrained model unchanged. `fits`: it can be applied to this model. `spec` is
    empty if the advice is to remove a remedy. `effect` says what it does, and when.
    """

    spec: str
    reason: str
    safe: bool
    fits: bool = True
    effect: str = if_set("")


@record
class Harm:
    """Whether the tokens lose class information where they collapse.

    The nearest-neighbour accuracy of `block`, which collapses most, is compared with that of `before`, the last block
    before the collapse, on the same images. `shown`: the 95 % interval of the `change`, from `low` to `high`, is below
    zero. `not measured`: there were no labels.
    """

    state: Literal["shown", "not shown", "not measured"]
    text: str
    block: int | None = if_set()
    before: int | None = if_set()
    change: float | None = if_set()
    low: float | None = if_set()
    high: float | None = if_set()
    images: int | None = if_set()

    def __str__(self) -> str:
        return f"{self.state}: {self.text}"


@record
class Finding:
    """An observation with its blocks, evidence and candidate remedies. A collapse says whether it does harm."""

    key: str
    title: str
    severity: Severity
    blocks: list[int]
    text: str
    evidence: list[Evidence]
    why: str = if_set("")
    reference: str = ""
    remedies: list[Candidate] = Field(default_factory=list)
    harm: Harm | None = if_set()

    @property
    def deciding(self) -> Evidence | None:
        """The evidence with the first limit."""
        return next((evidence for evidence in self.evidence if evidence.limit is not None), None)

    @property
    def value(self) -> float | None:
        """The measurement that decided, in its worst block."""
        return None if self.deciding is None else self.deciding.value

    @property
    def limit(self) -> float | None:
        """Its limit."""
        return None if self.deciding is None else self.deciding.limit

    @property
    def margin(self) -> float | None:
        """By how much the value is past the limit."""
        return None if self.deciding is None else self.deciding.margin

    @property
    def source(self) -> str:
        """Where the limit comes from."""
        return "" if self.deciding is None else self.deciding.source

    def frame(self) -> pandas.DataFrame:
        """The evidence as a pandas table, one row per measurement.

        Raises:
            UnsmoothError: If pandas is not installed.
        """
        return renderer().frame(self)

    def _repr_html_(self) -> str:
        """The finding in a frame, for notebooks."""
        lines = 4 + 2 * len(self.evidence) + 3 * len(self.remedies)
        return frame(renderer().report(self, "html").decode(), min(560, 60 + 24 * lines))


@record
class Step:
    """A next step: what to do, as a command line and as lines of Python."""

    text: str
    command: str = if_set("")
    python: str = if_set("")


@record
class Verdict:
    """The state of the model in one word and in a sentence, the affected blocks and the most likely cause.

    `levels` and `trends` are the measurements beside their limits, apart. `harm` says whether accuracy falls where the
    tokens collapse, `caveat` what was not measured, `steps` what to do next, and `would_change` what would change the
    verdict.
    """

    state: str
    text: str
    blocks: list[int] = Field(default_factory=list)
    why: str = if_set("")
    levels: str = if_set("")
    trends: str = if_set("")
    harm: str = if_set("")
    caveat: str = if_set("")
    steps: list[Step] = Field(default_factory=list, exclude_if=lambda value: not value)
    would_change: list[str] = Field(default_factory=list, exclude_if=lambda value: not value)
