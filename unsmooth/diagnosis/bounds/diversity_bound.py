"""Diversity against its bounds: Eq. S.5 for one attention block, Eq. S.8 for the stack (augmented shortcuts).

    S.5   r(AugMSA(Z)) ≤ (1 + rate of MSA + L·Σ‖Θ_i‖₂) r(Z)
    S.8   the product of such factors over all attention and MLP blocks

`step` is ln of the first factor and `stack` that of the product; `.measured` are ln r(after)/r(before) of the attention
with its skip, and ln r(Z_l)/r(Z_0). r is the Frobenius diversity ‖HC‖_F, L the Lipschitz constant of GELU. Without
augmented shortcuts the sum over Θ is empty. Norm layers and layer scale enter as measured, as in `smoothing_bound`.
The paper's supplement was not at hand: this is our derivation of the inequalities of those numbers (`unsmooth.theory`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.diagnosis.bounds.ablation import Passage, passages, remove_parts
from unsmooth.diagnosis.bounds.smoothing_bound import HARMLESS, around, attention_factor
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.weights import mlp_layers
from unsmooth.remedies.augmented_shortcut import AugmentedPaths
from unsmooth.surgery.record import applied, record_of
from unsmooth.theory import anti_oversmoothing, augmented_shortcuts
from unsmooth.vitals.base import THEORY_SAMPLE, Undefined, register


@register(
    title="diversity bounds",
    formula="ln(1 + rate + L·Σ‖Θ_i‖₂) against ln r(after)/r(before)",
    reading="the measured curve lies below the bound",
    family="theory",
    of="model",
    main="stack",
    sample=THEORY_SAMPLE,
    parts=(
        ("step", "one attention block with its skips: Eq. S.5"),
        ("stack", "all blocks up to here: Eq. S.8"),
        ("*.measured", "what is measured"),
    ),
)
def diversity_bound(model: nn.Module, anatomy: Anatomy, images: Tensor, blocks: list[int]) -> dict[str, list[Tensor]]:
    known = (*HARMLESS, "augmented_shortcut")
    foreign = [part.name for part in applied(model).remedies if part.name not in known]
    if foreign:
        raise Undefined(f"the bounds are for plain and augmented blocks, and this model has {', '.join(foreign)}")
    found = passages(remove_parts(model, anatomy, "whole"), anatomy, images)
    steps, mlps = zip(*(_factors(model, block, found[block.index]) for block in anatomy.blocks), strict=True)
    first = found[0].size["before"]
    return {
        "step": [step.log() for step in steps],
        "step.measured": [(p.size["between"] / p.size["before"]).log() for p in found],
        "stack": list(torch.stack([s * m for s, m in zip(steps, mlps, strict=True)]).log().cumsum(dim=0)),
        "stack.measured": [(p.size["after"] / first).log() for p in found],
    }


def _factors(model: nn.Module, block: Block, passage: Passage) -> tuple[Tensor, Tensor]:
    """What S.5 allows the attention half and the MLP half of a block to multiply diversity by."""
    attention = attention_factor(model, block, passage, alone=False)
    mlp = anti_oversmoothing.mlp_lipschitz(*mlp_layers(model, block))
    extra = {name: _shortcuts(model, block, name) for name in ("attn", "mlp")}
    return (
        1 + around(passage, "attn") * (attention + extra["attn"]),
        1 + around(passage, "mlp") * (mlp + extra["mlp"]),
    )


def _shortcuts(model: nn.Module, block: Block, branch: str) -> Tensor:
    """L·Σ‖Θ_i‖₂ of the augmented paths on a branch, 0 where there are none."""
    total = torch.zeros((), dtype=torch.float64)
    ends = {block.branch(branch).hook_point("end").module}
    for entry in record_of(model).applied:
        for attachment in entry.attachments:
            part = model.get_submodule(attachment.module) if attachment.module else None
            if isinstance(part, AugmentedPaths) and attachment.target in ends:
                gain = 1.0 if part.gain is None else part.gain.abs().max().double()
                norms = augmented_shortcuts.block_circulant_norm(part.vectors)
                total = total + gain * (augmented_shortcuts.shortcut_gain(norms) - 1)
    return total
