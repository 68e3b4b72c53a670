"""MAE pre-training: the model reconstructs masked patches.

Of the recipe, the budget, the optimizer, precision, the weight average, crop_scale, crop_ratio and hflip are used.
Labels, label smoothing, drop_path, dropout and vitals are ignored; dropout is an option of the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.data.datasets import ImageDataset
from unsmooth.data.images import Stream, fingerprint, first_valid_image
from unsmooth.data.splits import Splits, limit_splits, open_splits
from unsmooth.data.transforms import preprocessing
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import autocast, eval_mode
from unsmooth.results.training import MetricValue
from unsmooth.spec import ModelSpec, SpecItem
from unsmooth.surgery.storage import WEIGHTS, load
from unsmooth.tasks.base import Task, TaskRequest, reject_classification_fields
from unsmooth.tasks.huggingface import config_of, read_spec
from unsmooth.tasks.mae.items import MaskedBatch, MaskedImages
from unsmooth.tasks.mae.model import KIND, TASK, build, check_config, num_patches
from unsmooth.tasks.mae.storage import save_mae
from unsmooth.utils.options import option, options, read_texts, to_json


@options
class MaeOptions:
    """Options of the MAE task (`--option NAME=VALUE`)."""

    label = "mae"

    mask_ratio: float = option("share of masked patches", default=0.75, above=0.0, high=1.0)
    norm_pix_loss: bool = option("reconstruct pixels normalised per patch", default=True)


@dataclass
class ReconstructionScore:
    """Sum of the losses of masked patches, over all images."""

    total: float
    images: int
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        return self.total / self.images if self.images else math.nan

    @property
    def primary_metric(self) -> float:
        return -self.loss if math.isfinite(self.loss) else -math.inf

    def epoch_metrics(self) -> dict[str, MetricValue]:
        return {"val_loss": self.metrics()["loss"]}

    def metrics(self) -> dict[str, MetricValue]:
        return {"loss": self.loss if math.isfinite(self.loss) else None}


class MaskedAutoencoding(Task):
    name = TASK
    primary_metric = "neg_loss"

    def __init__(self, request: TaskRequest, spec: ModelSpec, config: Any, splits: Splits, checkpoint: Path | None,
                 weights: str) -> None:  # fmt: skip
        self.request, self.spec, self.config, self.splits = request, spec, config, splits
        self.checkpoint, self.weights = checkpoint, weights

    @property
    def data(self) -> str:
        return self.splits.name

    def fingerprint(self) -> str:
        return f"{fingerprint(self.splits.train)} {fingerprint(self.splits.val)}"

    def counts(self) -> dict[str, int]:
        return {"train": self.splits.train.count, "val": self.splits.val.count}

    def build(self) -> None:
        recipe, strict, splits = self.request.recipe, self.request.strict_data, self.splits
        self.model = build(self.config, self.spec, self.request.seed, self.weights)
        if self.checkpoint is not None:
            load(self.checkpoint, self.model)
        config = preprocessing(self.model)
        self.image_size = config.size
        for images in (splits.train, splits.val):
            first_valid_image(images)
        crop = {"scale": recipe.crop_scale, "ratio": recipe.crop_ratio, "hflip": recipe.hflip, "color_jitter": None}
        crop["no_aug"] = recipe.crop_scale == (1.0, 1.0) and not recipe.hflip
        train = ImageDataset(splits.train, config.train_transform(**crop), config.size[0], strict)
        val = ImageDataset(splits.val, config.eval_transform(), config.size[0], strict)
        self.train, self.val = (MaskedImages(images, num_patches(self.config)) for images in (train, val))

    def loss(self, runner: Any, batch: MaskedBatch) -> Tensor:
        loss: Tensor = runner(pixel_values=batch.images, noise=batch.noise).loss
        return loss

    def score(
        self, model: nn.Module, batches: Iterable[MaskedBatch], device: torch.device, amp: str
    ) -> ReconstructionScore:
        """Score a model. The mask of an image depends on its index, so that all models see the same masks."""
        total = ReconstructionScore(0.0, 0)
        with eval_mode(model):
            for batch in batches:
                total.skipped |= batch.skipped
                if len(batch):
                    with autocast(amp, device):
                        loss = self.loss(model, batch.to(device))
                    total.total += loss.double().item() * len(batch)
                    total.images += len(batch)
        return total

    def merge_scores(self, scores: Sequence[ReconstructionScore]) -> ReconstructionScore:
        skipped = {name: reason for score in scores for name, reason in score.skipped.items()}
        merged = ReconstructionScore(
            sum(score.total for score in scores), sum(score.images for score in scores), skipped
        )
        if not merged.images:
            raise UnsmoothError(f"{self.data} has no valid validation image: all were skipped")
        return merged

    def save(self, model: nn.Module, folder: Path) -> None:
        save_mae(model, folder, self.splits.classes)


def open_task(request: TaskRequest) -> MaskedAutoencoding:
    """Open images for the pre-training of hf:vit_mae(…) with remedies on its encoder.

    With `pretrained`, the host is a folder or hub id with weights. `checkpoint` is a folder that this task saved, or a
    file with weights of ViTMAEForPreTraining.
    """
    recipe = request.recipe
    reject_classification_fields(recipe, TASK)
    task_options = to_json(read_texts(MaeOptions, request.options, TASK))
    parsed = read_spec(TASK, KIND, request.spec)
    given = parsed.known_host
    for name in request.options:
        if name in given.options:
            raise UnsmoothError(f"{name} is set in the spec and as an option. Use one of them.")
    config = config_of(TASK, KIND, given)
    host = SpecItem(given.name, {**task_options, **given.options})  # the spec takes precedence
    for name in task_options:
        setattr(config, name, host.options[name])
    check_config(config)
    if recipe.image_size not in (0, config.image_size):
        raise UnsmoothError(
            f"mae uses the image size of the host (got image_size={recipe.image_size}). Set image_size in the spec."
        )
    splits = limit_splits(
        open_splits(request.data, request.val_data, request.data_dir), recipe.train_images, recipe.val_images
    )
    for images in (splits.train, splits.val):
        if isinstance(images, Stream):
            raise UnsmoothError(f"mae does not support streams (got {images.name}). Use a folder or an .npz file.")
    checkpoint = request.checkpoint
    if checkpoint is not None and checkpoint.is_dir():
        checkpoint /= WEIGHTS
    if checkpoint is not None and not checkpoint.exists():
        raise UnsmoothError(
            f"{checkpoint} does not exist. Use a folder that the task mae saved, or a file with weights."
        )
    weights = host.name.removeprefix("hf:") if request.pretrained else ""
    if request.pretrained and weights == KIND:
        raise UnsmoothError(f"hf:{KIND} is a model type without weights. Use a hub id or a folder, hf:FOLDER.")
    return MaskedAutoencoding(request, replace(parsed, host=host), config, splits, checkpoint, weights)
