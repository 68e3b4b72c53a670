"""DiversePatch losses (Gong et al., Vision Transformers with Patch Diversification, 2021, arXiv 2104.12753).

    cosine        1/(n(n−1)) Σ_{i≠j} |cos(h_i, h_j)|
    contrastive   −1/n Σ_i log( exp(g_i·h_i) / (exp(g_i·h_i) + exp(g_i·m_i)) ),   m_i = mean of h_j over j ≠ i

h are the patch tokens that leave the last block, g those that leave the first, held constant. Both losses are means
over images. Outputs never change; the training loop adds the weighted sum to its loss, after each forward pass
(`unsmooth.surgery.auxiliary_loss`):

    loss = criterion(model(images), labels) + auxiliary_loss(model)

Class, distillation, register and text tokens are left out, as many as the host's example had. The contrastive loss
needs a first and a last block of one size: on hierarchical hosts it is left out, and the cosine loss works alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.errors import NotApplicable, UnsmoothError
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.token_layout import prefix_of
from unsmooth.remedies.base import LossRemedy, Option, Options, Placement, TokenBuffer, register


def cosine_loss(h: Tensor) -> Tensor:
    """Mean |cos| over all pairs of different tokens of an image, (B, n, d)."""
    u = F.normalize(h, dim=-1)
    similar = (u @ u.mT).abs()
    n = h.shape[-2]
    return (similar.sum() - similar.diagonal(dim1=-2, dim2=-1).sum()) / (len(h) * n * (n - 1))


def contrastive_loss(g: Tensor, h: Tensor) -> Tensor:
    """How badly an early token tells its own late token from the mean of the others: log(1 + e^(g·m − g·h))."""
    g = g.detach()
    others = (h.sum(dim=-2, keepdim=True) - h) / (h.shape[-2] - 1)
    return F.softplus((g * (others - h)).sum(dim=-1)).mean()


@register
class DiversePatch(LossRemedy):
    key = "diverse_patch"
    title = "Patch diversification"
    paper = "Gong et al., Vision Transformers with Patch Diversification, 2021"
    acts_on = "training loss"
    options = {
        "cosine": Option(0.5, "weight of the cosine loss; 0 turns it off", low=0.0),
        "contrastive": Option(0.5, "weight of the contrastive loss; 0 turns it off", low=0.0),
    }
    departures = (
        "The paper's text was not at hand: equations and weights are from a summary of it. The authors' code was read: "
        "it has no cosine loss, and contrasts patch embeddings, held constant, with the tokens behind the final norm, "
        "against the mean of all tokens and that of a neighbourhood. Ours are the outputs of the first block, held "
        "constant too, and of the last, in front of the final norm and not normalised, against the mean of the others. "
        "The patch mixing loss is not offered: it needs mixed images and a head for patches."
    )

    def read(self, given: Options) -> dict[str, Any]:
        options = super().read(given)
        if not any(options.values()):
            raise UnsmoothError("diverse_patch(cosine=0, contrastive=0) has no loss left; give one of them a weight")
        return options

    def blocks(self, anatomy: Anatomy, options: Options) -> list[int]:
        last = len(anatomy.blocks) - 1
        return sorted({0, last}) if options["contrastive"] else [last]

    def place(self, block: Block, anatomy: Anatomy, options: Options) -> list[Placement]:
        first, last = anatomy.blocks[0], anatomy.blocks[-1]
        if options["contrastive"]:
            if first is last:
                raise NotApplicable(
                    "the contrastive loss compares two blocks, and this host has one; use contrastive=0"
                )
            early, late = (f"{b.tokens} tokens of {b.channels} channels" for b in (first, last))
            if early != late and (block is first or not options["cosine"]):
                raise NotApplicable(
                    f"the contrastive loss needs blocks of one size; the first has {early}, the last {late}"
                )
        if block.tokens - prefix_of(block, anatomy) < 2:
            raise NotApplicable("it has no two patch tokens to tell apart")
        return [Placement(HookPoint(block.name, "output"), TokenBuffer(block, anatomy))]

    def loss(self, tokens: list[Tensor], options: Options) -> Tensor:
        with torch.autocast(tokens[-1].device.type, enabled=False):
            *first, last = (x if x.dtype == torch.float64 else x.float() for x in tokens)
            total = last.new_zeros(())
            if options["cosine"]:
                total = total + options["cosine"] * cosine_loss(last)
            for early in first:
                if early.shape != last.shape:
                    sizes = f"{tuple(early.shape)} from the first block and {tuple(last.shape)} from the last"
                    raise UnsmoothError(f"the contrastive loss got tokens of {sizes}; use diverse_patch(contrastive=0)")
                total = total + options["contrastive"] * contrastive_loss(early, last)
            return total
