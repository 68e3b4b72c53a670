"""Semantic segmentation, as a task of `unsmooth train`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist

from unsmooth.data.images import evenly_spaced
from unsmooth.data.transforms import preprocessing
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import autocast
from unsmooth.monitoring.observe import broken_gradient, first_broken
from unsmooth.surgery.plan import anatomy_of
from unsmooth.tasks.base import Task, TaskRequest, reject_classification_fields
from unsmooth.tasks.segmentation import evaluate
from unsmooth.tasks.segmentation.build import build, resolve
from unsmooth.tasks.segmentation.items import Crops, FullImages, SceneItems
from unsmooth.tasks.segmentation.layout import IGNORE, open_scenes
from unsmooth.tasks.segmentation.model import Segmenter, import_upernet, synchronise
from unsmooth.tasks.segmentation.options import SegmentationOptions
from unsmooth.tasks.segmentation.score import SegmentationScore, merge_scores
from unsmooth.tasks.segmentation.storage import save_segmenter
from unsmooth.tasks.segmentation.views import Normalise, TrainingTransform
from unsmooth.utils.options import read_texts


def open_task(request: TaskRequest) -> SegmentationTask:
    """Open data in the layout of ADE20K and check the options.

    `checkpoint` and `pretrained` refer to weights of the host. The recipe fields hflip, color_jitter, label_smoothing,
    dropout, drop_path and image_size (the crop) are used. Mixup, cutmix, distillation, auto_augment and erasing are
    rejected. crop_scale, crop_ratio and deep_dropout are ignored; the task has its own options for crops.
    """
    import_upernet()
    recipe = request.recipe
    options = resolve(request.spec, read_texts(SegmentationOptions, request.options, "segmentation"), recipe)
    reject_classification_fields(recipe, "segmentation")
    if request.checkpoint is not None and request.pretrained:
        raise UnsmoothError("checkpoint and pretrained exclude each other: both are weights of the host. Use one.")
    return SegmentationTask(request, options)


class SegmentationTask(Task):
    """Semantic segmentation with UperNet."""

    name = "segmentation"
    primary_metric = "miou"
    model: Segmenter

    def __init__(self, request: TaskRequest, options: SegmentationOptions) -> None:
        self.request, self.recipe, self.options = request, request.recipe, options
        self.scenes = {
            "train": open_scenes(request.data, "train").limit(self.recipe.train_images),
            "val": open_scenes(request.data, "val").limit(self.recipe.val_images),
        }

    @property
    def data(self) -> str:
        return str(self.scenes["train"].root)

    def counts(self) -> dict[str, int]:
        return {**{split: scenes.count for split, scenes in self.scenes.items()}, "classes": self.options.classes}

    def build(self) -> None:
        self._check_batch()
        request, recipe, options = self.request, self.recipe, self.options
        self.model = build(request, options)
        if dist.is_initialized() and dist.get_backend() == "nccl":
            synchronise(self.model)
        host = preprocessing(self.model.backbone, options.window)
        self.image_size = host.size
        view = TrainingTransform(options, Normalise(host.mean, host.std), recipe.hflip, recipe.color_jitter)
        self.train = SceneItems(
            self.scenes["train"], view, host.size[0], options, training=True, strict=request.strict_data
        )
        self.val = evaluate.validation(self.model, self.scenes["val"], options, request.strict_data)

    def loss(self, runner: Any, batch: Crops) -> Tensor:
        """Cross-entropy of both heads, averaged over all pixels, with zero for unlabelled ones.

        So the losses of parts and processes add up to that of the batch, and a batch without labels has a loss.
        """
        outputs = runner(batch.images)
        logits, auxiliary = outputs if isinstance(outputs, tuple) else (outputs, None)
        loss = self._cross_entropy(logits, batch.labels)
        if auxiliary is None:
            return loss
        return loss + self.options.auxiliary * self._cross_entropy(auxiliary, batch.labels)

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        smoothing = self.recipe.label_smoothing
        total = F.cross_entropy(
            logits, labels.long(), ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing
        )  # fmt: skip
        return total / labels.numel()

    def score(
        self, model: nn.Module, batches: Iterable[FullImages], device: torch.device, amp: str
    ) -> SegmentationScore:
        assert isinstance(model, Segmenter)
        return evaluate.score(model, batches, device, amp, self.options)

    def merge_scores(self, scores: Sequence[SegmentationScore]) -> SegmentationScore:
        return merge_scores(scores)

    def save(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Segmenter)
        save_segmenter(model, folder)

    def monitor_images(self, count: int) -> Tensor | None:
        return self.val.collate([self.val[(i, None)] for i in evenly_spaced(self.val.count, count)]).images

    def locate_nonfinite(self, images: Tensor | None, amp: str, device: torch.device) -> str:
        host = self.model.backbone
        try:
            anatomy = anatomy_of(host)
            if images is not None:
                with autocast(amp, device):
                    return first_broken(host, anatomy, images.to(device), self.recipe.accumulate)
            heads = [p for name, p in self.model.named_parameters() if not name.startswith("backbone.")]
            if all(p.grad is None or p.grad.isfinite().all() for p in heads):
                return broken_gradient(host, anatomy).text
            return "the gradient is not finite in the head, after all blocks"
        except UnsmoothError as reason:  # a host without known blocks
            return f"the first non-finite block is unknown ({reason})"

    def _check_batch(self) -> None:
        """Raise if a forward pass has one image: BatchNorm on the head's 1 × 1 map needs two."""
        world = dist.get_world_size() if dist.is_initialized() else 1
        share = max(1, self.recipe.batch_size // world)
        smallest = min(len(part) for part in torch.empty(share).chunk(min(share, self.recipe.accumulate)))
        if smallest < 2:
            raise UnsmoothError(
                f"UperNet needs at least 2 images per forward pass (got {smallest}: "
                f"batch_size={self.recipe.batch_size}, {world} processes, accumulate={self.recipe.accumulate}). "
                "Use a larger batch_size."
            )
