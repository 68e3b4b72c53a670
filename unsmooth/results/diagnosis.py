"""The result of `diagnose`: measurements by vital and block, findings and a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.rendering import renderer
from unsmooth.results.comparison import Comparison, compare
from unsmooth.results.measured import Broken, ImagesInfo, LearnedParameter, ModelInfo, Reference, VitalResult
from unsmooth.results.provenance import Provenance
from unsmooth.results.record import Result, record, stored_as
from unsmooth.results.sample import Sample
from unsmooth.results.verdict import Finding, Limit, Verdict
from unsmooth.utils.files import write
from unsmooth.utils.notebook import REPORT_HEIGHT, packed_frame

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


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
    provenance: Annotated[Provenance, stored_as("made")]
    conclusion: Annotated[Verdict, stored_as("verdict")]
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
        return renderer().frame(self, tidy)

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
        every = (self, *others)
        return renderer().plot(every, [diagnosis.model.name for diagnosis in every], vital, parts, ax)

    def _repr_html_(self) -> str:
        """The report in a frame, for notebooks."""
        return packed_frame(renderer().report(self, "html").decode(), REPORT_HEIGHT)

    def __str__(self) -> str:
        return renderer().text(self)

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
        path = Path(path)
        write(path, renderer().report(self, path.suffix.lstrip(".").lower(), *others))
