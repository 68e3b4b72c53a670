"""The result of `compare`: arms trained on one budget, with accuracies, differences, costs and diagnoses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, WrapSerializer

from unsmooth.errors import UnsmoothError
from unsmooth.rendering import renderer
from unsmooth.results.bench import Quartiles
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.evaluation import ProbeName, TokenKind, TokenMetric
from unsmooth.results.provenance import Provenance
from unsmooth.results.record import Reported, Result, if_set, named, record, stored_as
from unsmooth.results.training import EpochMetrics
from unsmooth.results.verdict import Verdict

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


@record
class SeedSpread:
    """Mean and standard deviation over the runs of an arm; None for runs that failed."""

    mean: float | None
    sd: float | None
    runs: list[float | None]


@record
class Difference:
    """Difference in accuracy, or of a token score, from the first arm, with its interval; all values are fractions.

    `shown` is true if the interval excludes zero, and `p` is the smallest level at which it does. If the trial makes
    several comparisons, `p_holm` is p after Holm's correction and `survives` says whether the difference is shown after
    it.
    """

    mean: float
    low: float
    high: float
    by_seed: list[float | None]
    shown: bool
    text: str
    p: float | None = if_set()
    p_holm: float | None = if_set()
    survives: bool | None = if_set()

    @property
    def decided(self) -> bool:
        """Whether a difference is shown, after the correction for several comparisons if there is one."""
        return self.shown if self.survives is None else self.survives


@record
class Speed:
    """Images per second, and the ratio to the first arm."""

    images_per_second: float
    ratio: Quartiles


@record
class RobustnessScore:
    """Accuracy of an arm on perturbed images."""

    top1: SeedSpread
    difference: Difference | None


@record
class Run:
    """One arm trained with one seed, and the metrics of its epochs."""

    seed: int
    folder: str
    top1: float | None
    top5: float | None
    loss: float | None
    seconds: float | None
    failed: str | None
    epochs: list[EpochMetrics]


@record
class DiagnosisSummary:
    """Summary of a diagnosis in a recorded trial: the verdict, and some vitals as means per block."""

    verdict: Verdict
    vitals: dict[str, list[float | None]]


Value = bool | int | float | str


@record
class SweepRun:
    """One value of a sweep: the accuracy on the held-out training images with seed 0; None if the run failed."""

    value: Value
    top1: float | None
    folder: str
    failed: str | None


@record
class ArmSweep:
    """The sweep of an arm over values of a recipe field. The test images play no part in the choice.

    `chosen` is None if every run failed: the arm then has the recipe's value. `edge` is true if the chosen value is the
    lowest or highest one, so that a value beyond may be better. `epochs` are those of each run, None if they are the
    recipe's.
    """

    field: str
    images: int
    runs: list[SweepRun]
    chosen: Value | None
    edge: bool
    epochs: int | None = None


@record
class Start:
    """Accuracy of an arm before the first step. `inexact` names remedies that change the outputs when applied."""

    top1: float
    inexact: list[str]


@record
class Power:
    """The difference that a trial can detect, stated before its first run; all values are fractions.

    Attributes:
        difference: Difference that is shown with probability `power`.
        corrected: The same at Bonferroni's level, the strictest step of Holm's correction; None for one comparison.
        power: Probability to show it.
        confidence: Confidence level of the interval.
        comparisons: Arms that are compared with the first one.
        seeds: Runs per arm.
        images: Validation images.
        accuracy: Expected accuracy of the first arm.
        disagreement: Expected share of images that only one of two paired runs classifies correctly.
        paired_sd: Expected standard deviation over seeds of the paired difference.
        source: Where the expected values come from.
        text: One sentence.
    """

    difference: float
    corrected: float | None
    power: float
    confidence: float
    comparisons: int
    seeds: int
    images: int
    accuracy: float
    disagreement: float
    paired_sd: float
    source: str
    text: str


@record
class Stopping:
    """How a sequential trial ended. `confidence` is the level of its intervals, corrected for repeated analyses.

    Attributes:
        until: Half-width in points of the range around zero within which a difference does not matter.
        planned: Maximum number of seeds.
        seeds: Seeds of the trial.
        confidence: Confidence level of the intervals of the last interim analysis.
        decided: Whether every comparison is decided.
        text: One sentence: after how many seeds, and why.
    """

    until: float
    planned: int
    seeds: int
    confidence: float
    decided: bool
    text: str


def _read_diagnosis(value: Any) -> Any:
    return Diagnosis.from_dict(value) if isinstance(value, dict) and "format" in value else value


def _write_diagnosis(value: Diagnosis | DiagnosisSummary, write_fields: SerializerFunctionWrapHandler) -> Any:
    return value.to_dict() if isinstance(value, Diagnosis) else write_fields(value)


StoredDiagnosis = Annotated[
    Diagnosis | DiagnosisSummary, BeforeValidator(_read_diagnosis), WrapSerializer(_write_diagnosis)
]


Control = Literal["parameters", "seeds"]


@record
class Arm:
    """One model spec of a trial, with all its runs. None: not measured."""

    name: str
    spec: str
    folder: str
    parameters: int | None
    flops: int | None
    training: Speed | None
    inference: Speed | None
    top1: SeedSpread
    top5: SeedSpread
    loss: SeedSpread
    difference: Difference | None
    robustness: dict[str, RobustnessScore]
    runs: list[Run]
    diagnosis: StoredDiagnosis | None
    # Recipe fields of this arm alone; left out of the JSON if there are none.
    recipe: dict[str, Any] = Field(default_factory=dict, exclude_if=lambda fields: not fields)
    sweep: ArmSweep | None = if_set()
    start: Start | None = if_set()
    control: Control | None = if_set()
    # Difference from the control of equal parameters, if the trial has one.
    beyond_parameters: Difference | None = if_set()

    @property
    def diagnosed(self) -> Diagnosis | None:
        """The diagnosis of the final model of the first seed; None if there is none, or only its summary."""
        return self.diagnosis if isinstance(self.diagnosis, Diagnosis) else None

    @property
    def finished_runs(self) -> list[Run]:
        return [run for run in self.runs if not run.failed]

    @property
    def failed_runs(self) -> list[Run]:
        return [run for run in self.runs if run.failed]


@record
class BlockSpread:
    """Score of the frozen tokens of one block of an arm, over seeds."""

    block: int
    score: SeedSpread


@record
class ArmTokens:
    """Scores of the frozen tokens of an arm with one probe, by block.

    Attributes:
        arm: Name of the arm.
        blocks: Blocks that were scored with at least one seed.
        last: Difference of the last scored block from that of the first arm.
        best: Difference from the first arm at the block that is best in the first arm; None if this arm lacks it.
    """

    arm: str
    blocks: list[BlockSpread]
    last: Difference | None = if_set()
    best: Difference | None = if_set()

    def __getitem__(self, block: int) -> BlockSpread:
        return named({one.block: one for one in self.blocks}, block, "block", f"the scores of {self.arm}")


@record
class TrialProbe:
    """Scores of one kind of token with one probe, by arm.

    Attributes:
        tokens: "patch" (each patch token), "mean" (mean of the patch tokens) or "class" (class token).
        probe: "knn" (nearest neighbours) or "linear" (ridge regression).
        metric: "miou" or "accuracy".
        best: Block of the first arm with the highest mean score; None if the first arm has no scores.
        arms: Arms that have scores.
    """

    tokens: TokenKind
    probe: ProbeName
    metric: TokenMetric
    best: int | None
    arms: list[ArmTokens]

    def __getitem__(self, name: str) -> ArmTokens:
        return named({arm.arm: arm for arm in self.arms}, name, "arm", "these scores")


@record
class TrialTokens:
    """What the frozen tokens of the final models are worth on data with labels or masks.

    `trial.tokens["patch", "knn"]["attn_scale"].last` is the difference of an arm at the last block.

    Attributes:
        data: Name of the data.
        images: Query images, which are scored.
        memory_images: Images that the probes are fitted on.
        memory_tokens: Most patch tokens of them that were kept for a block; 0 without masks.
        neighbours: Neighbours that vote.
        chance: Score of always predicting the most frequent class of the memory; None if no arm has scores.
        probes: Scores by kind of token and probe.
        missing: By arm, why it or some of its blocks or seeds have no scores.
    """

    data: str
    images: int
    memory_images: int
    memory_tokens: int
    neighbours: int
    chance: float | None
    probes: list[TrialProbe]
    missing: dict[str, str]

    def keys(self) -> list[tuple[str, str]]:
        """Kinds of token and probe."""
        return [(probe.tokens, probe.probe) for probe in self.probes]

    def __getitem__(self, key: tuple[str, str]) -> TrialProbe:
        return named({(probe.tokens, probe.probe): probe for probe in self.probes}, key, "probe", "these scores")


@record
class TrialData:
    """The data of a trial: numbers of images, and the images that were skipped with the reason."""

    name: str
    train: int
    val: int
    classes: int
    image: tuple[int, int, int] | None
    skipped: dict[str, str]


@record
class TrialVerdict:
    """One sentence for the whole trial, and one line per arm."""

    text: str
    lines: list[str]


@record
class TrialProvenance(Provenance):
    python: str
    machine: str
    threads: int
    jobs: int
    device: str


@record
class Trial(Reported, Result):
    """Several models trained on one budget, compared with the first one.

    `trial["attn_scale"]` is an `Arm`, `str(trial)` is a table, and `save` writes a page (.html) or a figure.
    A notebook shows the page; `frame` gives a pandas table and `plot` a matplotlib axis.

    Attributes:
        data: Name and size of the data, and skipped images.
        recipe_name: Name of the recipe.
        recipe: Fields of the recipe.
        seeds: Seeds of the runs of each arm.
        confidence: Confidence level of the intervals.
        arms: The arms, the baseline first.
        provenance (TrialProvenance): Versions, machine, command and duration.
        verdict: One sentence for the trial, and one line per arm.
        power: The detectable difference, stated before the first run.
        stopping: When and why a sequential trial stopped; None if the number of seeds was fixed.
        start: The weights that all arms started from; None for random weights.
        tokens: Scores of the frozen tokens of the final models by block, if they were asked for.

    Example:
        >>> import tempfile, unsmooth
        >>> host = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2)"
        >>> trial = unsmooth.compare(
        ...     [host, host + "+attn_scale"], "digits", epochs=1, warmup_epochs=0, train_images=128, val_images=40,
        ...     seeds=1, costs=False, vitals="none", out=tempfile.mkdtemp(),
        ... )
        >>> trial.verdict.text
        'No difference from plain shown for attn_scale on this data and budget, with 1 seed.'
    """

    kind = "trial"
    command = "unsmooth compare"

    data: TrialData
    recipe_name: str
    recipe: dict[str, Any]
    seeds: list[int]
    confidence: float
    arms: list[Arm]
    provenance: Annotated[TrialProvenance, stored_as("made")]
    verdict: TrialVerdict
    power: Power | None = if_set()
    stopping: Stopping | None = if_set()
    start: str | None = if_set()
    tokens: TrialTokens | None = if_set()

    @property
    def comparisons(self) -> int:
        """Number of comparisons that p-values are corrected for; 0 for older results, which are not corrected."""
        return sum(arm.difference is not None and arm.difference.p_holm is not None for arm in self.arms)

    def keys(self) -> list[str]:
        """Names of the arms."""
        return [arm.name for arm in self.arms]

    def __getitem__(self, name: str) -> Arm:
        return named({arm.name: arm for arm in self.arms}, name, "arm", "this trial")

    def frame(self, runs: bool = False) -> pandas.DataFrame:
        """The results as a pandas table.

        Args:
            runs: One row per run. Default: one row per arm; accuracies and differences are fractions, speeds are
                relative to the first arm.

        Raises:
            UnsmoothError: If pandas is not installed.
        """
        return renderer().frame(self, runs)

    def plot(self, vital: str, parts: str | Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
        """Draw a vital of the final models by block with matplotlib, one line per arm.

        Args:
            vital: Name of the vital.
            parts: Part or parts to draw. Default: the main part.
            ax: Axis to draw on. Default: a new figure, which a notebook shows.

        Raises:
            UnsmoothError: If no arm was diagnosed, or there is no such vital or part.
        """
        diagnosed = [(arm.name, arm.diagnosed) for arm in self.arms if arm.diagnosed is not None]
        if not diagnosed:
            raise UnsmoothError("no arm of this trial was diagnosed. Compare with vitals, which is the default.")
        names, diagnoses = [name for name, _ in diagnosed], [diagnosis for _, diagnosis in diagnosed]
        return renderer().plot(diagnoses, names, vital, parts, ax)

    def __str__(self) -> str:
        return renderer().text(self)

    def __repr__(self) -> str:
        return f"Trial({self.verdict.text!r})"
