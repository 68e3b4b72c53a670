"""A model without some of its parts, and the norm of HC at points inside its blocks, for comparison with the bounds.

attention   one head per block, no skip, no MLP
heads       all heads, no skip, no MLP
skip        all heads and the skip, no MLP
whole       the unchanged model
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from unsmooth.bands import split
from unsmooth.diagnosis.probe import probe
from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.inputs import batch_inputs, first_tensor, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.token_layout import as_tokens
from unsmooth.remedies.base import AttentionPatch
from unsmooth.seam.intercept import Attend, AttentionCall
from unsmooth.seam.patched import module_patches
from unsmooth.seam.residual_sums import ResidualScale

VARIANTS = ("attention", "heads", "skip", "whole")


class OneHead(AttentionPatch):
    """Keeps the first head of an attention and sets the others to zero."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.axis = attention.head_axis

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        out = attend(v)
        out.narrow(self.axis, 1, out.shape[self.axis] - 1).zero_()
        return out


@dataclass
class BlockNorms:
    """‖HC‖_F (B,) at points of a block, ‖X‖_F of its input (B,), and its largest logits α (B, heads).

    The points are `before` and `after` the block, `between` its branches, and for each branch its input (`attn in`),
    its output (`attn out`) and what the residual sum adds (`attn added`).
    """

    hc: dict[str, Tensor] = field(default_factory=dict)
    size: Tensor | None = None
    alpha: Tensor | None = None


def remove_parts(model: nn.Module, anatomy: Anatomy, variant: str) -> nn.Module:
    """A copy of the model without the parts that a variant lacks. `whole` returns the model itself."""
    for block in anatomy.blocks:
        if block.residuals != ("attn", "mlp") or len(block.attentions) != 1:
            raise NotApplicable("the bounds need blocks of attention and MLP, each with a skip")
        if block.holder:
            raise NotApplicable("the bounds need blocks that are modules, and its blocks are lists of modules")
        if block.attention().kind != "global":
            raise NotApplicable("the bounds need attention over all tokens")
    if variant == "whole":
        return model
    copied: nn.Module = copy.deepcopy(model)
    for block in anatomy.blocks:
        patches = module_patches(copied.get_submodule(block.name))
        patches.residual_branches = block.residuals
        patches.residuals += [ResidualScale("mlp", gain=0.0)] + (
            [ResidualScale("attn", skip=0.0)] if variant != "skip" else []
        )
        if variant == "attention":
            core = block.attention()
            patches = module_patches(copied.get_submodule(core.core))
            patches.attention.append(OneHead(core))
            patches.layouts = anatomy.layouts(core.core)
    return copied


def measure_norms(model: nn.Module, anatomy: Anatomy, images: Tensor) -> list[BlockNorms]:
    """Norms of HC at all points of each block of a model."""
    norms = [BlockNorms() for _ in anatomy.blocks]

    def on_tokens(block: Block, point: str, x: Tensor) -> None:
        tokens = as_tokens(x, block.channels).double()
        norms[block.index].hc[point] = split(tokens)[1].flatten(1).norm(dim=1)
        if point == "before":
            norms[block.index].size = tokens.flatten(1).norm(dim=1)

    def on_residual(block: Block, branch: str, x: Tensor, f: Tensor, out: Tensor) -> None:
        on_tokens(block, f"{branch} added", f)
        if branch == "attn":
            on_tokens(block, "between", out)

    def on_attention(block: Block, attention: Attention, call: AttentionCall) -> None:
        norms[block.index].alpha = call.scores().abs().amax(dim=(-2, -1)).double()

    with (
        eval_mode(model),
        observe_branches(model, anatomy, on_tokens),
        probe(
            model,
            lambda block, x: on_tokens(block, "after", x),
            on_attention,
            anatomy,
            lambda block, x: on_tokens(block, "before", x),
            on_residual,
        ),
    ):
        run(model, batch_inputs(model, images))
    return norms


@contextmanager
def observe_branches(
    model: nn.Module,
    anatomy: Anatomy,
    on_tokens: Callable[[Block, str, Tensor], None],
    branches: tuple[str, ...] = ("attn", "mlp"),
) -> Iterator[None]:
    """Within the context, `on_tokens(block, "attn in", x)` and `"attn out"` receive input and output of branches."""
    handles: list[Any] = []

    def observe(block: Block, name: str, point: HookPoint) -> None:
        def receive(value: Any) -> None:
            tokens = first_tensor(value)
            assert tokens is not None
            on_tokens(block, name, tokens)

        module = model.get_submodule(point.module)
        if point.side == "input":
            hook = module.register_forward_pre_hook(lambda _, args, kwargs: receive((args, kwargs)), with_kwargs=True)
        else:
            hook = module.register_forward_hook(lambda _, args, output: receive(output))
        handles.append(hook)

    try:
        for block in anatomy.blocks:
            for name in branches:
                branch = block.branch(name)
                observe(block, f"{name} in", branch.hook_point("front"))
                observe(block, f"{name} out", branch.hook_point("end"))
        yield
    finally:
        for handle in handles:
            handle.remove()
