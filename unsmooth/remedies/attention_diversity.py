"""Attention diversity loss (Chen et al., The Principle of Diversity, CVPR 2022).

    1/(H(H−1)) Σ_{g≠h} |cos(A_g, A_h)|,   A_h the map of head h, all its entries as one vector

as a mean over blocks and images (and windows). Heads with the same map do the same work: the loss pushes them apart.
The outputs do not change; the training loop adds the weighted term to its loss after each forward pass
(`unsmooth.surgery.auxiliary_loss`). The maps are those that the host applies, with its masks, and other remedies that
were applied before. A fused host computes its maps once more in training; in inference nothing is computed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.remedies.base import LossRemedy, MapBuffer, Placement, register, token_attention
from unsmooth.utils.options import option, options
from unsmooth.utils.precision import without_autocast


@options
class AttentionDiversityOptions:
    weight: float = option("weight of the loss", default=0.5, above=0.0)


def head_similarity(maps: Tensor) -> Tensor:
    """Mean |cos| over all pairs of different heads of (…, heads, queries, keys)."""
    unit = F.normalize(maps.flatten(-2), dim=-1)
    similar = (unit @ unit.mT).abs()
    heads = maps.shape[-3]
    same = similar.diagonal(dim1=-2, dim2=-1).sum(-1)
    return ((similar.sum((-2, -1)) - same) / (heads * (heads - 1))).mean()


@register
class AttentionDiversity(LossRemedy[AttentionDiversityOptions]):
    key = "attention_diversity"
    title = "Attention diversity"
    paper = (
        "Chen et al., The Principle of Diversity: Training Stronger Vision Transformers Calls for Reducing All Levels "
        "of Redundancy, CVPR 2022"
    )
    acts_on = "training loss"
    Options = AttentionDiversityOptions
    fused = "yes; in training the maps are computed besides"
    departures = (
        "The paper is known from summaries, not from its text. It reduces the redundancy of tokens, maps and weights; "
        "this is the part of the maps, with the cosine of whole maps as the similarity. The weight is our choice."
    )

    def blocks(self, anatomy: Anatomy, options: AttentionDiversityOptions) -> list[int]:
        return list(range(len(anatomy.blocks)))

    def place(self, block: Block, anatomy: Anatomy, options: AttentionDiversityOptions) -> list[Placement]:
        attention = token_attention(block)
        if attention.heads < 2:
            raise NotApplicable("its attention has one head")
        return [Placement(attention.core, MapBuffer(attention))]

    def loss(self, stored: list[Tensor], options: AttentionDiversityOptions) -> Tensor:
        with without_autocast(stored[-1]):
            wide = [maps if maps.dtype == torch.float64 else maps.float() for maps in stored]
            return options.weight * torch.stack([head_similarity(maps) for maps in wide]).mean()
