"""How fast attention may smooth, and how fast it does: the bounds of Theorem 3 and Propositions 4 to 6, by depth.

For a trained model with parts removed (`unsmooth.diagnosis.bounds.ablation`): one head alone (Theorem 3), all heads (Proposition 4),
with the skip (Proposition 5), with MLP and its skip (Proposition 6): the anti-oversmoothing paper's Figure 1. Each is
ln of what the bound allows ‖HC[X_l]‖_F / ‖HC[X_0]‖_F to be; `.measured` is what it is. The measured curve never lies
above the bound. The bounds rise with depth: they do not prove that a model collapses (see `unsmooth.theory`).

The theorems know no norm layers and no layer scale. Their effect on ‖HC‖ is measured in the same pass and multiplied
in; weights enter by their spectral norms, logits by α = max |P|. "One head" is the first one with its slice of the
output projection. Plain pre-norm hosts only: attention and an MLP of two layers, each with a skip.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.diagnosis.bounds.ablation import VARIANTS, Passage, passages, remove_parts
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.weights import mlp_layers, projection, value_rows
from unsmooth.surgery.record import applied
from unsmooth.theory import anti_oversmoothing as theory
from unsmooth.theory.matrices import spectral
from unsmooth.vitals.base import THEORY_SAMPLE, Undefined, register

HARMLESS = ("token_graying", "diverse_patch")  # remedies that leave the branches of a block as they are


@register(
    title="smoothing bounds",
    formula="Σ ln(factor of Theorem 3, Propositions 4–6) against ln(‖HC[X_l]‖_F/‖HC[X_0]‖_F)",
    reading="the measured curve lies below the bound; the gap says how loose the theory is",
    family="theory",
    of="model",
    main="whole",
    sample=THEORY_SAMPLE,
    parts=(
        ("attention", "one head, no skip, no MLP: Theorem 3"),
        ("heads", "all heads, no skip, no MLP: Proposition 4"),
        ("skip", "all heads with the skip, no MLP: Proposition 5"),
        ("whole", "the model as it is: Propositions 5 and 6"),
        ("*.measured", "what is measured under the same parts"),
    ),
)
def smoothing_bound(model: nn.Module, anatomy: Anatomy, images: Tensor, blocks: list[int]) -> dict[str, list[Tensor]]:
    foreign = [part.name for part in applied(model).remedies if part.name not in HARMLESS]
    if foreign:
        raise Undefined(f"the bounds are for plain blocks, and this model has {', '.join(foreign)}")
    out: dict[str, list[Tensor]] = {}
    for variant in VARIANTS:
        found = passages(remove_parts(model, anatomy, variant), anatomy, images)
        factors = [block_factor(model, block, found[block.index], variant) for block in anatomy.blocks]
        first = found[0].size["before"]
        out[variant] = list(torch.stack(factors).log().cumsum(dim=0))
        out[f"{variant}.measured"] = [(passage.size["after"] / first).log() for passage in found]
    return out


def block_factor(model: nn.Module, block: Block, passage: Passage, variant: str) -> Tensor:
    """What the bounds allow ‖HC‖ to grow by in one block, for each image."""
    attention = around(passage, "attn") * attention_factor(model, block, passage, alone=variant == "attention")
    if variant in ("attention", "heads"):
        return attention
    with_skip = theory.skip_bound(attention)
    if variant == "skip":
        return with_skip
    return theory.ffn_skip_bound(with_skip, around(passage, "mlp") * theory.mlp_lipschitz(*mlp_layers(model, block)))


def around(passage: Passage, branch: str) -> Tensor:
    """What norm and layer scale around a branch do to ‖HC‖: measured, not bounded."""
    size = passage.size
    before = size["before"] if branch == "attn" else size["between"]
    return size[f"{branch} read"] / before * size[f"{branch} added"] / size[f"{branch} given"]


def attention_factor(model: nn.Module, block: Block, passage: Passage, alone: bool) -> Tensor:
    attention = block.attention()
    assert passage.alpha is not None
    values = value_rows(model, block).weight.unflatten(0, (attention.heads, -1))
    outputs = projection(model, block).unflatten(1, (attention.heads, -1)).transpose(0, 1)
    sigma_1, sigma_2 = spectral(values), spectral(outputs)
    if alone:
        return theory.attention_bound(passage.alpha[:, 0], attention.keys, sigma_1[0] * sigma_2[0])
    return theory.multi_head_bound(
        passage.alpha.amax(dim=1), attention.keys, sigma_1.max(), sigma_2.max(), attention.heads
    )
