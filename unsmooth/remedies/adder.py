"""The adder transformer (Shu et al., Adder Attention for Vision Transformer, NeurIPS 2021; AdderNet, CVPR 2020).

Adder attention, and every linear layer of the blocks (q, k, v, projection, both MLP layers) replaced by

    y_o = −Σ_j |x_j − W_oj|, then LayerNorm,   W ~ N(0, 1)

trained with AdderNet's gradients: dW = Σ(x − W)g rescaled to η√k/‖dW‖ (k its size), dx = Σ clamp(gain·(W − x),
−1, 1)g. No temporary of size tokens × inputs × outputs is made, forward or backward.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Block, Linear
from unsmooth.remedies.adder_attention import IDENTITY, adder_scores
from unsmooth.remedies.base import LinearPatch, Option, Options, Placement, Remedy, register
from unsmooth.remedies.kernels.adder import adder_linear


class AdderLinear(LinearPatch):
    """Negative L1 distances to learned templates, normalised. A layer that makes q, k and v norms each apart."""

    def __init__(self, linear: Linear, eta: float, gain: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(linear.outputs, linear.inputs))
        self.scale = nn.Parameter(torch.ones(linear.outputs))
        self.shift = nn.Parameter(torch.zeros(linear.outputs))
        self.parts, self.eta, self.gain = linear.parts, eta, gain
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = adder_linear(x, self.weight, self.eta, self.gain)
        y = F.layer_norm(y.unflatten(-1, (self.parts, -1)), (y.shape[-1] // self.parts,)).flatten(-2)
        return torch.addcmul(self.shift, y.to(self.scale.dtype), self.scale)


@register
class Adder(Remedy):
    key = "adder"
    title = "Adder transformer"
    paper = "Shu et al., Adder Attention for Vision Transformer, NeurIPS 2021; Chen et al., AdderNet, CVPR 2020"
    acts_on = "attention and linear layers"
    options = {
        "identity": IDENTITY,
        "gain": Option(1.0, "slope of the clamp in the gradient of the inputs", above=0.0),
        "eta": Option(0.2, "size of the rescaled weight gradient", above=0.0),
    }
    parameters = "weight, scale, shift of each layer"
    conflicts = ("adder_attention", "l2_attention", "logistic_attention")
    fused = "no: explicit map"
    departures = (
        "Patch embedding, head and convolutions stay multiplicative. Weight gradients are rescaled in each backward "
        "pass, so with gradient accumulation or several processes in each part of the batch. The host's own linear "
        "weights are kept, frozen and unused, so that it can be removed again."
    )

    def place(self, block: Block, anatomy: Anatomy, options: Options) -> list[Placement]:
        scores = adder_scores(block, options["identity"], options["gain"])
        linears = [
            Placement(block.name, AdderLinear(linear, options["eta"], options["gain"]), which, linear.weight)
            for which in ("attn", "mlp")
            for linear in block.branch(which).linears
        ]
        return [scores, *linears]

    def flops(self, block: Block, anatomy: Anatomy, options: Options) -> int:
        # An absolute difference and its sum are two operations, as a multiply-add is: only the norms are new.
        outputs = sum(linear.outputs for which in ("attn", "mlp") for linear in block.branch(which).linears)
        return 7 * block.tokens * outputs
