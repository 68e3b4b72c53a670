"""DiversePatch losses (Gong et al., Vision Transformers with Patch Diversification, 2021, arXiv 2104.12753).

    cosine        1/(n(n−1)) Σ_{i≠j} |cos(h_i, h_j)|
    contrastive   −1/n Σ_i log( exp(g_i·h_i) / (exp(g_i·h_i) + exp(g_i·m_i)) ),   m_i = mean of h_j over j ≠ i

h are the patch tokens after the last block, g those after the first block, detached. Both losses are means over images.
The outputs do not change; the training loop adds the weighted sum to its loss after each forward pass
(`unsmooth.surgery.auxiliary_loss`):

    loss = criterion(model(images), labels) + auxiliary_loss(model)

Class, distillation, register and text tokens are excluded, as many as in the example input of the host. The contrastive
loss needs a first and a last block of the same size: on hierarchical hosts only the cosine loss is used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.errors import NotApplicable, UnsmoothError
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.token_layout import prefix_of
from unsmooth.remedies.base import LossRemedy, Placement, TokenBuffer, register
from unsmooth.utils.options import option, options
from unsmooth.utils.precision import without_autocast


@options
class DiversePatchOptions:
    cosine: float = option("weight of the cosine loss; 0 turns it off", default=0.5, low=0.0)
    contrastive: float = option("weight of the contrastive loss; 0 turns it off", default=0.5, low=0.0)

    def __post_init__(self) -> None:
        if not self.cosine and not self.contrastive:
            raise ValueError("cosine=0 and contrastive=0 leave no loss. Set at least one of them above 0.")


def cosine_loss(h: Tensor) -> Tensor:
    """Mean |cos| over all pairs of different tokens of the same image, (B, n, d)."""
    u = F.normalize(h, dim=-1)
    similar = (u @ u.mT).abs()
    n = h.shape[-2]
    return (similar.sum() - similar.diagonal(dim1=-2, dim2=-1).sum()) / (len(h) * n * (n - 1))


def contrastive_loss(g: Tensor, h: Tensor) -> Tensor:
    """Mean of log(1 + e^(g·m − g·h)): small if g is more similar to its own h than to the mean m of the others."""
    g = g.detach()
    others = (h.sum(dim=-2, keepdim=True) - h) / (h.shape[-2] - 1)
    return F.softplus((g * (others - h)).sum(dim=-1)).mean()


@register
class DiversePatch(LossRemedy[DiversePatchOptions]):
    key = "diverse_patch"
    title = "Patch diversification"
    paper = "Gong et al., Vision Transformers with Patch Diversification, 2021"
    acts_on = "training loss"
    Options = DiversePatchOptions
    departures = (
        "The equations and weights are from a summary of the paper, not from its text. The authors' code has no cosine "
        "loss, and contrasts detached patch embeddings with the tokens after the final norm, against the mean of all "
        "tokens and the mean of a neighbourhood. Here the detached outputs of the first block are contrasted with the "
        "outputs of the last block, before the final norm and not normalised, against the mean of the others. The "
        "patch mixing loss is not included: it needs mixed images and a patch head."
    )

    def blocks(self, anatomy: Anatomy, options: DiversePatchOptions) -> list[int]:
        last = len(anatomy.blocks) - 1
        return sorted({0, last}) if options.contrastive else [last]

    def place(self, block: Block, anatomy: Anatomy, options: DiversePatchOptions) -> list[Placement]:
        first, last = anatomy.blocks[0], anatomy.blocks[-1]
        if options.contrastive:
            if first is last:
                raise NotApplicable("the contrastive loss compares two blocks and the host has one; use contrastive=0")
            early, late = (f"{b.tokens} tokens of {b.channels} channels" for b in (first, last))
            if early != late and (block is first or not options.cosine):
                raise NotApplicable(
                    f"the contrastive loss needs blocks of the same size; the first has {early}, the last {late}"
                )
        if block.tokens - prefix_of(block, anatomy) < 2:
            raise NotApplicable("it has fewer than two patch tokens")
        return [Placement(block.point("output"), TokenBuffer(block, anatomy))]

    def loss(self, stored: list[Tensor], options: DiversePatchOptions) -> Tensor:
        with without_autocast(stored[-1]):
            *first, last = (x if x.dtype == torch.float64 else x.float() for x in stored)
            total = last.new_zeros(())
            if options.cosine:
                total = total + options.cosine * cosine_loss(last)
            for early in first:
                if early.shape != last.shape:
                    sizes = f"{tuple(early.shape)} from the first block and {tuple(last.shape)} from the last"
                    raise UnsmoothError(
                        f"the contrastive loss received tokens of {sizes}. Use diverse_patch(contrastive=0)."
                    )
                total = total + options.contrastive * contrastive_loss(early, last)
            return total
