"""Losses of classification: cross-entropy and DeiT distillation."""

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
    """Cross-entropy loss. Soft targets of mixed images include the label smoothing already."""
    return nn.CrossEntropyLoss(label_smoothing=0.0 if recipe.mixes else recipe.label_smoothing)


class Distillation:
    """Teacher's term of DeiT distillation.

        (1 − α)·CE(class head, target) + α·CE(distillation head, teacher's class)      hard
        (1 − α)·CE(class head, target) + α·τ²·KL(teacher ‖ distillation head)          soft

    Hosts without a distillation head use their only head for both terms. KL is averaged over images; the authors' code
    also divides by the number of classes.

    Args:
        teacher: Frozen teacher.
        student: Preprocessing of the student, whose images are renormalised for the teacher.
        recipe: Recipe with the kind of distillation.
        classes: Number of classes of the student.
    """

    def __init__(self, teacher: nn.Module, student: Preprocessing, recipe: Recipe, classes: int) -> None:
        from unsmooth.hosts.outputs import forward

        self.teacher, self.recipe, self._forward = teacher, recipe, forward
        size = image_size(teacher)
        if size != student.size:
            raise UnsmoothError(f"teacher and student must have the same input size (got {size} and {student.size})")
        teacher_config = preprocessing(teacher)
        mean, std, to_mean, to_std = (
            torch.tensor(values).view(-1, 1, 1)
            for values in (student.mean, student.std, teacher_config.mean, teacher_config.std)
        )
        self.scale, self.shift = std / to_std, (mean - to_mean) / to_std
        with torch.no_grad():
            outputs = forward(teacher, torch.zeros(1, *size)).shape[-1]
        if outputs != classes:
            raise UnsmoothError(f"the teacher {recipe.teacher} has {outputs} classes, but the data has {classes}")

    def to(self, device: torch.device) -> Distillation:
        self.teacher.to(device)
        self.scale, self.shift = self.scale.to(device), self.shift.to(device)
        return self

    def __call__(self, images: Tensor, logits: Tensor) -> Tensor:
        with torch.no_grad():
            target_logits = self._forward(self.teacher, images * self.scale + self.shift)
        if self.recipe.distillation == "hard":
            return F.cross_entropy(logits, target_logits.argmax(dim=1))
        tau = self.recipe.distillation_tau
        soft, target = F.log_softmax(logits / tau, dim=1), F.log_softmax(target_logits / tau, dim=1)
        return F.kl_div(soft, target, reduction="batchmean", log_target=True) * tau**2


def split_outputs(output: Any) -> tuple[Tensor, Tensor]:
    """Logits of the class head and of the distillation head, which are the same for hosts with one head."""
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, Tensor) for part in output):
        return output[0], output[1]
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits, logits
