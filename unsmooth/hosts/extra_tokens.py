"""Whether the blocks of a host take more tokens than the host gives them.

Most do: attention and MLP work for any number. A position bias, a rotary embedding or a mask of fixed size does not.
Some rotary embeddings count from the last token, so that one more token moves all others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import first_line
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.hosts.inputs import Example, example_input, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.seam.intercept import AttentionCall, AttentionInterceptor


def why_no_extra_tokens(model: nn.Module, anatomy: Anatomy, example: Example | None = None) -> str:
    """Why the blocks of a host cannot have one more token: "" if they can, tried by two forward passes."""
    blocks = anatomy.blocks
    if len({(block.tokens, block.channels) for block in blocks}) != 1:
        return "its blocks have different numbers of tokens or channels"
    if any(block.holder for block in blocks):
        return "its blocks are lists of modules, so tokens cannot be added around them"
    if not all(block.residuals for block in blocks):
        return "its blocks are not modules with residual sums, so tokens cannot be added around them"
    if any(len(b.attentions) != 1 or b.attentions[0].kind != "global" for b in blocks):
        return "its attention is not global in every block"

    def add(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (_longer(args[0]), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: _longer(kwargs[name])}

    def take(module: nn.Module, args: Any, output: Any) -> Any:
        return (output[0][:, :-1], *output[1:]) if isinstance(output, tuple) else output[:, :-1]

    handles: list[Any] = []
    example = example_input(model) if example is None else example
    plain = _first_scores(model, example)
    try:
        for block in blocks:
            module = model.get_submodule(block.name)
            handles += [module.register_forward_pre_hook(add, with_kwargs=True), module.register_forward_hook(take)]
        longer = _first_scores(model, example)
    except Exception as error:  # a host may fail in any way
        return f"its blocks do not take extra tokens ({first_line(error)})"
    finally:
        for handle in handles:
            handle.remove()
    n = plain.shape[-1]
    if not torch.allclose(longer[..., :n, :n], plain, atol=1e-4 * float(plain.abs().max()), rtol=1e-4):
        return "one more token changes the positions of the others"
    return ""


class _FirstScores(AttentionInterceptor):
    """Keeps the scores of the first attention of a forward pass."""

    scores: Tensor | None = None

    def on_attention(self, call: AttentionCall) -> Tensor:
        if self.scores is None:
            self.scores = call.scores().detach()
        return super().on_attention(call)


def _first_scores(model: nn.Module, example: Example) -> Tensor:
    with eval_mode(model), torch.random.fork_rng(devices=[]), _FirstScores() as seen:
        torch.manual_seed(0)  # a host may draw the order of its tokens
        run(model, example)
    assert seen.scores is not None
    return seen.scores


def _longer(x: Tensor) -> Tensor:
    if x.ndim != 3:
        raise ValueError("its tokens are not a sequence")
    return torch.cat([x, x[:, -1:]], dim=1)
