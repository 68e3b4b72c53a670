"""Int8 adder layers of a folded model: bytes in place of the weights of `adder`, the same LayerNorm after them.

The kernels, and why no images are needed for the scales, are in `unsmooth.remedies.kernels.adder_int8`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.remedies.adder import AdderLinear, normalized_adder
from unsmooth.remedies.adder_attention import AdderScores
from unsmooth.remedies.base import LinearPatch
from unsmooth.remedies.kernels.adder_int8 import adder_linear_int8, pack, quantize, unpack


class Int8AdderLinear(LinearPatch):
    """An adder layer with a byte per weight, one step per layer and one zero point per input channel."""

    weight: Tensor
    zero: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, layer: AdderLinear):
        super().__init__()
        weight, zero, step = quantize(layer.weight.detach())
        self.step, self.width = float(step), layer.weight.shape[0] // layer.projections
        self.eta, self.gain, self.projections = layer.eta, layer.gain, layer.projections
        self.register_buffer("weight", pack(weight))
        self.register_buffer("zero", zero[0].to(torch.int32))
        self.register_buffer("scale", layer.scale.detach())
        self.register_buffer("shift", layer.shift.detach())

    def forward(self, x: Tensor) -> Tensor:
        out = adder_linear_int8(x.detach(), self.weight, self.zero, self.step, self.width, self.scale, self.shift)
        if torch.is_grad_enabled() and x.requires_grad:  # the gradient of the layer that the bytes stand for
            weight = (unpack(self.weight, len(self.scale), len(self.zero)) + self.zero) * self.step
            exact = normalized_adder(x, weight, self.scale, self.shift, self.projections, self.eta, self.gain)
            out = exact + (out - exact).detach()
        return out.to(self.scale.dtype)


def to_int8(patch: nn.Module) -> nn.Module:
    """The int8 form of a patch of an adder remedy, all of which have one."""
    if isinstance(patch, AdderLinear):
        return Int8AdderLinear(patch)
    assert isinstance(patch, AdderScores)
    patch.int8 = True
    return patch
