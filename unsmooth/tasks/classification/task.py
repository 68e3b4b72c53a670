"""Image classification, the default task of `train` and `compare`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.data import Mixup
from torch import Tensor, nn

from unsmooth.data.datasets import ImageBatch, ImageDataset, sample_batch
from unsmooth.data.images import fingerprint, first_valid_image
from unsmooth.data.sampling import MIX, derive_seed, seed_everything
from unsmooth.data.splits import Splits, hold_out, limit_splits, open_splits
from unsmooth.data.transforms import preprocessing
from unsmooth.errors import UnsmoothError, first_line
from unsmooth.hosts.inputs import run
from unsmooth.hosts.modes import autocast, eval_mode
from unsmooth.hosts.outputs import forward
from unsmooth.monitoring.observe import broken_gradient, first_broken
from unsmooth.recipes.recipe import Recipe
from unsmooth.results.scores import Scores
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.storage import save
from unsmooth.tasks.base import Task, TaskRequest
from unsmooth.tasks.classification.losses import Distillation, cross_entropy, split_outputs
from unsmooth.tasks.classification.scores import SCORES, merge_scores, score
from unsmooth.tasks.model_factory import build, build_teacher, check_patches
from unsmooth.utils.files import write
from unsmooth.utils.options import option, options, read_texts


@options
class ClassificationOptions:
    """Options of the classification task (`--option NAME=VALUE`)."""

    label = "classification"

    holdout: float = option(
        "share of the training images, by class, to validate on instead of the validation images; 0: none",
        default=0.0,
        low=0,
        high=0.9,
    )


def open_task(request: TaskRequest) -> Classification:
    """Open the data of a classification run and check their labels."""
    options = read_texts(ClassificationOptions, request.options, "classification")
    splits = open_splits(request.data, request.val_data, request.data_dir)
    splits = limit_splits(splits, request.recipe.train_images, request.recipe.val_images)
    return Classification(request, hold_out(splits, options.holdout) if options.holdout else splits)


class Classification(Task):
    """Image classification.

    Args:
        request: What the task is opened with.
        splits: Training and validation images; `request.data` is not read again.
    """

    name = "classification"
    primary_metric = "top1"

    def __init__(self, request: TaskRequest, splits: Splits) -> None:
        self.request, self.recipe, self.splits = request, request.recipe, splits

    @property
    def data(self) -> str:
        return self.splits.name

    def fingerprint(self) -> str:
        return f"{fingerprint(self.splits.train)} {fingerprint(self.splits.val)}"

    def counts(self) -> dict[str, int]:
        return {"train": self.splits.train.count, "val": self.splits.val.count, "classes": self.splits.classes}

    def build(self) -> None:
        request, recipe, splits = self.request, self.recipe, self.splits
        spec, strict = str(request.spec), request.strict_data
        self.model = build(request.spec, splits.classes, recipe, request.seed, request.checkpoint, request.pretrained)
        config = preprocessing(self.model, recipe.image_size)
        self.image_size = config.size
        check_patches(self.model, first_valid_image(splits.train).size, spec, splits.name)
        first_valid_image(splits.val)
        self.anatomy = anatomy_of(self.model) if recipe.vitals_every else None
        classes = outputs_of(self.model, config.size, spec)
        teacher = build_teacher(recipe, classes)
        self.distillation = Distillation(teacher, config, recipe, classes) if teacher is not None else None
        set_distilled: Any = getattr(self.model, "set_distilled_training", None)
        if teacher is not None and set_distilled is not None:
            set_distilled(True)
        self.mixup = Mixup(
            recipe.mixup, recipe.cutmix, prob=recipe.mixup_prob, switch_prob=recipe.switch_prob,
            label_smoothing=recipe.label_smoothing, num_classes=classes,
        ) if recipe.mixes else None  # fmt: skip
        self.criterion = cross_entropy(recipe)
        # Hugging Face hosts have another name for the input.
        self.input = "pixel_values" if getattr(self.model, "config", None) is not None else "image"
        self.train = ImageDataset(splits.train, config.train_transform(**_augmentation(recipe)), config.size[0], strict)
        self.val = self.val_images = ImageDataset(splits.val, config.eval_transform(), config.size[0], strict)

    def to(self, device: torch.device) -> None:
        if self.distillation is not None:
            self.distillation.to(device)

    def prepare(self, batch: ImageBatch, epoch: int, step: int) -> ImageBatch:
        if self.mixup is None:
            return batch
        # The same seed in every process, so that a batch does not depend on the number of processes.
        seed_everything(derive_seed(MIX, self.request.seed, epoch, step))
        images, labels = self.mixup(batch.images, batch.labels)
        return batch.with_mixed(images, labels)

    def loss(self, runner: Any, batch: ImageBatch) -> Tensor:
        logits, distilled = split_outputs(run(runner, {self.input: batch.images}))
        loss: Tensor = self.criterion(logits, batch.labels)
        if self.distillation is not None:
            alpha = self.recipe.distillation_alpha
            loss = (1 - alpha) * loss + alpha * self.distillation(batch.images, distilled)
        return loss

    def score(self, model: nn.Module, batches: Iterable[ImageBatch], device: torch.device, amp: str) -> Scores:
        return score(model, batches, amp=amp)

    def merge_scores(self, scores: Sequence[Scores]) -> Scores:
        return merge_scores(scores)

    def save(self, model: nn.Module, folder: Path) -> None:
        save(model, folder)

    def save_predictions(self, score: Scores, folder: Path) -> None:
        file = io.BytesIO()
        np.savez_compressed(file, places=score.indices, correct=score.correct)
        write(folder / SCORES, file.getvalue())

    def has_unused_parameters(self) -> bool:
        """Whether some parameters get no gradient, such as a mask token that is never used."""
        self.model.eval()
        image = torch.zeros(1, *self.image_size, device=next(self.model.parameters()).device)
        logits, distilled = split_outputs(run(self.model, {self.input: image}))
        (logits.sum() + distilled.sum()).backward()
        unused = any(p.grad is None for p in self.model.parameters() if p.requires_grad)
        self.model.zero_grad(set_to_none=True)
        return unused

    def monitor_images(self, count: int) -> Tensor | None:
        return sample_batch(self.val_images, count).images

    def locate_nonfinite(self, images: Tensor | None, amp: str, device: torch.device) -> str:
        try:
            anatomy = self.anatomy or anatomy_of(self.model)
            if images is None:
                return broken_gradient(self.model, anatomy).text
            with autocast(amp, device):
                return first_broken(self.model, anatomy, images.to(device), self.recipe.accumulate)
        except UnsmoothError as reason:  # a host without known blocks
            return f"the first non-finite block is unknown ({reason})"


def outputs_of(model: nn.Module, size: tuple[int, int, int], spec: str) -> int:
    """Number of outputs of a model, from a forward pass on one image of the given size."""
    try:
        with eval_mode(model):
            return forward(model, torch.zeros(1, *size)).shape[1]
    except UnsmoothError:
        raise
    except Exception as error:  # any error of a host at a size that it was not built for
        reason = first_line(error)
        raise UnsmoothError(f"{spec} does not accept images of {size[2]} × {size[1]} pixels: {reason}") from error


def _augmentation(recipe: Recipe) -> dict[str, Any]:
    return {
        "scale": recipe.crop_scale, "ratio": recipe.crop_ratio, "hflip": recipe.hflip,
        "color_jitter": recipe.color_jitter or None, "auto_augment": recipe.auto_augment or None,
        "re_prob": recipe.erasing, "re_mode": recipe.erasing_mode,
        "no_aug": recipe.crop_scale == (1.0, 1.0)
        and not (recipe.hflip or recipe.auto_augment or recipe.color_jitter or recipe.erasing),
    }  # fmt: skip
