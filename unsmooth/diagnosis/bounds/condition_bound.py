"""Condition numbers of attention and their bounds: Propositions 4.1 and 4.2 of Always Skip Attention.

    4.1   log κ(X W_Q W_Kᵀ Xᵀ X W_V) ≤ log κ(W_Q)κ(W_K)κ(W_V) + 3 log κ(X)      linear attention, without softmax
    4.2   the skip lowers the condition number of the output of attention

X is the input of the attention branch, W are the weights of all heads. `linear` is the right side of 4.1 and
`linear.measured` its left side with the weights of the host; both ignore softmax. `skip` is log κ of the output of
attention and `skip.measured` that of the sum with the skip. 4.1 needs matrices of full column rank: with fewer tokens
than channels, κ is taken over min(n, d) values and the inequality may fail (`unsmooth.theory` has counterexamples). 4.2
is a heuristic of the paper, not a theorem. Double precision resolves log κ up to 34.
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
from unsmooth.vitals.base import THEORY_SAMPLE, register

RESOLUTION = 1e-15


@register(
    title="condition bounds",
    formula="log κ(W_Q)κ(W_K)κ(W_V) + 3 log κ(X) ≥ log κ(X W_Q W_Kᵀ Xᵀ X W_V)",
    reading="measured values below the bound: the proposition holds for this block",
    family="theory",
    of="model",
    main="linear",
    sample=THEORY_SAMPLE,
    parts=(
        ("linear", "bound of Proposition 4.1 for linear attention"),
        ("skip", "output of attention; by Proposition 4.2 the sum with the skip is below it"),
        ("*.measured", "linear attention, or the sum with the skip"),
    ),
)
def condition_bound(model: nn.Module, anatomy: Anatomy, images: Tensor, blocks: list[int]) -> dict[str, list[Tensor]]:
    depth = len(anatomy.blocks)
    parts = ("linear", "linear.measured", "skip", "skip.measured")
    out: dict[str, list[Any]] = {part: [None] * depth for part in parts}

    def on_input(block: Block, point: str, x: Tensor) -> None:
        if point != "attn in":
            return
        x = as_tokens(x, block.channels).double()
        query, key, value = (w.detach().double().mT for w in query_key_value(model, block))
        linear = (x @ query) @ ((x @ key).mT @ (x @ value))
        weights = sum(_log_kappa(w.unsqueeze(0)) for w in (query, key, value))
        out["linear"][block.index] = weights + 3 * _log_kappa(x)
        out["linear.measured"][block.index] = _log_kappa(linear)

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
    s = torch.linalg.svdvals(x)
    return (s[..., 0] / s[..., -1].maximum(RESOLUTION * s[..., 0])).log()
