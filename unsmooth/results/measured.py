"""Measurements of a diagnosis: the model, the images, and the values of vitals by block."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from unsmooth.results.record import if_set, record, stored_as

DIGITS = 6  # significant digits in files: more than any vital resolves

Values = float | None | list[float | None] | list[list[float | None]]
T = TypeVar("T")


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
    residuals: Annotated[list[str], stored_as("joins")]
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
    class_name: Annotated[str, stored_as("class")]
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
