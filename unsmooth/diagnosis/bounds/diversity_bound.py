"""Diversity and its bounds: Eq. S.5 for one attention block, Eq. S.8 for the stack (augmented shortcuts).

    S.5   r(AugMSA(Z)) ≤ (1 + rate of MSA + L·Σ‖Θ_i‖₂) r(Z)
    S.8   the product of such factors over all attention and MLP blocks

`step` is ln of the first factor and `stack` ln of the product; the `.measured` parts are ln r(after)/r(before) of
attention with its skip, and ln r(Z_l)/r(Z_0). r is the Frobenius diversity ‖HC‖_F, L the Lipschitz constant of GELU.
Without augmented shortcuts the sum over Θ is empty. The effect of norm layers and layer scale is measured, as in
`smoothing_bound`. The supplement of the paper was not available: the inequalities with these numbers are our own
derivation (`unsmooth.theory`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.diagnosis.bounds.ablation import BlockNorms, measure_norms, remove_parts
from unsmooth.diagnosis.bounds.smoothing_bound import COMPATIBLE, attention_factor, surroundings
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.weights import mlp_layers
from unsmooth.remedies.augmented_shortcut import AugmentedPaths
from unsmooth.surgery.record import applied, record_of
from unsmooth.theory import anti_oversmoothing, augmented_shortcuts
from unsmooth.vitals.base import THEORY_SAMPLE, Undefined, register


@register(
    title="diversity bounds",
    formula="ln(1 + rate + L·Σ‖Θ_i‖₂) ≥ ln r(after)/r(before)",
    reading="measured values are below the bound; the gap shows how loose it is",
    family="theory",
    of="model",
    main="stack",
    sample=THEORY_SAMPLE,
    parts=(
        ("step", "one attention block with its skips, Eq. S.5"),
        ("stack", "all blocks up to this one, Eq. S.8"),
        ("*.measured", "measured change of diversity"),
    ),
)
def diversity_bound(model: nn.Module, anatomy: Anatomy, images: Tensor, blocks: list[int]) -> dict[str, list[Tensor]]:
    compatible = (*COMPATIBLE, "augmented_shortcut")
    others = [remedy.name for remedy in applied(model).remedies if remedy.name not in compatible]
    if others:
        raise Undefined(f"the bounds are for plain and augmented blocks, but this model has {', '.join(others)}")
    norms = measure_norms(remove_parts(model, anatomy, "whole"), anatomy, images)
    steps, mlps = zip(*(_factors(model, block, norms[block.index]) for block in anatomy.blocks), strict=True)
    first = norms[0].hc["before"]
    return {
        "step": [step.log() for step in steps],
        "step.measured": [(block.hc["between"] / block.hc["before"]).log() for block in norms],
        "stack": list(torch.stack([s * m for s, m in zip(steps, mlps, strict=True)]).log().cumsum(dim=0)),
        "stack.measured": [(block.hc["after"] / first).log() for block in norms],
    }


def _factors(model: nn.Module, block: Block, norms: BlockNorms) -> tuple[Tensor, Tensor]:
    """Factors of diversity by S.5 for the attention half and the MLP half of a block."""
    attention = attention_factor(model, block, norms, one_head=False)
    mlp = anti_oversmoothing.mlp_lipschitz(*mlp_layers(model, block))
    extra = {name: _shortcuts(model, block, name) for name in ("attn", "mlp")}
    return (
        1 + surroundings(norms, "attn") * (attention + extra["attn"]),
        1 + surroundings(norms, "mlp") * (mlp + extra["mlp"]),
    )


def _shortcuts(model: nn.Module, block: Block, branch: str) -> Tensor:
    """L·Σ‖Θ_i‖₂ of the augmented paths of a branch, 0 if it has none."""
    total = torch.zeros((), dtype=torch.float64)
    ends = {block.branch(branch).hook_point("end").module}
    for entry in record_of(model).applied:
        for attachment in entry.attachments:
            if not attachment.module or attachment.target not in ends:
                continue
            paths = model.get_submodule(attachment.module)
            if isinstance(paths, AugmentedPaths):
                gain = 1.0 if paths.gain is None else paths.gain.abs().max().double()
                norms = augmented_shortcuts.block_circulant_norm(paths.vectors)
                total = total + gain * (augmented_shortcuts.shortcut_gain(norms) - 1)
    return total
