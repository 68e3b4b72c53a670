"""σReparam (Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse, ICML 2023).

    Ŵ = (γ/σ(W))·W,   σ(W) the largest singular value,   γ learned, one per layer

for every linear layer of the blocks. The spectral norm of Ŵ is |γ| at all times, so it changes only as fast as one
number is learned, and the attention scores cannot grow without notice. σ(W) = uᵀWv is followed by one power iteration
per training step. γ starts from σ(W), so Ŵ = W: a pretrained host is unchanged. The gradient reaches W through both
factors, with u and v held constant.

The weights of the host stay its parameters and are still trained. `unsmooth.fold` stores Ŵ in their place.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block, Linear
from unsmooth.remedies.base import Placement, Remedy, WeightPatch, branch_names, register
from unsmooth.seam.carried import is_recomputed
from unsmooth.utils.options import option, options
from unsmooth.utils.precision import without_autocast


@options
class SigmaReparamOptions:
    branch: Literal["both", "attn", "mlp"] = option("branch whose linear layers are reparametrised", default="both")


class SpectralWeight(WeightPatch):
    """A weight with a learned spectral norm."""

    u: Tensor
    v: Tensor

    def __init__(self, linear: Linear):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1))  # FSDP2 shards no scalars
        self.register_buffer("u", torch.ones(linear.outputs))  # set by `start_from`
        self.register_buffer("v", torch.ones(linear.inputs))

    @torch.no_grad()
    def start_from(self, host: Tensor) -> None:
        wide = host.detach().double()
        tall = wide.shape[0] > wide.shape[1]
        vectors = torch.linalg.eigh(wide.mT @ wide if tall else wide @ wide.mT).eigenvectors
        top = vectors[:, -1]
        self.u.copy_(F.normalize(wide @ top, dim=0) if tall else top)
        self.v.copy_(top if tall else F.normalize(wide.mT @ top, dim=0))
        self.gamma.copy_(self.sigma(host))

    def sigma(self, weight: Tensor) -> Tensor:
        """uᵀWv of unit vectors; in training after one power iteration."""
        u, v = (F.normalize(vector.to(weight.dtype), dim=0) for vector in (self.u, self.v))
        if self.training and torch.is_grad_enabled() and not is_recomputed():
            with torch.no_grad():
                v = F.normalize(weight.mT @ u, dim=0)
                u = F.normalize(weight @ v, dim=0)
                self.u.copy_(u)
                self.v.copy_(v)
        return u @ (weight @ v)

    def forward(self, weight: Tensor) -> Tensor:
        with without_autocast(weight):
            wide = weight if weight.dtype == torch.float64 else weight.float()
            return wide * (self.gamma / self.sigma(wide))


@register
class SigmaReparam(Remedy[SigmaReparamOptions]):
    key = "sigma_reparam"
    title = "σReparam"
    paper = "Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse, ICML 2023"
    acts_on = "weights of linear layers"
    Options = SigmaReparamOptions
    parameters = "gamma (one per layer); buffers u, v"
    conflicts = ("adder",)
    departures = (
        "The equation is from a summary of the paper, not from its text. The paper starts from γ = 1; γ = σ(W) leaves "
        "a pretrained host unchanged. A layer that computes q, k and v at once counts as one. Patch embedding and head "
        "stay as they are. u and v start from the singular vectors of W, not at random."
    )

    def exact(self, options: SigmaReparamOptions) -> bool:
        return True

    def layers(self, block: Block, options: SigmaReparamOptions) -> list[tuple[str, Linear]]:
        return [(name, linear) for name in branch_names(options.branch) for linear in block.branch(name).linears]

    def place(self, block: Block, anatomy: Anatomy, options: SigmaReparamOptions) -> list[Placement]:
        layers = self.layers(block, options)
        if not layers:
            raise NotApplicable("its attention and MLP have no linear layers")
        return [Placement(block.name, SpectralWeight(linear), name, linear.weight) for name, linear in layers]

    def flops(self, block: Block, anatomy: Anatomy, options: SigmaReparamOptions) -> int:
        return sum(3 * linear.inputs * linear.outputs for _, linear in self.layers(block, options))
