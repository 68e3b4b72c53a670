"""Finds the register neurons of a host: those that write tokens of very large norm. For `test_time_register`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.hosts.inputs import batch_inputs, first_tensor, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.hosts.token_layout import prefix_of
from unsmooth.remedies.registers import AddTokens, TakeTokens
from unsmooth.remedies.test_time_register import MovedActivations
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.record import check_unwrapped, parts

KEY = "test_time_register"
DEVIATIONS = 10.0  # as in the vital token_norm_outliers


@dataclass(frozen=True)
class RegisterNeuron:
    """A hidden channel of the MLP of a block, and its mean activation at tokens with an outlying norm."""

    block: int
    neuron: int
    activation: float


@torch.no_grad()
def find_register_neurons(
    model: nn.Module, images: Tensor, count: int = 10, threshold: float | None = None, before: int | None = None
) -> tuple[RegisterNeuron, ...]:
    """Find the neurons that write outlying tokens, and let `test_time_register` move their activations.

    Args:
        model: A model with the remedy `test_time_register`.
        images: A few images as the model takes them, (N, 3, height, width). One without outliers does not count.
        count: Number of neurons.
        threshold: Norm of the tokens after the last block above which a patch token is an outlier. Default: the median
            of the image plus 10 median absolute deviations.
        before: Only neurons of blocks before this one. Default: of all blocks.

    Returns:
        The neurons, largest activation first. Neurons of an earlier call are replaced.

    Raises:
        UnsmoothError: The model does not have the remedy, or no token of the images is an outlier.

    Example:
        >>> import torch, unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+test_time_register")
        >>> neurons = unsmooth.find_register_neurons(model, torch.randn(2, 3, 32, 32), count=4, threshold=0.0)
        >>> len(neurons)
        4
    """
    check_unwrapped(model)
    moved = [part for _, part in parts(model, KEY) if isinstance(part, MovedActivations)]
    if not moved:
        raise UnsmoothError(f"this model does not have {KEY}. Call unsmooth.apply(model, {KEY!r}) first.")
    anatomy = anatomy_of(model)
    searched = moved[: len(moved) if before is None else before]
    available = sum(part.neurons.numel() for part in searched)
    if not 1 <= count <= available:
        raise UnsmoothError(
            f"count must be between 1 and {available}, the neurons of the searched blocks (got {count})."
        )
    with _paused(model), eval_mode(model):
        scores = [score for image in images for score in _scores(model, anatomy, image, threshold)]
    if not scores:
        raise UnsmoothError(
            "no patch token of these images has an outlying norm, so there is nothing to move. Pass more images, or a "
            "lower norm as threshold."
        )
    means = [torch.stack(each).mean(0) for each in zip(*scores, strict=True)][: len(searched)]
    flat = torch.cat(means)
    neurons: list[RegisterNeuron] = []
    for part in moved:
        part.neurons.zero_()
    offsets = torch.tensor([0, *(len(mean) for mean in means)]).cumsum(0)
    for position in flat.topk(count).indices.tolist():
        block = int((offsets <= position).sum()) - 1
        neuron = position - int(offsets[block])
        moved[block].neurons[neuron] = True
        neurons.append(RegisterNeuron(block, neuron, float(flat[position])))
    return tuple(neurons)


def _scores(model: nn.Module, anatomy: Anatomy, image: Tensor, threshold: float | None) -> list[list[Tensor]]:
    """The mean activation of every neuron at the outliers of one image, by block; empty if it has none."""
    hidden: dict[int, Tensor] = {}
    last: list[Tensor] = []

    def activations(index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            hidden[index] = args[0][0]

        return hook

    def output(module: nn.Module, args: Any, out: Any) -> None:
        tokens = first_tensor(out)
        assert tokens is not None
        last.append(tokens[0])

    handles = [model.get_submodule(anatomy.blocks[-1].name).register_forward_hook(output)]
    for block in anatomy.blocks:
        point = block.branch("mlp").hook_point("mid")
        handles.append(model.get_submodule(point.module).register_forward_pre_hook(activations(block.index)))
    try:
        run(model, batch_inputs(model, image.unsqueeze(0)))
    finally:
        for handle in handles:
            handle.remove()
    prefix = prefix_of(anatomy.blocks[-1], anatomy)
    norms = last[0][prefix:].float().norm(dim=-1)
    if threshold is None:
        median = norms.quantile(0.5)
        limit = median + DEVIATIONS * (norms - median).abs().quantile(0.5) + 1e-5 * median
    else:
        limit = torch.as_tensor(threshold, dtype=norms.dtype, device=norms.device)
    outliers = norms > limit
    if not outliers.any():
        return []
    return [[hidden[b.index][prefix:][outliers].float().abs().mean(0) for b in anatomy.blocks]]


@contextmanager
def _paused(model: nn.Module) -> Iterator[None]:
    """Within the context, the remedy is off: the host runs as it is."""
    hooks = [part for _, part in parts(model, KEY) if isinstance(part, AddTokens | TakeTokens | MovedActivations)]
    for hook in hooks:
        hook.paused = True
    try:
        yield
    finally:
        for hook in hooks:
            del hook.paused
