"""Perturbations of images: centre occlusion and FGSM."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.outputs import forward
from unsmooth.utils.precision import without_autocast

WHITE = 255.0


def hole(height: int, width: int, share: float) -> tuple[int, int]:
    """Height and width in pixels of a box that covers a share of the image area and has its aspect ratio."""
    if not 0 < share <= 1:
        raise UnsmoothError(f"occlusion must be a share of the area, above 0 and at most 1 (got {share:g}).")
    sides = round(height * sqrt(share)), round(width * sqrt(share))
    if 0 in sides:
        raise UnsmoothError(f"occlusion of {share:g} is less than a pixel of {height} × {width}. Use a larger share.")
    return sides


def occlude(images: Tensor, share: float) -> Tensor:
    """Replace the centre of normalised images by the mean pixel, which is 0.

    The box covers `share` of the area and has the aspect ratio of the image.
    """
    height, width = images.shape[-2:]
    tall, wide = hole(height, width, share)
    top, left = (height - tall) // 2, (width - wide) // 2
    covered = images.clone()
    covered[..., top : top + tall, left : left + wide] = 0
    return covered


def check_epsilon(epsilon_pixels: float) -> None:
    if not 0 < epsilon_pixels <= WHITE:
        raise UnsmoothError(f"the FGSM step must be in pixels, above 0 and at most {WHITE:g} (got {epsilon_pixels:g}).")


def fgsm(
    model: nn.Module, images: Tensor, labels: Tensor, epsilon_pixels: float, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """One step of the fast gradient sign method: x' = clip(x + ε sign ∇ loss, 0, 255), in pixels of 0 to 255.

    `images` and the result are normalised by `mean` and `std`. The loss is the cross-entropy in the model's own
    precision: in mixed precision, small gradients underflow to zero.
    """
    check_epsilon(epsilon_pixels)
    centre, scale = (torch.tensor(v, device=images.device, dtype=images.dtype).view(-1, 1, 1) for v in (mean, std))
    with torch.enable_grad(), without_autocast(images):
        inputs = images.detach().requires_grad_()
        # The sum, so that the gradient of an image does not depend on its batch.
        loss = F.cross_entropy(forward(model, inputs).float(), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, inputs)
    # Normalisation has positive slope, so the sign is that of the gradient by pixels.
    pixels = (images * scale + centre) * WHITE + epsilon_pixels * gradient.sign()
    return (pixels.clamp(0, WHITE) / WHITE - centre) / scale
