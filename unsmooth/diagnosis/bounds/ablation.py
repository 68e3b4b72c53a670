"""A trained model with parts removed, and the sizes of HC on its way: what the smoothing bounds are compared with.

attention   one head of each block, no skip, no MLP
heads       all heads, no skip, no MLP
skip        all heads and the skip, no MLP
whole       the model as it is
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
from unsmooth.seam.patched import ResidualScale, module_patches

VARIANTS = ("attention", "heads", "skip", "whole")


class OneHead(AttentionPatch):
    """The first head of an attention; the others give nothing."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.axis = attention.head_axis

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        out = attend(v)
        out.narrow(self.axis, 1, out.shape[self.axis] - 1).zero_()
        return out


@dataclass
class Passage:
    """‖HC‖_F (B,) of the tokens at each station of a block, and its largest logits α (B, heads)."""

    size: dict[str, Tensor] = field(default_factory=dict)
    alpha: Tensor | None = None


def remove_parts(model: nn.Module, anatomy: Anatomy, variant: str) -> nn.Module:
    """A copy of the model without the parts that a variant lacks; the model itself for `whole`."""
    for block in anatomy.blocks:
        if block.residuals != ("attn", "mlp"):
            raise NotApplicable("its blocks are not attention and MLP, each with a skip")
        if block.attention().kind != "global":
            raise NotApplicable("its attention is not over all tokens, and the theorems are about that")
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
            module_patches(copied.get_submodule(core.core)).attention.append(OneHead(core))
    return copied


def passages(model: nn.Module, anatomy: Anatomy, images: Tensor) -> list[Passage]:
    """What happens to HC in each block of a model: before it, into and out of each branch, as added, and after it."""
    found = [Passage() for _ in anatomy.blocks]

    def note(block: Block, station: str, x: Tensor) -> None:
        tokens = as_tokens(x, block.channels).double()
        found[block.index].size[station] = split(tokens)[1].flatten(1).norm(dim=1)

    def on_residual(block: Block, branch: str, x: Tensor, f: Tensor, out: Tensor) -> None:
        note(block, f"{branch} added", f)
        if branch == "attn":
            note(block, "between", out)

    def on_attention(block: Block, attention: Attention, call: AttentionCall) -> None:
        size = call.scores().abs().amax(dim=(-2, -1))
        found[block.index].alpha = size.double()

    with (
        eval_mode(model),
        watch_hook_points(model, anatomy, note),
        probe(
            model,
            lambda block, x: note(block, "after", x),
            on_attention,
            anatomy,
            lambda block, x: note(block, "before", x),
            on_residual,
        ),
    ):
        run(model, batch_inputs(model, images))
    return found


@contextmanager
def watch_hook_points(
    model: nn.Module,
    anatomy: Anatomy,
    note: Callable[[Block, str, Tensor], None],
    branches: tuple[str, ...] = ("attn", "mlp"),
) -> Iterator[None]:
    """Within the context, `note(block, "attn read", x)` and `"attn given"` tell what a branch reads and gives."""
    handles: list[Any] = []

    def watch(block: Block, station: str, point: HookPoint) -> None:
        module = model.get_submodule(point.module)
        if point.side == "input":
            hook = lambda _, args, kwargs: note(block, station, first_tensor((args, kwargs)))  # type: ignore[arg-type]  # noqa: E731
            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        else:
            handles.append(module.register_forward_hook(lambda _, args, out: note(block, station, first_tensor(out))))  # type: ignore[arg-type]

    try:
        for block in anatomy.blocks:
            for name in branches:
                branch = block.branch(name)
                watch(block, f"{name} read", branch.hook_point("front"))
                watch(block, f"{name} given", branch.hook_point("end"))
        yield
    finally:
        for handle in handles:
            handle.remove()
