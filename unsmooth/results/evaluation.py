"""The result of `evaluate`: scores of one model on several tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from unsmooth.rendering import renderer
from unsmooth.results.provenance import ClassName, Provenance
from unsmooth.results.record import Result, named, record, stored_as

if TYPE_CHECKING:
    import numpy as np

    from unsmooth.results.scores import Scores


TokenKind = Literal["patch", "mean", "class"]
ProbeName = Literal["knn", "linear"]
TokenMetric = Literal["miou", "accuracy"]


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
class BlockScore:
    """Score of the tokens of one block, and how much higher it is than that of the last block.

    Attributes:
        block: Index of the block.
        score: mIoU or accuracy, from 0 to 1.
        interval: 95 % interval over query images: Wilson for accuracies, bootstrap for mIoU.
        gain: Score minus the score of the last scored block.
        gain_interval: 95 % bootstrap interval of the gain, paired by query image.
    """

    block: int
    score: float
    interval: tuple[float, float]
    gain: float
    gain_interval: tuple[float, float]


@record
class TokenProbe:
    """Scores of one probe of one kind of token, by block.

    Attributes:
        tokens: "patch" (each patch token), "mean" (mean of the patch tokens) or "class" (class token).
        probe: "knn" (nearest neighbours) or "linear" (ridge regression).
        metric: "miou" or "accuracy".
        blocks: Score of each block that has one.
    """

    tokens: TokenKind
    probe: ProbeName
    metric: TokenMetric
    blocks: list[BlockScore]

    def __getitem__(self, block: int) -> BlockScore:
        return named({score.block: score for score in self.blocks}, block, "block", "this probe")


@record
class TokenScores:
    """Scores of probes on the frozen tokens of each block.

    `scores["patch", "knn"]` is one `TokenProbe`; `scores["patch", "knn"][9]` is its score of block 9. `per_image` holds
    what each score is made of, by kind of token, probe and block, so that two models can be compared on the same
    images: whether each image is correct, or its correct, predicted and labelled pixels by class. It is the input of
    `resampled_accuracy` or `resampled_miou` in `unsmooth.evaluation.resampling`, and is not written to JSON.

    Attributes:
        data: Name of the data.
        images: Query images, which are scored.
        memory_images: Images that the probes are fitted on.
        memory_tokens: Most patch tokens of them that were kept for a block; 0 without masks.
        neighbours: Neighbours that vote.
        classes: Number of classes in the memory.
        chance: Score of always predicting the most frequent class of the memory.
        ceiling: mIoU of the most frequent class of each patch, by block, which no patch prediction exceeds by much;
            empty without masks.
        similarity: Mean |cosine| of pairs of patch tokens, by block.
        probes: Scores by kind of token and probe.
        skipped: Reason by block without scores.
        skipped_images: Reason by broken image.
    """

    data: str
    images: int
    memory_images: int
    memory_tokens: int
    neighbours: int
    classes: int
    chance: float
    ceiling: dict[int, float]
    similarity: dict[int, float]
    probes: list[TokenProbe]
    skipped: dict[int, str]
    skipped_images: dict[str, str]

    def __post_init__(self) -> None:
        self.per_image: dict[tuple[str, str, int], tuple[np.ndarray[Any, Any], ...]] = {}

    def keys(self) -> list[tuple[str, str]]:
        """Kinds of token and probe."""
        return [(probe.tokens, probe.probe) for probe in self.probes]

    def __getitem__(self, key: tuple[str, str]) -> TokenProbe:
        return named({(probe.tokens, probe.probe): probe for probe in self.probes}, key, "probe", "these scores")

    def __str__(self) -> str:
        return renderer().text(self)


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
        provenance (Provenance): Versions, command and duration.
        tokens: Scores of the tokens of each block, if they were asked for.
        warnings: Warnings, such as classes of the model that the data does not have.

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
    provenance: Annotated[Provenance, stored_as("made")]
    tokens: TokenScores | None = None
    warnings: list[str] = Field(default_factory=list, exclude_if=lambda value: not value)

    def __post_init__(self) -> None:
        self.scores: dict[str, Scores] = {}

    def keys(self) -> list[str]:
        """Names of the tests."""
        return [row.test for row in self.rows]

    def __getitem__(self, test: str) -> TestScore:
        return named({row.test: row for row in self.rows}, test, "test", "this evaluation")

    def __str__(self) -> str:
        return renderer().text(self)

    def __repr__(self) -> str:
        scores = ", ".join(f"{row.test} {100 * row.top1:.2f}" for row in self.rows)
        return f"Evaluation({self.model.name!r}: {scores})"
