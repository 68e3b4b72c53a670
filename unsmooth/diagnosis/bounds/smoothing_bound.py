"""Bounds of smoothing and measured smoothing: Theorem 3 and Propositions 4 to 6 (anti-oversmoothing, Figure 1 and F.1).

For a trained model with parts removed (`unsmooth.diagnosis.bounds.ablation`): one head (Theorem 3), all heads
(Proposition 4), with the skip (Proposition 5), with the MLP and its skip (Proposition 6). X_l are the tokens after
block l, X_0 those before the first one. The `.measured` parts are ln(‖HC[X_l]‖_F / ‖X_0‖_F). The bound is that of one
step from the measured previous block, ln(γ_l‖HC[X_{l−1}]‖_F / ‖X_0‖_F), with γ_l the factor of the theorem. The
`excess` parts are the measurement minus the bound, image by image, and never above zero. Where γ_l is above 1, which
is usual, the bound does not prove that a model collapses.

The theorems have no norm layers and no layer scale. Their effect on ‖HC‖ is measured in the same pass and multiplied
into γ_l. Weights enter by their spectral norms, logits by α = max |P|. "One head" is the first head with its slice of
the output projection. For plain pre-norm hosts: attention and an MLP of two layers, each with a skip.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn

from unsmooth.diagnosis.bounds.ablation import VARIANTS, BlockNorms, measure_norms, remove_parts
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.weights import mlp_layers, projection, value_rows
from unsmooth.surgery.record import applied
from unsmooth.theory import anti_oversmoothing as theory
from unsmooth.theory.matrices import spectral
from unsmooth.vitals.base import THEORY_SAMPLE, Undefined, register

COMPATIBLE = ("token_graying", "diverse_patch")  # remedies that do not change the branches of a block


@register(
    title="smoothing bounds",
    formula="ln(γ_l‖HC[X_{l−1}]‖_F/‖X_0‖_F) ≥ ln(‖HC[X_l]‖_F/‖X_0‖_F), γ_l: Theorem 3, Propositions 4–6",
    reading="measured values are below the bound; the gap shows how loose it is in one block",
    family="theory",
    of="model",
    main="whole",
    sample=THEORY_SAMPLE,
    default=False,
    parts=(
        ("attention", "one head, no skip, no MLP (Theorem 3)"),
        ("heads", "all heads, no skip, no MLP (Proposition 4)"),
        ("skip", "all heads with the skip, no MLP (Proposition 5)"),
        ("whole", "the unchanged model (Propositions 5 and 6)"),
        ("*.measured", "ln(‖HC[X_l]‖_F/‖X_0‖_F) of the same variant"),
        ("excess", "measurement minus bound, at most 0"),
    ),
)
def smoothing_bound(model: nn.Module, anatomy: Anatomy, images: Tensor, blocks: list[int]) -> dict[str, list[Tensor]]:
    others = [remedy.name for remedy in applied(model).remedies if remedy.name not in COMPATIBLE]
    if others:
        raise Undefined(f"the bounds are for plain blocks, but this model has {', '.join(others)}")
    out: dict[str, list[Tensor]] = {}
    for variant in VARIANTS:
        # In double precision: without the skip, differences between tokens soon are smaller than single precision.
        reduced = copy.deepcopy(remove_parts(model, anatomy, variant)).double()
        norms = measure_norms(reduced, anatomy, images)
        steps = [block_factor(model, block, norms[block.index], variant) for block in anatomy.blocks]
        size = norms[0].size
        assert size is not None
        out[variant] = [(step * block.hc["before"] / size).log() for step, block in zip(steps, norms, strict=True)]
        out[f"{variant}.measured"] = [(block.hc["after"] / size).log() for block in norms]
        out[f"excess.{variant}"] = [
            below - above for above, below in zip(out[variant], out[f"{variant}.measured"], strict=True)
        ]
    return out


def block_factor(model: nn.Module, block: Block, norms: BlockNorms, variant: str) -> Tensor:
    """Upper bound of the growth of ‖HC‖ in one block, per image."""
    attention = surroundings(norms, "attn") * attention_factor(model, block, norms, one_head=variant == "attention")
    if variant in ("attention", "heads"):
        return attention
    with_skip = theory.skip_bound(attention)
    if variant == "skip":
        return with_skip
    return theory.ffn_skip_bound(
        with_skip, surroundings(norms, "mlp") * theory.mlp_lipschitz(*mlp_layers(model, block))
    )


def surroundings(norms: BlockNorms, branch: str) -> Tensor:
    """Measured effect of the norm layer before a branch and the layer scale after it on ‖HC‖."""
    hc = norms.hc
    before = hc["before"] if branch == "attn" else hc["between"]
    return hc[f"{branch} in"] / before * hc[f"{branch} added"] / hc[f"{branch} out"]


def attention_factor(model: nn.Module, block: Block, norms: BlockNorms, one_head: bool) -> Tensor:
    """The bound of Theorem 3 (one head) or Proposition 4 (all heads), per image."""
    attention = block.attention()
    assert norms.alpha is not None
    values = value_rows(model, block).weight.unflatten(0, (attention.heads, -1))
    outputs = projection(model, block).unflatten(1, (attention.heads, -1)).transpose(0, 1)
    sigma_1, sigma_2 = spectral(values), spectral(outputs)
    if one_head:
        return theory.attention_bound(norms.alpha[:, 0], attention.keys, sigma_1[0] * sigma_2[0])
    return theory.multi_head_bound(
        norms.alpha.amax(dim=1), attention.keys, sigma_1.max(), sigma_2.max(), attention.heads
    )
