"""The adder transformer (Shu et al., Adder Attention for Vision Transformer, NeurIPS 2021; AdderNet, CVPR 2020).

Adder attention, and every linear layer of the blocks (q, k, v, projection, both MLP layers) replaced by

    y_o = −Σ_j |x_j − W_oj|, then LayerNorm,   W ~ N(0, 1)

trained with the gradients of AdderNet: dW = Σ(x − W)g rescaled to η√k/‖dW‖ (k the size of W),
dx = Σ clamp(gain·(W − x), −1, 1)g. Neither pass allocates a temporary of size tokens × inputs × outputs.

The supplement of the paper prints the block (its Figure 1): adder attention and an adder MLP, each with a residual
connection and LayerNorm before it. The gradients are those of AdderNet's code. The LayerNorm after every adder layer is
a third party's account of the paper; the initial weights are AdderNet's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Block, Linear
from unsmooth.remedies.adder_attention import AdderAttentionOptions, place_adder_scores
from unsmooth.remedies.base import LinearPatch, Placement, Remedy, other_scores, register
from unsmooth.remedies.kernels.adder import adder_linear
from unsmooth.utils.options import option, options


@options
class AdderOptions(AdderAttentionOptions):
    gain: float = option("slope of the clamp in the gradient of the inputs", default=1.0, above=0.0)
    eta: float = option("norm of the rescaled weight gradient", default=0.2, above=0.0)


def normalized_adder(
    x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, projections: int, eta: float, gain: float
) -> Tensor:
    """An adder layer and its norm, which is taken over each projection (q, k and v) by itself."""
    y = adder_linear(x, weight, eta, gain)
    width = y.shape[-1] // projections
    y = F.layer_norm(y.unflatten(-1, (projections, -1)), (width,)).flatten(-2)
    return torch.addcmul(shift, y.to(scale.dtype), scale)


class AdderLinear(LinearPatch):
    """Negative L1 distances to learned templates, normalised. The outputs for q, k and v are normalised separately."""

    def __init__(self, linear: Linear, eta: float, gain: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(linear.outputs, linear.inputs))
        self.scale = nn.Parameter(torch.ones(linear.outputs))
        self.shift = nn.Parameter(torch.zeros(linear.outputs))
        self.projections, self.eta, self.gain = linear.projections, eta, gain
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return normalized_adder(x, self.weight, self.scale, self.shift, self.projections, self.eta, self.gain)


@register
class Adder(Remedy[AdderOptions]):
    key = "adder"
    title = "Adder transformer"
    paper = "Shu et al., Adder Attention for Vision Transformer, NeurIPS 2021; Chen et al., AdderNet, CVPR 2020"
    acts_on = "attention and linear layers"
    Options = AdderOptions
    parameters = "weight, scale, shift of each layer"
    conflicts = (*other_scores("adder"), "sigma_reparam")
    fused = "no: explicit map"
    departures = (
        "The supplement prints LayerNorm before attention and MLP; the one after every adder layer is a third party's "
        "account. Patch embedding, head and convolutions stay multiplicative (our reading). Weight gradients are "
        "rescaled in each backward pass: with gradient accumulation or several processes, per part of the batch. The "
        "host's own linear weights stay in the model, frozen and unused, so that the remedy can be removed."
    )

    def place(self, block: Block, anatomy: Anatomy, options: AdderOptions) -> list[Placement]:
        scores = place_adder_scores(block, options.identity, options.gain)
        linears = [
            Placement(block.name, AdderLinear(linear, options.eta, options.gain), branch, linear.weight)
            for branch in ("attn", "mlp")
            for linear in block.branch(branch).linears
        ]
        return [scores, *linears]

    def flops(self, block: Block, anatomy: Anatomy, options: AdderOptions) -> int:
        # An absolute difference and its sum are two operations, as is a multiply-add: only the norms are new.
        outputs = sum(linear.outputs for branch in ("attn", "mlp") for linear in block.branch(branch).linears)
        return 7 * block.tokens * outputs
