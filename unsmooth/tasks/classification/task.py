"""Classification: the task of `train` and `compare` unless another one is named."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.data import Mixup
from torch import Tensor, nn

from unsmooth.data.images import first_usable
from unsmooth.data.pictures import ImageBatch, ImageDataset, sample_batch
from unsmooth.data.sampling import MIX, derive_seed, seed_everything
from unsmooth.data.splits import Splits
from unsmooth.data.transforms import preprocessing
from unsmooth.diagnosis.monitor import broken_gradient, first_broken
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import run
from unsmooth.hosts.modes import autocast, eval_mode
from unsmooth.hosts.outputs import forward
from unsmooth.recipes.recipe import Recipe
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.storage import save
from unsmooth.tasks.base import Task
from unsmooth.tasks.classification.losses import Distillation, cross_entropy, heads
from unsmooth.tasks.classification.scores import SCORES, Scores, join, score
from unsmooth.tasks.model_factory import build, build_teacher, check_patches
from unsmooth.utils.files import write


@dataclass
class Accuracy:
    """Which validation images are right, as a task's score."""

    scores: Scores

    @property
    def primary_metric(self) -> float:
        return self.scores.top1

    def line(self) -> dict[str, float | None]:
        return {"val_loss": self.scores.mean_loss, "val_top1": self.scores.top1, "val_top5": self.scores.top5}

    def result(self) -> dict[str, Any]:
        found = self.scores
        return {
            "top1": found.top1, "top5": found.top5, "loss": found.mean_loss, "images": found.images,
            "skipped": found.skipped,
        }  # fmt: skip


class Classification(Task):
    name = "classification"
    primary_metric = "top1"

    def __init__(
        self,
        spec: str,
        splits: Splits,
        recipe: Recipe,
        seed: int,
        checkpoint: str | Path | None = None,
        pretrained: bool = False,
        strict: bool = False,
    ) -> None:
        self.spec, self.splits, self.recipe, self.seed, self.strict = spec, splits, recipe, seed, strict
        self.checkpoint, self.pretrained = checkpoint, pretrained

    @property
    def data(self) -> str:
        return self.splits.name

    def counts(self) -> dict[str, int]:
        return {"train": self.splits.train.count, "val": self.splits.val.count, "classes": self.splits.classes}

    def build(self) -> None:
        recipe, splits = self.recipe, self.splits
        self.model = build(self.spec, splits.classes, recipe, self.seed, self.checkpoint, self.pretrained)
        wanted = preprocessing(self.model, recipe.image_size)
        self.size = wanted.size
        check_patches(self.model, first_usable(splits.train).size, self.spec, splits.name)
        first_usable(splits.val)
        self.anatomy = anatomy_of(self.model) if recipe.vitals_every else None
        classes = outputs_of(self.model, wanted.size, self.spec)
        teacher = build_teacher(recipe, classes)
        self.distillation = Distillation(teacher, wanted, recipe, classes) if teacher is not None else None
        two_heads: Any = getattr(self.model, "set_distilled_training", None)
        if teacher is not None and two_heads is not None:
            two_heads(True)
        self.mixup = Mixup(
            recipe.mixup, recipe.cutmix, prob=recipe.mixup_prob, switch_prob=recipe.switch_prob,
            label_smoothing=recipe.label_smoothing, num_classes=classes,
        ) if recipe.mixes else None  # fmt: skip
        self.criterion = cross_entropy(recipe)
        # Hugging Face's hosts have their own name for an image.
        self.input = "pixel_values" if getattr(self.model, "config", None) is not None else "image"
        self.train = ImageDataset(splits.train, wanted.training(**_augmentation(recipe)), wanted.size[0], self.strict)
        self.val = self.held = ImageDataset(splits.val, wanted.evaluation(), wanted.size[0], self.strict)

    def to(self, device: torch.device) -> None:
        if self.distillation is not None:
            self.distillation.to(device)

    def prepare(self, batch: ImageBatch, epoch: int, step: int) -> ImageBatch:
        if self.mixup is None:
            return batch
        # Every process mixes alike: then a batch does not depend on how many share it.
        seed_everything(derive_seed(MIX, self.seed, epoch, step))
        images, labels = self.mixup(batch.images, batch.labels)
        return batch.replaced(images, labels)

    def loss(self, runner: Any, batch: ImageBatch) -> Tensor:
        logits, other = heads(run(runner, {self.input: batch.images}))
        loss: Tensor = self.criterion(logits, batch.labels)
        if self.distillation is not None:
            alpha = self.recipe.distillation_alpha
            loss = (1 - alpha) * loss + alpha * self.distillation(batch.images, other)
        return loss

    def score(self, model: nn.Module, batches: Iterable[ImageBatch], device: torch.device, amp: str) -> Accuracy:
        return Accuracy(score(model, batches, amp=amp))

    def join(self, scores: Sequence[Accuracy]) -> Accuracy:
        return Accuracy(join([part.scores for part in scores]))

    def save(self, model: nn.Module, folder: Path) -> None:
        save(model, folder)

    def keep(self, score: Accuracy, folder: Path) -> None:
        file = io.BytesIO()
        np.savez_compressed(file, places=score.scores.places, correct=score.scores.correct)
        write(folder / SCORES, file.getvalue())

    def idle(self) -> bool:
        """As a mask token that nobody masks with."""
        self.model.eval()
        image = torch.zeros(1, *self.size, device=next(self.model.parameters()).device)
        logits, other = heads(run(self.model, {self.input: image}))
        (logits.sum() + other.sum()).backward()
        idle = any(p.grad is None for p in self.model.parameters() if p.requires_grad)
        self.model.zero_grad(set_to_none=True)
        return idle

    def monitor_images(self, count: int) -> Tensor | None:
        return sample_batch(self.held, count).images

    def where(self, images: Tensor | None, amp: str, device: torch.device) -> str:
        try:
            anatomy = self.anatomy or anatomy_of(self.model)
            if images is None:
                return broken_gradient(self.model, anatomy)
            with autocast(amp, device):
                return first_broken(self.model, anatomy, images.to(device), self.recipe.accumulate)
        except UnsmoothError as reason:  # a host without blocks that we know
            return f"which block went first is unknown ({reason})"


def outputs_of(model: nn.Module, size: tuple[int, int, int], spec: str) -> int:
    """How many classes a model tells apart, found on one image of the size that it will get."""
    try:
        with eval_mode(model):
            return forward(model, torch.zeros(1, *size)).shape[1]
    except UnsmoothError:
        raise
    except Exception as error:  # whatever a host makes of a size that it was not built for
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise UnsmoothError(f"{spec} cannot take images of {size[2]} × {size[1]} pixels: {first}") from error


def _augmentation(recipe: Recipe) -> dict[str, Any]:
    return {
        "scale": recipe.crop_scale, "ratio": recipe.crop_ratio, "hflip": recipe.hflip,
        "color_jitter": recipe.color_jitter or None, "auto_augment": recipe.auto_augment or None,
        "re_prob": recipe.erasing, "re_mode": recipe.erasing_mode,
        "no_aug": recipe.crop_scale == (1.0, 1.0)
        and not (recipe.hflip or recipe.auto_augment or recipe.color_jitter or recipe.erasing),
    }  # fmt: skip
