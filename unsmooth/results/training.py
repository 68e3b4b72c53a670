"""The results of a training run: what `train` returns, its settings, and the metrics of its epochs.

A run directory has them as result.json, run.json and the lines of metrics.jsonl. The metrics depend on the task. They
are beside the other fields in JSON: `{"top1": 0.8, "loss": 0.7, "images": 1000, …}`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)

from unsmooth.errors import unknown
from unsmooth.rendering import renderer
from unsmooth.results.measured import Values
from unsmooth.results.record import FORMAT, Result, if_set, record, stored_as

FIELD = "metrics"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# A list has a value for each class. None: there is no value, or it is not finite.
MetricValue = Annotated[float | int | list[float | None] | None, BeforeValidator(_finite)]


@record
class WithMetrics:
    """Base of records with metrics, which are beside the other fields in JSON. `line["val_top1"]` is a metric."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = {field.name for field in dataclasses.fields(cls)} - {FIELD}
        metrics = {name: value for name, value in values.items() if name not in fields}
        return {name: value for name, value in values.items() if name in fields} | {FIELD: metrics}

    @model_serializer(mode="wrap")
    def _write(self, write_fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in write_fields(self).items():
            values |= value if name == FIELD else {name: value}
        return values

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        fields = handler.resolve_ref_schema(handler(schema))
        metrics = fields["properties"].pop(FIELD)
        fields["required"].remove(FIELD)
        return fields | {"additionalProperties": metrics["additionalProperties"]}

    def keys(self) -> list[str]:
        """Names of the metrics."""
        return list(vars(self)[FIELD])

    def __getitem__(self, name: str) -> Any:
        metrics = vars(self)[FIELD]
        if name not in metrics:
            raise unknown("metric", name, metrics, owner="this result")
        return metrics[name]


@record
class Alarm:
    """A vital that passed its limit during training.

    Attributes:
        step: Optimizer steps done before the measurement.
        kind: `entropy_collapse`, `max_logit`, `falling_rank`, `norm_outliers` or `non_finite`.
        block: Index of the block that is furthest past the limit; None outside the blocks.
        value: What was measured there; None for values that are not finite.
        limit: The limit that it passed.
        why: What happened, in a sentence.
        action: What to try.

    Example:
        >>> from unsmooth.results.training import Alarm
        >>> alarm = Alarm(400, "max_logit", 3, 130.0, 100.0, "the largest logit of block 3 is 130", "Apply qk_norm.")
        >>> print(alarm)
        step 400: max_logit: the largest logit of block 3 is 130. Apply qk_norm.
    """

    step: int
    kind: str
    block: int | None
    value: float | None
    limit: float | None
    why: str
    action: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.kind}: {self.why}. {self.action}"


def _omitted_if_empty(kind: Any) -> Any:
    return Field(default_factory=kind, exclude_if=lambda value: not value)


@record
class EpochMetrics(WithMetrics):
    """The metrics of an epoch, a line of metrics.jsonl.

    Attributes:
        epoch: Number of the epoch, from 1.
        metrics: `lr`, `train_loss` and, in epochs with a validation, the metrics of the task as `val_NAME`.
        vitals: Values by vital and block, in epochs that measure them.
        alarms: What these values raised.
    """

    epoch: Annotated[int, Strict()]
    metrics: dict[str, MetricValue]
    vitals: dict[str, list[Values]] = _omitted_if_empty(dict)
    alarms: list[Alarm] = _omitted_if_empty(list)


@record
class BestEpoch(WithMetrics):
    """The best epoch by the primary metric of the task; epoch 0 if no epoch has a value."""

    epoch: int
    metrics: dict[str, MetricValue]


@record
class TrainingResult(WithMetrics, Result):
    """The result of a training run. `result["top1"]` is a metric of its last epoch, `print(result)` shows a line.

    Attributes:
        metrics: Metrics of the last epoch by name. Classification has top1, top5 and loss.
        images: Number of validation images.
        skipped: Reasons by name of broken images, of "train" and "val".
        best: The best epoch and its primary metric.
        epochs: Number of epochs.
        seconds: Duration.
        images_per_second: Training images per second, validation included.
        vitals_share: Share of the duration that vitals took.

    Example:
        >>> import tempfile, unsmooth
        >>> host = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2)"
        >>> result = unsmooth.train(
        ...     host, "digits", out=tempfile.mkdtemp(), epochs=1, warmup_epochs=0, train_images=128, val_images=40
        ... )
        >>> result.keys()
        ['top1', 'top5', 'loss']
        >>> result["top1"] == result.best["top1"]
        True
    """

    kind = "training result"
    command = "unsmooth train"

    metrics: dict[str, MetricValue]
    images: int
    skipped: dict[str, dict[str, str]]
    best: BestEpoch
    epochs: int
    seconds: float
    images_per_second: float
    vitals_share: float

    @classmethod
    def from_dict(cls, values: Any, source: str = "") -> TrainingResult:
        """Restore a result from plain values. Files of older versions have no format and no kind."""
        if isinstance(values, dict):
            values = {"format": FORMAT, "kind": cls.kind, **values}
        return super().from_dict(values, source)

    def __str__(self) -> str:
        return renderer().text(self)

    def __repr__(self) -> str:
        return f"TrainingResult({str(self)!r})"


@record
class RunSettings(Result):
    """The settings of a run, which suffice to repeat it: run.json.

    Attributes:
        task: Name of the task.
        options: Options of the task.
        spec: Model spec.
        data: Name of the data.
        val_data: Validation images, if they are not part of `data`.
        images: Number of images by split, and other sizes of the data.
        fingerprint: Digest of some of the data; "" if it is not taken, None in files of older versions.
        seed: Seed of the run.
        checkpoint: Weights that it started from.
        pretrained: Whether it started from the pretrained weights of the library.
        recipe: Fields of the recipe.
        command_line: Command line; "" if called from Python.
        threads: Threads of each process.
        versions: Versions of unsmooth, torch, timm and Python.
        processes: Number of processes.
        device: Type of device.
    """

    kind = "run"
    command = "unsmooth train"

    _: dataclasses.KW_ONLY
    task: str
    options: dict[str, str]
    spec: str
    data: str
    val_data: str | None
    images: dict[str, int]
    fingerprint: str | None = if_set()
    seed: int
    checkpoint: str | None
    pretrained: bool
    recipe: dict[str, Any]
    command_line: Annotated[str, stored_as("command")]
    threads: int
    versions: dict[str, str]
    processes: int | None = if_set()
    device: str | None = if_set()
