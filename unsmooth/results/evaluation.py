"""The result of `evaluate`: scores of one model on several tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unsmooth.errors import unknown
from unsmooth.results.provenance import ClassName, Provenance
from unsmooth.results.record import Result, record

if TYPE_CHECKING:
    from unsmooth.tasks.classification.scores import Scores


@record
class EvaluatedModel:
    name: str
    class_name: ClassName
    classes: int
    remedies: list[str]
    checkpoint: str | None
    dtype: str
    amp: str
    device: str


@record
class EvaluatedImages:
    """The images of each test, and how they were prepared."""

    sources: dict[str, str]
    size: tuple[int, int, int]
    mean: list[float]
    std: list[float]
    limit: int | None


@record
class TestScore:
    """Scores on one test: fractions of images with their Wilson intervals, and the mean loss."""

    __test__ = False  # not a test case of pytest

    test: str
    images: int
    top1: float
    top1_interval: tuple[float, float] | None
    top5: float | None
    top5_interval: tuple[float, float] | None
    loss: float | None
    classes: int
    skipped: int
    not_finite: int


@record
class InferenceSpeed:
    """Median and quartiles of images per second over rounds."""

    images_per_second: float
    quartiles: tuple[float, float]
    rounds: int
    batch_size: int


@record
class ModelCost:
    parameters: int
    flops: int
    throughput: InferenceSpeed | None


@record
class Evaluation(Result):
    """Scores of one model on one or more tests, with its cost.

    `evaluation["validation"]` is the `TestScore` of a test, `str(evaluation)` is a table. `scores` holds the scores per
    image by test; it is not written to JSON.

    Attributes:
        model: Name, class and remedies of the model.
        images: The images of each test, and how they were prepared.
        rows: The scores of each test.
        skipped: Reasons of skipped images, by test and image.
        cost: Parameters, FLOPs and throughput of the model.
        made: Versions, command and duration.

    Example:
        >>> import unsmooth
        >>> spec = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, depth=2, num_classes=10)"
        >>> evaluation = unsmooth.evaluate(spec, "digits", limit=20)
        >>> low, high = evaluation["validation"].top1_interval
        >>> low <= evaluation["validation"].top1 <= high
        True
    """

    kind = "evaluation"
    command = "unsmooth evaluate"

    model: EvaluatedModel
    images: EvaluatedImages
    rows: list[TestScore]
    skipped: dict[str, dict[str, str]]  # test → image → reason
    cost: ModelCost
    made: Provenance

    def __post_init__(self) -> None:
        self.scores: dict[str, Scores] = {}

    def keys(self) -> list[str]:
        """Names of the tests."""
        return [row.test for row in self.rows]

    def __getitem__(self, test: str) -> TestScore:
        for row in self.rows:
            if row.test == test:
                return row
        raise unknown("test", test, self.keys(), owner="this evaluation")

    def __str__(self) -> str:
        from unsmooth.report.evaluation_table import as_text

        return as_text(self)

    def __repr__(self) -> str:
        scores = ", ".join(f"{row.test} {100 * row.top1:.2f}" for row in self.rows)
        return f"Evaluation({self.model.name!r}: {scores})"
