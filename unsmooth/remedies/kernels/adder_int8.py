"""Adder layers and scores in 8-bit integers, for inference.

The difference of two bytes needs one scale for both. The range is that of the right factor (weights or keys), and the
left one is clipped to it, which changes nothing that is used: an input x_j above every weight of its channel adds the
same x_j − max_o W_oj to every output, and LayerNorm (or softmax, for scores) removes what is equal for all outputs. So
no images are needed to calibrate a range. With one step s and an integer zero point per channel,

    X_j = clip(⌊x_j/s + ½⌋ − z_j, 0, 255)    W'_oj = ⌊W_oj/s + ½⌋ − z_j,    z_j = min_o ⌊W_oj/s + ½⌋
    y_o = −s·Σ_j |X_j − W'_oj|               s = max_j (max_o W_oj − min_o W_oj) / 254

Sums are exact integers. Weights have one step per layer; keys have one per image and head, from their own range.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.remedies.kernels import adder

LEVELS = 254  # one fewer than bytes have: rounding may widen a range by one step
GROUP = 8  # outputs of a panel, and inputs of a group: x86 sums the differences of eight bytes


def quantize(right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The bytes of (…, outputs, inputs), their zero points (…, 1, inputs) and their step (…, 1, 1)."""
    right = right.float()
    low, high = right.amin(-2, keepdim=True), right.amax(-2, keepdim=True)
    step = (high - low).amax(-1, keepdim=True) / LEVELS
    step = torch.where(step > 0, step, 1.0)
    zero = (low * step.reciprocal() + 0.5).floor()
    return to_bytes(right, zero, step), zero, step


def to_bytes(x: Tensor, zero: Tensor, step: Tensor) -> Tensor:
    return (x * step.reciprocal() - (zero - 0.5)).clamp(0, 255).to(torch.uint8)


def pack(weight: Tensor) -> Tensor:
    """Bytes (outputs, inputs) as panels of 8 outputs: (panels, groups of inputs, 8 outputs, 8 inputs)."""
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, -inputs % GROUP, 0, -outputs % GROUP))
    return padded.unflatten(1, (-1, GROUP)).unflatten(0, (-1, GROUP)).transpose(1, 2).contiguous()


def unpack(packed: Tensor, outputs: int, inputs: int) -> Tensor:
    return packed.transpose(1, 2).flatten(2).flatten(0, 1)[:outputs, :inputs]


@torch.library.custom_op("unsmooth::adder_linear_int8", mutates_args=())
def adder_linear_int8(
    x: Tensor, packed: Tensor, zero: Tensor, step: float, width: int, scale: Tensor, shift: Tensor
) -> Tensor:
    """An adder layer with packed weights, LayerNorm over spans of `width` outputs, scale and shift, in fp32."""
    rows = x.reshape(-1, x.shape[-1]).float()
    scale, shift, offset = scale.float(), shift.float(), zero.float()
    compiled = adder.compiled_for(rows, scale)
    if compiled is not None:
        out: Tensor = compiled.linear_int8(rows, packed, offset - 0.5, step, width, scale, shift)
    else:
        bytes_ = to_bytes(rows, offset, torch.tensor(step, device=x.device))
        weight = unpack(packed, len(scale), x.shape[-1])
        y = step * adder.l1_scores(bytes_.float(), weight.float())  # sums of integers, which fp32 holds exactly
        y = F.layer_norm(y.unflatten(-1, (-1, width)), (width,)).flatten(-2)
        out = torch.addcmul(shift, y, scale)
    return out.view(*x.shape[:-1], len(scale))


@adder_linear_int8.register_fake
def _(x: Tensor, packed: Tensor, zero: Tensor, step: float, width: int, scale: Tensor, shift: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], scale.shape[0], dtype=torch.float32)


@torch.library.custom_op("unsmooth::l1_scores_int8", mutates_args=())
def l1_scores_int8(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Scores ``-scale * sum_c |q_nc - k_mc|`` plus a number per query, which softmax removes, in fp32."""
    batch = math.prod(q.shape[:-2])
    left, right = (x.reshape(batch, *x.shape[-2:]).float() for x in (q, k))
    compiled = adder.compiled_for(left, right)
    if compiled is not None:
        scores: Tensor = compiled.scores_int8(left, right, scale)
    else:
        keys, zero, step = quantize(right) if right.numel() else (right, right, right)
        scores = adder.l1_scores(to_bytes(left, zero, step).float(), keys.float()) * (step * scale)
    return scores.view(*q.shape[:-1], k.shape[-2])


@l1_scores_int8.register_fake
def _(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return q.new_empty(*q.shape[:-1], k.shape[-2], dtype=torch.float32)
