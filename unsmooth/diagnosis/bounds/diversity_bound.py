"""Diversity of tokens and its bounds: Theorems 2 and S.1 (augmented shortcuts), and the linear form.

    step    Eq. S.4   max((Hγ/√d) r³, 2Hα_l r)                       one attention with its skips
    mlp     Eq. S.6   (δ + β_l) r                                     one MLP with its skips
    msa     Eq. S.5   Theorem 2, the stack of all attentions, measured on the model without its MLPs
    stack   Eq. S.8   Theorem S.1, the stack of all blocks

Each is ln of the bound of r(after)/r(before) or r(Z_l)/r(Z_0), and the `.measured` part ln of the ratio itself. r is
the Frobenius diversity ‖HC‖_F, γ = max_h ‖W_QW_Kᵀ‖₂‖W_VW_O‖₂, δ the Lipschitz constant of the MLP, and α_l and β_l are
1 + λΣ‖Θ_i‖₂ with that of GELU. Without augmented shortcuts the sum is empty. γ and δ are the largest of the blocks so
far.

The printed S.5 and S.8 can fail if α or β differ by block. `largest` has their maximum over blocks instead, and
`recursion` applies S.4 and S.7 block by block; both always hold. `linear` is not in the paper: 1 + rate + λΣ‖Θ_i‖₂ with
the rate of Proposition 4 of the anti-oversmoothing paper, and the product over all branches.

The theorems have no norm layers and no layer scale. Their effect on ‖HC‖ is measured in the same pass and multiplied
in, as in `smoothing_bound`. The printed bounds, which cube r, have no value for attention whose scores are more than
scaled dot products of queries and keys: a position bias, a mask, normalised queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsmooth.diagnosis.bounds.ablation import BlockNorms, measure_norms, observe_branches, remove_parts
from unsmooth.diagnosis.bounds.smoothing_bound import COMPATIBLE, attention_factor, surroundings
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.inputs import batch_inputs, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.hosts.token_layout import as_tokens
from unsmooth.hosts.weights import mlp_layers, projection, query_key_value
from unsmooth.remedies.augmented_shortcut import AugmentedPaths
from unsmooth.seam.intercept import AttentionCall
from unsmooth.surgery.record import applied, record_of
from unsmooth.theory import augmented_shortcuts as theory
from unsmooth.theory.anti_oversmoothing import mlp_lipschitz
from unsmooth.theory.matrices import bands
from unsmooth.vitals.base import THEORY_SAMPLE, Undefined, register

SAME_SCORES = 1e-3  # relative difference of scores from those that the weights predict, up to rounding


@register(
    title="diversity bounds",
    formula="ln of Eq. S.4–S.8, or of 1 + rate + λΣ‖Θ_i‖₂, ≥ ln r(after)/r(before)",
    reading="measured values are below the bound; the gap shows how loose it is",
    family="theory",
    of="model",
    main="stack.linear",
    sample=THEORY_SAMPLE,
    default=False,
    parts=(
        ("step", "one attention with its skips, Eq. S.4"),
        ("mlp", "one MLP with its skips, Eq. S.6"),
        ("msa", "all attentions up to this block, without MLPs: Theorem 2, Eq. S.5"),
        ("stack", "all blocks up to this one: Theorem S.1, Eq. S.8"),
        ("largest", "with the largest α and β of the blocks"),
        ("recursion", "Eq. S.4 or S.7 applied block by block"),
        ("stack.linear", "all blocks up to this one: linear form, not in the paper"),
        ("linear", "linear form, not in the paper"),
        ("*.measured", "measured change of diversity"),
    ),
)
def diversity_bound(model: nn.Module, anatomy: Anatomy, images: Tensor, blocks: list[int]) -> dict[str, list[Tensor]]:
    compatible = (*COMPATIBLE, "augmented_shortcut")
    others = [remedy.name for remedy in applied(model).remedies if remedy.name not in compatible]
    if others:
        raise Undefined(f"the bounds are for plain and augmented blocks, but this model has {', '.join(others)}")
    out: dict[str, list[Tensor]] = {}
    plain_scores = _have_plain_scores(model, anatomy, images)
    for part, variant in (("msa", "skip"), ("stack", "whole")):
        norms = measure_norms(remove_parts(model, anatomy, variant), anatomy, images)
        constants = _constants(model, anatomy, norms, has_mlp=variant == "whole")
        first = norms[0].hc["before"]
        out[f"{part}.measured"] = [(block.hc["after"] / first).log() for block in norms]
        out[f"{part}.linear"] = list((constants.linear_rates * constants.mlp_rates).log().cumsum(-1).unbind(-1))
        if plain_scores:
            bounds = constants.stack(first)
            out |= {f"{part}.{name}".rstrip("."): list(bound.unbind(-1)) for name, bound in bounds.items()}
    # Of single branches, in the whole model.
    out["step.measured"] = [(block.hc["between"] / block.hc["before"]).log() for block in norms]
    out["step.linear"] = list(constants.linear_rates.log().unbind(-1))
    if plain_scores:
        out["step"] = list(constants.step(torch.stack([block.hc["before"] for block in norms], -1)).unbind(-1))
    out["mlp.measured"] = [(block.hc["after"] / block.hc["between"]).log() for block in norms]
    out["mlp"] = list(constants.mlp_rates.log().unbind(-1))
    return out


@dataclass(frozen=True)
class Constants:
    """Constants of the bounds, (images, blocks) each. Norm layers and layer scale are measured factors in them."""

    heads: int
    dim: int  # of a head
    gamma: Tensor
    alpha: Tensor
    delta: Tensor
    beta: Tensor
    linear_rates: Tensor  # of attention with its skips

    @property
    def mlp_rates(self) -> Tensor:
        return theory.augmented_mlp_rate(self.delta, self.beta)

    def step(self, r: Tensor) -> Tensor:
        """ln of Eq. S.4 over r, the diversity before each block."""
        return (theory.augmented_msa_step(r, self.gamma, self.heads, self.dim, self.alpha) / r).log()

    def stack(self, r: Tensor) -> dict[str, Tensor]:
        """ln of Eq. S.8 over r, the diversity before the first block, after each block. Without MLPs it is Eq. S.5."""

        def theorem(layers: int, constants: theory.Constants) -> Tensor:
            gamma, alpha, delta, beta = (x[:, :layers] for x in (self.gamma, self.alpha, self.delta, self.beta))
            largest = gamma.amax(-1), delta.amax(-1, keepdim=True)
            return theory.log_theorem_s1(r, largest[0], self.heads, self.dim, alpha, largest[1], beta, constants)

        depths = range(1, self.alpha.shape[-1] + 1)
        logs = {
            "": torch.stack([theorem(layers, "printed") for layers in depths], -1),
            "largest": torch.stack([theorem(layers, "largest") for layers in depths], -1),
            "recursion": theory.log_recursion(r, self.gamma, self.heads, self.dim, self.alpha, self.mlp_rates),
        }
        return {name: log - r.log().unsqueeze(-1) for name, log in logs.items()}


def _constants(model: nn.Module, anatomy: Anatomy, norms: list[BlockNorms], has_mlp: bool) -> Constants:
    """The constants of all blocks. A model without MLPs has δ = 0 and β = 1: the skip alone."""
    by_block = []
    for block in anatomy.blocks:
        at = norms[block.index]
        into, attn = at.hc["attn in"] / at.hc["before"], surroundings(at, "attn")
        mlp = surroundings(at, "mlp") if has_mlp else torch.zeros_like(attn)
        alpha = 1 + attn * _shortcuts(model, block, "attn")
        attention_rate = attn * attention_factor(model, block, at, one_head=False)
        by_block.append((
            _gamma(model, block) * attn * into**2,  # r is cubed after the norm layer and before the layer scale
            alpha,
            mlp * mlp_lipschitz(*mlp_layers(model, block)),
            1 + mlp * _shortcuts(model, block, "mlp"),
            theory.linear_msa_rate(attention_rate, alpha),
        ))  # fmt: skip
    attention = anatomy.blocks[0].attention()
    columns = (torch.stack(column, -1) for column in zip(*by_block, strict=True))
    return Constants(attention.heads, attention.head_channels, *columns)


def _gamma(model: nn.Module, block: Block) -> Tensor:
    """γ of a block's attention. Triangular factors make d × d products as small as a head, with the same norms."""
    heads = block.attention().heads

    def factor(weight: Tensor) -> Tensor:
        _, r = torch.linalg.qr(weight.detach().double().unflatten(0, (heads, -1)).mT, mode="r")
        return r

    query, key, value, output = map(factor, (*query_key_value(model, block), projection(model, block).mT))
    return theory.attention_gamma(query @ key.mT, value @ output.mT)


def _have_plain_scores(model: nn.Module, anatomy: Anatomy, images: Tensor) -> bool:
    """Whether the scores of all blocks are X W_Q W_Kᵀ Xᵀ/√d up to a term per row and one per column."""
    expected: dict[int, Tensor] = {}
    plain: list[bool] = []

    def on_input(block: Block, point: str, x: Tensor) -> None:
        if point != "attn in":
            return
        attention = block.attention()
        rest = bands(as_tokens(x, block.channels))[1].unsqueeze(1)
        weights = query_key_value(model, block)[:2]
        query, key = (w.detach().double().unflatten(0, (attention.heads, -1)) for w in weights)
        expected[block.index] = (rest @ query.mT) @ (rest @ key.mT).mT / math.sqrt(attention.head_channels)

    def on_attention(block: Block, attention: Attention, call: AttentionCall) -> None:
        scores, predicted = call.scores().double(), expected[block.index]
        if scores.shape != predicted.shape or not torch.allclose(scores.softmax(-1), call.map().double(), atol=1e-4):
            plain.append(False)
            return
        centred = bands(bands(scores)[1].mT)[1].mT
        plain.append(bool((centred - predicted).norm() <= SAME_SCORES * predicted.norm()))

    with (
        eval_mode(model),
        observe_branches(model, anatomy, on_input, ("attn",)),
        probe(model, None, on_attention, anatomy),
    ):
        run(model, batch_inputs(model, images))
    return all(plain)


def _shortcuts(model: nn.Module, block: Block, branch: str) -> Tensor:
    """λΣ‖Θ_i‖₂ of the augmented paths of a branch, 0 if it has none."""
    total = torch.zeros((), dtype=torch.float64)
    ends = {block.branch(branch).hook_point("end").module}
    for entry in record_of(model).applied:
        for attachment in entry.attachments:
            if not attachment.module or attachment.target not in ends:
                continue
            paths = model.get_submodule(attachment.module)
            if isinstance(paths, AugmentedPaths):
                gain = 1.0 if paths.gain is None else paths.gain.abs().max().double()
                norms = theory.block_circulant_norm(paths.vectors)
                total = total + gain * (theory.shortcut_gain(norms) - 1)
    return total
