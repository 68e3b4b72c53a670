"""Images that are harder than they were: a hole in the centre, and a step against the model."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.outputs import forward

WHITE = 255.0


def hole(height: int, width: int, share: float) -> tuple[int, int]:
    """Height and width of a box shaped like the image that covers a share of its area, to whole pixels."""
    if not 0 < share <= 1:
        raise UnsmoothError(f"occlusion covers a share of the area, above 0 and at most 1, not {share:g}")
    sides = round(height * sqrt(share)), round(width * sqrt(share))
    if 0 in sides:
        raise UnsmoothError(f"occlusion of {share:g} is less than a pixel of {height} × {width}; take a larger share")
    return sides


def occlude(images: Tensor, share: float) -> Tensor:
    """Normalised images whose centre is the mean pixel of the host's normalisation, which is 0.

    The hole is a square where the image is one. It covers `share` of the area.
    """
    height, width = images.shape[-2:]
    tall, wide = hole(height, width, share)
    top, left = (height - tall) // 2, (width - wide) // 2
    covered = images.clone()
    covered[..., top : top + tall, left : left + wide] = 0
    return covered


def check_epsilon(epsilon_pixels: float) -> None:
    if not 0 < epsilon_pixels <= WHITE:
        raise UnsmoothError(f"FGSM takes a step in pixels, above 0 and at most {WHITE:g}, not {epsilon_pixels:g}")


def fgsm(
    model: nn.Module, images: Tensor, labels: Tensor, epsilon_pixels: float, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """One step of the fast gradient sign method: x' = clip(x + ε sign ∇ loss, 0, 255), in pixels of 0 to 255.

    `images` are normalised by `mean` and `std`, and so is what comes back. The loss is the cross-entropy, in the
    model's own precision: in mixed precision small gradients underflow and have no sign.
    """
    check_epsilon(epsilon_pixels)
    centre, scale = (torch.tensor(v, device=images.device, dtype=images.dtype).view(-1, 1, 1) for v in (mean, std))
    with torch.enable_grad(), torch.autocast(images.device.type, enabled=False):
        given = images.detach().requires_grad_()
        # The sum, so that an image's gradient does not depend on the batch that it is in.
        loss = F.cross_entropy(forward(model, given).float(), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, given)
    # Normalisation has positive slope, so the sign is that of the gradient by pixels.
    pixels = (images * scale + centre) * WHITE + epsilon_pixels * gradient.sign()
    return (pixels.clamp(0, WHITE) / WHITE - centre) / scale
