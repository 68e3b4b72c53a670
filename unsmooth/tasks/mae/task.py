"""MAE pre-training: most patches of an image are hidden, and the model draws them.

Of the recipe it takes the budget, the optimiser, precision, the moving average, and of the augmentation crop_scale,
crop_ratio and hflip, as MAE uses no other. Labels, mixing, smoothing, distillation, drop_path, dropout and vitals are
left out; the host's spec names its dropout.
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
from unsmooth.data.images import Stream, first_valid_image
from unsmooth.data.splits import Splits, limit_splits, open_splits
from unsmooth.data.transforms import preprocessing
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import autocast, eval_mode
from unsmooth.spec import ModelSpec, SpecItem
from unsmooth.surgery.storage import WEIGHTS, load
from unsmooth.tasks.base import Task, TaskRequest, reject_classification_fields
from unsmooth.tasks.huggingface import config_of, read_spec
from unsmooth.tasks.mae.items import Masked, MaskedPictures
from unsmooth.tasks.mae.model import KIND, TASK, build, check_config, patches_of
from unsmooth.tasks.mae.storage import save_mae
from unsmooth.utils.options import option, options, read_texts, to_json


@options
class MaeOptions:
    """Options of the MAE task (`--option NAME=VALUE`)."""

    label = "mae"

    mask_ratio: float = option(0.75, "share of masked patches", above=0.0, high=1.0)
    norm_pix_loss: bool = option(True, "reconstruct pixels normalised per patch")


@dataclass
class ReconstructionScore:
    """The squared error of hidden pixels, over all images."""

    total: float
    images: int
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        return self.total / self.images if self.images else math.nan

    @property
    def primary_metric(self) -> float:
        return -self.loss if math.isfinite(self.loss) else -math.inf

    def epoch_metrics(self) -> dict[str, float | None]:
        return {"val_loss": self.loss if math.isfinite(self.loss) else None}

    def summary(self) -> dict[str, Any]:
        return {"loss": self.epoch_metrics()["val_loss"], "images": self.images, "skipped": self.skipped}


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

    def counts(self) -> dict[str, int]:
        return {"train": self.splits.train.count, "val": self.splits.val.count}

    def build(self) -> None:
        recipe, strict, splits = self.request.recipe, self.request.strict_data, self.splits
        self.model = build(self.config, self.spec, self.request.seed, self.weights)
        if self.checkpoint is not None:
            load(self.checkpoint, self.model)
        wanted = preprocessing(self.model)
        self.image_size = wanted.size
        for images in (splits.train, splits.val):
            first_valid_image(images)
        crop = {"scale": recipe.crop_scale, "ratio": recipe.crop_ratio, "hflip": recipe.hflip, "color_jitter": None}
        crop["no_aug"] = recipe.crop_scale == (1.0, 1.0) and not recipe.hflip
        shown = ImageDataset(splits.train, wanted.train_transform(**crop), wanted.size[0], strict)
        held = ImageDataset(splits.val, wanted.eval_transform(), wanted.size[0], strict)
        self.train, self.val = (MaskedPictures(pictures, patches_of(self.config)) for pictures in (shown, held))

    def loss(self, runner: Any, batch: Masked) -> Tensor:
        loss: Tensor = runner(pixel_values=batch.images, noise=batch.noise).loss
        return loss

    def score(self, model: nn.Module, batches: Iterable[Masked], device: torch.device, amp: str) -> ReconstructionScore:
        """Every image under the one mask of its place: two models are eval_model on the same hidden patches."""
        found = ReconstructionScore(0.0, 0)
        with eval_mode(model):
            for batch in batches:
                found.skipped |= batch.skipped
                if len(batch):
                    with autocast(amp, device):
                        loss = self.loss(model, batch.to(device))
                    found.total += loss.double().item() * len(batch)
                    found.images += len(batch)
        return found

    def merge_scores(self, scores: Sequence[ReconstructionScore]) -> ReconstructionScore:
        skipped = {name: reason for score in scores for name, reason in score.skipped.items()}
        joined = ReconstructionScore(
            sum(score.total for score in scores), sum(score.images for score in scores), skipped
        )
        if not joined.images:
            raise UnsmoothError(f"{self.data} has no validation image that can be scored: all were skipped")
        return joined

    def save(self, model: nn.Module, folder: Path) -> None:
        save_mae(model, folder, self.splits.classes)


def open_task(request: TaskRequest) -> MaskedAutoencoding:
    """Pre-train hf:vit_mae(…) with remedies on its encoder, on the images of any data that `train` takes.

    `pretrained`: the host is a folder or hub id whose weights are taken. `checkpoint`: a folder that this task saved,
    or a file of weights of ViTMAEForPreTraining.
    """
    recipe = request.recipe
    reject_classification_fields(recipe, TASK)
    task_options = to_json(read_texts(MaeOptions, request.options, TASK))
    parsed = read_spec(TASK, KIND, request.spec)
    assert parsed.host is not None
    for name in request.options:
        if name in parsed.host.options:
            raise UnsmoothError(f"{name} is given twice, in the spec and as an option: leave one out")
    config = config_of(TASK, KIND, parsed.host)
    host = SpecItem(parsed.host.name, {**task_options, **parsed.host.options})  # what the spec says itself stays
    for name in task_options:
        setattr(config, name, host.options[name])
    check_config(config)
    if recipe.image_size not in (0, config.image_size):
        raise UnsmoothError(f"mae takes the host's own image size: write image_size={recipe.image_size} into the spec")
    splits = limit_splits(
        open_splits(request.data, request.val_data, request.data_dir), recipe.train_images, recipe.val_images
    )
    for images in (splits.train, splits.val):
        if isinstance(images, Stream):
            raise UnsmoothError(f"mae reads images by place, and {images.name} is a stream; give a folder or an .npz")
    checkpoint = request.checkpoint
    if checkpoint is not None and checkpoint.is_dir():
        checkpoint /= WEIGHTS
    if checkpoint is not None and not checkpoint.exists():
        raise UnsmoothError(f"{checkpoint} does not exist: a checkpoint is a folder saved by mae, or a file of weights")
    weights = host.name.removeprefix("hf:") if request.pretrained else ""
    if request.pretrained and weights == KIND:
        raise UnsmoothError(f"hf:{KIND} is a type without weights; name a hub id or a folder to load weights")
    return MaskedAutoencoding(request, replace(parsed, host=host), config, splits, checkpoint, weights)
