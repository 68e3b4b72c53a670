"""The result of `diagnose`: measurements by vital and block, findings and a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.results.comparison import Comparison, compare
from unsmooth.results.provenance import Provenance
from unsmooth.results.record import Result, if_set, record
from unsmooth.results.sample import Sample
from unsmooth.utils.files import write
from unsmooth.utils.notebook import NO_NETWORK, REPORT_HEIGHT, frame, packed_frame

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

DIGITS = 6  # significant digits in files: more than any vital resolves

Values = float | None | list[float | None] | list[list[float | None]]
Severity = Literal["severe", "warning", "note"]
T = TypeVar("T")


def _stored_as(key: str) -> Any:
    """A field whose key in the JSON file differs from its name."""
    return Field(validation_alias=key, serialization_alias=key)


@record
class Spread:
    """A measurement over images: mean, standard deviation, extremes and the number of images.

    The mean is one number, a list (by head, or singular values) or a list of lists (curves by head). `sd` is None for
    values that all images share, such as CKA. Files hold no extremes of lists.
    """

    mean: Values
    sd: Values = if_set()
    low: Values = if_set()
    high: Values = if_set()
    images: int = 0

    def rounded(self) -> Spread:
        """The measurement as it is saved."""
        if isinstance(self.mean, list):
            return Spread(round_values(self.mean), round_values(self.sd), images=self.images)
        mean, sd, low, high = (round_values(value) for value in (self.mean, self.sd, self.low, self.high))
        return Spread(mean, sd, low, high, self.images)


Series = list[Spread | None]  # by block


def round_values(value: T) -> T:
    """Round floats, also in lists, to the precision of result files."""
    rounded: Any = value
    if isinstance(value, list):
        rounded = [round_values(item) for item in value]
    elif isinstance(value, float):
        rounded = float(f"{value:.{DIGITS}g}")
    return rounded


@record
class AttentionInfo:
    """One attention of a block."""

    kind: str
    via: str
    heads: int
    queries: int
    keys: int


@record
class BlockInfo:
    """One block of the model. `residuals` names the branch of each residual sum."""

    index: int
    name: str
    tokens: int
    channels: int
    prefix: int
    residuals: Annotated[list[str], _stored_as("joins")]
    attention: list[AttentionInfo]


@record
class Weights:
    """Where the weights of a model come from.

    `kind` is `none` (a spec without weights: random initialisation), `file`, `folder` (written by `unsmooth.save`),
    `pretrained` (by its library, with its `tag`) or `object` (a model that was passed). `sha256` is the start of the
    digest of the file, or of all tensors of an object.
    """

    kind: Literal["none", "file", "folder", "pretrained", "object"]
    name: str = if_set("")
    tag: str = if_set("")
    sha256: str = if_set("")

    def __str__(self) -> str:
        named = {
            "none": "no weights were loaded",
            "file": f"weights of {self.name}",
            "folder": f"weights of {self.name}",
            "pretrained": f"pretrained weights {self.tag or self.name}",
            "object": "weights of the model that was passed",
        }[self.kind]
        return f"{named} (sha256 {self.sha256})" if self.sha256 else named


@record
class ModelInfo:
    """The diagnosed model. `skipped` lists attention outside the blocks. Older files do not have `weights`."""

    name: str
    class_name: Annotated[str, _stored_as("class")]
    remedies: list[str]
    parameters: int
    dtype: str
    blocks: list[BlockInfo]
    skipped: list[str]
    weights: Weights | None = if_set()


@record
class ImagesInfo:
    """The images: source, number, size (channels, height, width), normalisation, and those that were skipped."""

    source: str
    count: int
    size: list[int]
    mean: list[float]
    std: list[float]
    skipped: dict[str, str]
    prefix_tokens: bool


@record
class Broken:
    """The first block with NaN or infinity, and where in it: a branch, or the block itself."""

    block: int
    where: str


@record
class VitalResult:
    """One vital: its description, its values by part and block, and the reason where a block has no value."""

    title: str
    formula: str
    reading: str
    help: str
    family: str
    main: str
    low: float | None
    high: float | None
    sample: int | None
    meaning: dict[str, str]
    parts: dict[str, Series]
    skipped: dict[int, str]


@record
class Reference:
    """Vitals of the same architecture at random initialisation, and how that model was built.

    `approximate`: some parameters kept their trained values, because the host does not say how to initialise them.
    """

    how: str
    images: int
    vitals: dict[str, dict[str, Series]]
    approximate: bool = if_set(False)


@record
class LearnedParameter:
    """One parameter of a remedy.

    `values` lists all values, or quantiles of them if there are many. `by_head` has the mean of each head: of its
    value, or of its share of the channels.
    """

    remedy: str
    name: str
    parameter: str
    block: int | None
    count: int
    mean: float | None
    low: float | None
    high: float | None
    values: list[float | None]
    quantiles: bool
    by_head: list[float | None] | None = if_set()


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
        from unsmooth.results.frames import finding_frame

        return finding_frame(self)

    def _repr_html_(self) -> str:
        """The finding in a frame, for notebooks."""
        from unsmooth.report.page import finding_page

        lines = 4 + 2 * len(self.evidence) + 3 * len(self.remedies)
        return frame(finding_page(self, NO_NETWORK), min(560, 60 + 24 * lines))


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


@dataclasses.dataclass(frozen=True)
class Reading(Sequence[Any]):
    """The values of one vital by block: a sequence of means, None where a block has no value.

    Attributes:
        key: Name of the vital.
        name: Name of the part, `""` for the vital itself.
        vital: Description and values of the vital.

    Example:
        >>> import unsmooth
        >>> model = "vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)"
        >>> entropy = unsmooth.diagnose(model, limit=4)["attention_entropy"]
        >>> len(entropy), entropy.images
        (2, [4, 4])
        >>> entropy.parts
        ['', 'heads', 'share', 'share.heads', 'others', 'others.heads']
        >>> len(entropy.part("heads")[0])
        3
    """

    key: str
    name: str
    vital: VitalResult

    def _column(self, name: str) -> list[Any]:
        return [None if spread is None else getattr(spread, name) for spread in self.vital.parts[self.name]]

    @property
    def mean(self) -> list[Any]:
        """Mean over images, by block."""
        return self._column("mean")

    @property
    def sd(self) -> list[Any]:
        """Standard deviation over images, by block. None for a value that all images share."""
        return self._column("sd")

    @property
    def low(self) -> list[Any]:
        """Smallest value over images, by block."""
        return self._column("low")

    @property
    def high(self) -> list[Any]:
        """Largest value over images, by block."""
        return self._column("high")

    @property
    def images(self) -> list[Any]:
        """Number of images, by block."""
        return self._column("images")

    @property
    def parts(self) -> list[str]:
        """Names of all parts of this vital."""
        return list(self.vital.parts)

    @property
    def skipped(self) -> dict[int, str]:
        """Blocks without a value, and why."""
        return self.vital.skipped

    def part(self, name: str) -> Reading:
        """Another part of this vital, such as `"heads"` of an attention vital.

        Raises:
            UnsmoothError: If the vital has no such part.
        """
        if name not in self.vital.parts:
            raise unknown("part", name, self.vital.parts, owner=self.key)
        return Reading(self.key, name, self.vital)

    def __len__(self) -> int:
        return len(self.vital.parts[self.name])

    def __getitem__(self, block: Any) -> Any:
        return self.mean[block]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.mean)

    def __repr__(self) -> str:
        values = ", ".join("–" if v is None else f"{v:.4g}" if isinstance(v, float) else "[…]" for v in self.mean)
        return f"{self.key}{'.' + self.name if self.name else ''}: {values}"


@record
class Diagnosis(Result):
    """The vitals of one model on some images, with findings and a verdict.

    It is a mapping of vitals: `diagnosis["token_cosine"]` is a `Reading`, and `len`, `in`, `items` and iteration work
    as in a dict. `compare` shows what changed since an earlier diagnosis. `print(diagnosis)` shows a table by block,
    the findings and the verdict. `save` writes a report, `to_json` a file that `from_json` reads. A notebook shows the
    report in the output of a cell; `frame` gives a pandas table and `plot` a matplotlib axis.

    Attributes:
        model: Name, size and blocks of the model.
        images: Source, number and normalisation of the images.
        broken: The first block with NaN or infinity, if any.
        vitals: Results by vital.
        reference: The same vitals at random initialisation, if measured.
        samples: Attention maps and token similarity of a few images.
        learned: Parameters of the applied remedies.
        provenance (Provenance): Versions, command and duration.
        findings: Observations, the most severe one first.
        conclusion (Verdict): The verdict with its text, blocks, cause and next steps.
        limits: Limits of the rules, for the curves they apply to.

    Example:
        >>> import unsmooth
        >>> model = "vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)"
        >>> diagnosis = unsmooth.diagnose(model, limit=4, vitals="token_cosine,effective_rank", reference=False)
        >>> diagnosis.keys()
        ['token_cosine', 'effective_rank']
        >>> [0 <= cosine <= 1 for cosine in diagnosis["token_cosine"]]
        [True, True]
        >>> diagnosis.verdict
        'healthy'
        >>> unsmooth.Diagnosis.from_dict(diagnosis.to_dict()) == diagnosis
        True
    """

    kind = "diagnosis"
    command = "unsmooth diagnose"

    model: ModelInfo
    images: ImagesInfo
    vitals: dict[str, VitalResult]
    provenance: Annotated[Provenance, _stored_as("made")]
    conclusion: Annotated[Verdict, _stored_as("verdict")]
    broken: Broken | None = None
    reference: Reference | None = None
    samples: list[Sample] = Field(default_factory=list)
    learned: list[LearnedParameter] = Field(default_factory=list)
    findings: list[Finding] = Field(default_factory=list)
    limits: list[Limit] = Field(default_factory=list, exclude_if=lambda value: not value)

    def __post_init__(self) -> None:
        for key, vital in self.vitals.items():
            for part, series in vital.parts.items():
                if len(series) != self.blocks:
                    name = f"{key}.{part}".rstrip(".")
                    raise ValueError(f"{name} has {len(series)} values for {self.blocks} blocks")

    @property
    def verdict(self) -> str:
        """The verdict in one word.

        One of healthy, untrained, suspicious, collapsing, collapsed, broken (NaN or infinity) and unknown (too few
        vitals were measured).
        """
        return self.conclusion.state

    @property
    def verdict_text(self) -> str:
        """The verdict in a sentence."""
        return self.conclusion.text

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.model.blocks)

    def compare(self, after: Diagnosis) -> Comparison:
        """Compare this diagnosis with a later one: what changed, by how much, and beyond the images' spread or not.

        Args:
            after: A diagnosis of a model with the same number of blocks.

        Returns:
            The comparison; `print` shows it.

        Raises:
            UnsmoothError: If the numbers of blocks differ.
        """
        return compare(self, after)

    def keys(self) -> list[str]:
        """Names of the vitals."""
        return list(self.vitals)

    def values(self) -> list[Reading]:
        """The vitals that have a value on some block."""
        return [reading for _, reading in self.items()]

    def items(self) -> list[tuple[str, Reading]]:
        """Names and values of the vitals that have a value on some block."""
        return [(key, self[key]) for key, vital in self.vitals.items() if vital.parts]

    def __iter__(self) -> Iterator[str]:
        return iter(self.vitals)

    def __len__(self) -> int:
        return len(self.vitals)

    def __contains__(self, key: object) -> bool:
        return key in self.vitals

    def _ipython_key_completions_(self) -> list[str]:
        return self.keys()

    def __getitem__(self, key: str) -> Reading:
        if key not in self.vitals:
            raise unknown("vital", key, self.vitals, owner="this diagnosis")
        vital = self.vitals[key]
        if not vital.parts:
            reason = next(iter(vital.skipped.values()), "it was not measured")
            raise UnsmoothError(f"{key} has no value on any block: {reason}")
        return Reading(key, vital.main if vital.main in vital.parts else next(iter(vital.parts)), vital)

    def frame(self, tidy: bool = False) -> pandas.DataFrame:
        """The vitals as a pandas table.

        Args:
            tidy: One row per vital, part, block and head, with the spread over images and the value at random
                initialisation. Default: one row per block and one column per vital.

        Returns:
            The table. Curves, spectra and matrices are left out.

        Raises:
            UnsmoothError: If pandas is not installed.
        """
        from unsmooth.results.frames import diagnosis_frame

        return diagnosis_frame(self, tidy)

    def plot(
        self, vital: str, *others: Diagnosis, parts: str | Sequence[str] | None = None, ax: Axes | None = None
    ) -> Axes:
        """Draw a vital by block with matplotlib: spread over images, limits, and the blocks of findings.

        Args:
            vital: Name of the vital.
            others: Diagnoses to draw on the same axis.
            parts: Part or parts to draw, such as `["", "share"]`; parts by head are one line per head. Default: the
                main part.
            ax: Axis to draw on. Default: a new figure, which a notebook shows.

        Returns:
            The axis.

        Raises:
            UnsmoothError: If there is no such vital or part.
        """
        from unsmooth.report.axis import plot_vital

        every = (self, *others)
        return plot_vital(every, [diagnosis.model.name for diagnosis in every], vital, parts, ax)

    def _repr_html_(self) -> str:
        """The report in a frame, for notebooks."""
        from unsmooth.report.page import page

        return packed_frame(page([self]), REPORT_HEIGHT)

    def __str__(self) -> str:
        from unsmooth.report.tables import as_text

        return as_text(self)

    def __repr__(self) -> str:
        return f"Diagnosis({self.model.name!r}: {self.verdict_text})"

    def save(self, path: str | Path, *others: Diagnosis) -> None:
        """Write a report page (.html) or a figure (.png, .svg, .pdf).

        Args:
            path: File to write. Its suffix selects the format.
            others: Diagnoses to show in the same charts.

        Raises:
            UnsmoothError: If the format is not supported or the file cannot be written.
        """
        from unsmooth.report.render import render

        path = Path(path)
        write(path, render([self, *others], path.suffix.lstrip(".").lower()))
