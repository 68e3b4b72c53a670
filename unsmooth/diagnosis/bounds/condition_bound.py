"""Condition numbers of attention and their bounds: Propositions 4.1 and 4.2 of Always Skip Attention.

    4.1   ln κ(XW_QW_KᵀXᵀXW_V) ≤ ln C + 3 ln κ(X),   C = κ(W_Q)κ(W_K)κ(W_V)       linear attention, without softmax
    4.2   ln κ(X)κ(M + I) ≤ ln (Cσ_max³ + σ_max)/(σ_min³ + σ_min)                  the same with its skip, Eq. 19

X is the input of the attention branch, σ_max and σ_min are its singular values, W the weights of all heads, and M =
W_QW_KᵀXᵀXW_V. `linear` is the right side of 4.1 and `linear.measured` its left side with the weights of the host;
`with_skip` and `with_skip.measured` are those of 4.2. Both ignore softmax. `premise` is the share of images with
σ_min < 1 < σ_max, which 4.2 assumes. `skip` is ln κ of the output of the attention that the host has, and
`skip.measured` that of the sum with the skip, which 4.2 says is smaller.

4.1 needs matrices of full column rank: with fewer tokens than channels, κ is taken over min(n, d) values and the
inequality may fail. Eq. 19 is a heuristic and not a theorem (`unsmooth.theory` has counterexamples to both). Double
precision resolves ln κ up to 34.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.diagnosis.bounds.ablation import observe_branches
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.inputs import batch_inputs, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.hosts.token_layout import as_tokens
from unsmooth.hosts.weights import query_key_value
from unsmooth.theory import always_skip_attention as theory
from unsmooth.utils.threads import one_thread
from unsmooth.vitals.base import THEORY_SAMPLE, register

RESOLUTION = 1e-15


@register(
    title="condition bounds",
    formula="ln κ(W_Q)κ(W_K)κ(W_V) + 3 ln κ(X) ≥ ln κ(XW_QW_KᵀXᵀXW_V)",
    reading="measured values below the bound: the proposition holds for this block",
    family="theory",
    of="model",
    main="linear",
    sample=THEORY_SAMPLE,
    default=False,
    parts=(
        ("linear", "bound of Proposition 4.1 for linear attention"),
        ("with_skip", "bound of Proposition 4.2 (Eq. 19) for linear attention with its skip"),
        ("premise", "share of images whose tokens have σ_min < 1 < σ_max"),
        ("skip", "output of attention; by Proposition 4.2 the sum with the skip is below it"),
        ("*.measured", "linear attention, alone or with its skip, or the sum with the skip"),
    ),
)
def condition_bound(model: nn.Module, anatomy: Anatomy, images: Tensor, blocks: list[int]) -> dict[str, list[Tensor]]:
    depth = len(anatomy.blocks)
    out: dict[str, list[Any]] = {
        part: [None] * depth
        for part in ("linear", "linear.measured", "with_skip", "with_skip.measured", "premise", "skip", "skip.measured")
    }

    def on_input(block: Block, point: str, x: Tensor) -> None:
        if point != "attn in":
            return
        x = as_tokens(x, block.channels).double()
        query, key, value = (w.detach().double().mT for w in query_key_value(model, block))
        constant = torch.stack([_log_kappa(w) for w in (query, key, value)]).sum()
        sigma = _singular(x)
        condition = _log_ratio(sigma)
        largest, smallest = sigma[..., 0], sigma[..., -1].maximum(RESOLUTION * sigma[..., 0])
        linear_map = query @ key.mT @ (x.mT @ x) @ value
        identity = torch.eye(block.channels, dtype=x.dtype, device=x.device)
        values = {
            "linear": constant + 3 * condition,
            "linear.measured": _log_kappa((x @ query) @ ((x @ key).mT @ (x @ value))),
            "with_skip": theory.skip_bound(constant.exp(), largest, smallest).log(),
            "with_skip.measured": condition + _log_kappa(linear_map + identity),
            "premise": theory.skip_premise(largest, smallest).double(),
        }
        for part, by_image in values.items():
            out[part][block.index] = by_image

    def on_residual(block: Block, branch: str, x: Tensor, f: Tensor, total: Tensor) -> None:
        if branch == "attn":
            for part, tokens in (("skip", f), ("skip.measured", total)):
                out[part][block.index] = _log_kappa(as_tokens(tokens, block.channels).double())

    with (
        eval_mode(model),
        observe_branches(model, anatomy, on_input, ("attn",)),
        probe(model, anatomy=anatomy, on_residual=on_residual),
    ):
        run(model, batch_inputs(model, images))
    return out


def _log_kappa(x: Tensor) -> Tensor:
    return _log_ratio(_singular(x))


def _singular(x: Tensor) -> Tensor:
    with one_thread():
        return torch.linalg.svdvals(x)


def _log_ratio(s: Tensor) -> Tensor:
    return (s[..., 0] / s[..., -1].maximum(RESOLUTION * s[..., 0])).log()
