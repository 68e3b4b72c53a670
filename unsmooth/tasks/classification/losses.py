"""What a training step minimises: cross-entropy, a teacher's part, and the terms of remedies at the loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.data.transforms import Preprocessing, preprocessing
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import image_size
from unsmooth.recipes.recipe import Recipe


def cross_entropy(recipe: Recipe) -> nn.Module:
    """Cross-entropy; of soft targets where images are mixed, which hold the smoothing already."""
    return nn.CrossEntropyLoss(label_smoothing=0.0 if recipe.mixes else recipe.label_smoothing)


class Distillation:
    """DeiT's: (1 − α)·CE(class head, target) + α·(CE(other head, teacher's choice) or τ²·KL(teacher ‖ other head)).

    The other head is the distillation token's where the host has one, and the only head otherwise. KL is averaged over
    images; the authors' code divides by the number of classes too.
    """

    def __init__(self, teacher: nn.Module, student: Preprocessing, recipe: Recipe, classes: int) -> None:
        from unsmooth.hosts.outputs import forward

        self.teacher, self.recipe, self._forward = teacher, recipe, forward
        size = image_size(teacher)
        if size != student.size:
            raise UnsmoothError(
                f"the teacher takes images of {size} and the student of {student.size}: they share batches"
            )
        # From the student's normalisation to the teacher's.
        own = preprocessing(teacher)
        mean, std, to_mean, to_std = (
            torch.tensor(values).view(-1, 1, 1) for values in (student.mean, student.std, own.mean, own.std)
        )
        self.scale, self.shift = std / to_std, (mean - to_mean) / to_std
        with torch.no_grad():
            given = forward(teacher, torch.zeros(1, *size)).shape[-1]
        if given != classes:
            raise UnsmoothError(f"the teacher {recipe.teacher} gives {given} classes, and the data have {classes}")

    def to(self, device: torch.device) -> Distillation:
        self.teacher.to(device)
        self.scale, self.shift = self.scale.to(device), self.shift.to(device)
        return self

    def __call__(self, images: Tensor, logits: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self._forward(self.teacher, images * self.scale + self.shift)
        if self.recipe.distillation == "hard":
            return F.cross_entropy(logits, wanted.argmax(dim=1))
        tau = self.recipe.distillation_tau
        soft, target = F.log_softmax(logits / tau, dim=1), F.log_softmax(wanted / tau, dim=1)
        return F.kl_div(soft, target, reduction="batchmean", log_target=True) * tau**2


def heads(output: Any) -> tuple[Tensor, Tensor]:
    """The logits for labels and those for a teacher: two heads of a distilled host in training, one otherwise."""
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, Tensor) for part in output):
        return output[0], output[1]
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits, logits
