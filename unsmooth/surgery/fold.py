"""Folds remedies into the host's weights, for inference: the same outputs with one broadcast of a mean left.

    attn_scale           (1+ω) into the value weights          left: − ω/(1+ω)·mean(v)
    feat_scale           (1+t) into the output projection      left: + ((1+s)/(1+t) − 1)·mean(y)
    context_broadcast    ½ into the MLP's last linear layer    left: + mean(y)
    augmented_shortcut   nothing to fold: the matrices of its circulants are made once and kept

What cannot be folded stays as it is and is named. Every step is checked on an example against the model before
it; one that does not hold (another remedy stands between, or the host scales its values) is taken back.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.bands import along_channels, mean_token
from unsmooth.errors import NotApplicable, UnsmoothError
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.hosts.inputs import Example, example_input, first_tensor, run
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.weights import Rows, value_rows
from unsmooth.remedies.attn_scale import ScaledMap
from unsmooth.remedies.augmented_shortcut import AugmentedPaths, InputCapture
from unsmooth.remedies.base import AttentionPatch, BandGain, TokenBuffer, TokenHook
from unsmooth.remedies.kernels import circulant
from unsmooth.seam.intercept import Attend
from unsmooth.seam.patched import module_patches
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.record import Attachment, check_model, check_unfolded, record_of

SMALLEST_GAIN = 1e-3  # below this, a gain cannot be divided out again without losing digits
TOLERANCE = 1e-4  # of the largest output, in single precision


class CannotFold(Exception):
    """Why a part stays as it is."""


class MeanFromMap(AttentionPatch):
    """What is left of AttnScale: a multiple of the mean value is taken away."""

    def __init__(self, share: Tensor):
        super().__init__()
        self.register_buffer("share", share)

    share: Tensor

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        out, mean = attend(v), -self.share * v.mean(dim=-2, keepdim=True)
        # Nobody else has seen this output yet: write over it where no gradient needs it.
        return out + mean if torch.is_grad_enabled() else out.add_(mean)

    def matrix(self, weights: Tensor) -> Tensor:
        return weights - self.share / weights.shape[-1]


class MeanToTokens(TokenHook):
    """What is left of a mix of bands: a multiple of the mean token is added."""

    share: Tensor

    def __init__(self, share: Tensor, channels_last: bool):
        super().__init__()
        self.register_buffer("share", share)
        self.channels_last = channels_last

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        share = along_channels(self.share, x, self.channels_last)
        return x + share * mean_token(x, self.channels_last)


class KeptPaths(TokenHook):
    """Augmented paths whose matrices are made already."""

    def __init__(self, paths: AugmentedPaths):
        super().__init__()
        prepared = circulant.prepare(paths.vectors.detach())
        self.blocks, self.count = prepared.blocks, len(prepared.weights)
        for i, weight in enumerate(prepared.weights):
            self.register_buffer(f"weight{i}", weight.contiguous())
        self.register_buffer("bias", paths.bias.detach())
        self.register_buffer("gain", None if paths.gain is None else paths.gain.detach())

    bias: Tensor
    gain: Tensor | None

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        assert source is not None
        weights = tuple(getattr(self, f"weight{i}") for i in range(self.count))
        paths = circulant.augment(source, circulant.Prepared(weights, self.blocks), self.bias)
        return x + (paths if self.gain is None else paths * self.gain)


@torch.no_grad()
def fold(model: nn.Module, example: Example | None = None) -> nn.Module:
    """A copy of a treated model for inference, with the same outputs; the model itself is not changed.

    Warns of each remedy that stays as it is, with the reason.
    """
    check_model(model)
    check_unfolded(model)
    if model.training:
        raise UnsmoothError("fold is for inference, and this model is in training mode; call model.eval() first")
    record = record_of(model)
    if not record.entries:
        raise UnsmoothError("there is nothing to fold: no remedy is on this model")
    anatomy, dtype = anatomy_of(model), next(model.parameters()).dtype
    folded: nn.Module = copy.deepcopy(model).eval()
    if torch.finfo(dtype).bits < 32:
        folded = folded.float()  # a half-precision host is folded and checked in single precision, then rounded once
    example = example_input(folded) if example is None else example
    places = sorted({f.at for a in record.entries for f in a.attachments} | {block.name for block in anatomy.blocks})
    wanted = _outputs(folded, example, places)
    done: list[str] = []
    for entry in record_of(folded).entries:
        name = entry.part.name
        attempt = copy.deepcopy(folded)
        try:
            if not [attachment for attachment in entry.attachments if _fold_one(attempt, attachment, anatomy)]:
                raise CannotFold("a residual sum has no weights to fold into")
            _compare(_outputs(attempt, example, places), wanted)
        except CannotFold as reason:
            warnings.warn(f"{name} stays as it is: {reason}", stacklevel=2)
            continue
        folded = attempt
        done.append(name)
    record_of(folded).folded = tuple(done)
    return folded.to(dtype)


def _outputs(model: nn.Module, example: Example, places: list[str]) -> dict[str, Tensor]:
    """What the model gives, and what the modules at `places` give on the way: a zero head hides nothing."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            seen[name] = tensor.detach().clone()

    hooks = [
        model.get_submodule(name).register_forward_hook(lambda module, args, output, name=name: keep(name, output))
        for name in places
    ]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # some hosts draw at random also in eval mode (ViLT shuffles its patches)
            keep("the outputs", run(model, example))
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _compare(actual: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, value in wanted.items():
        difference, scale = (actual[name] - value).abs().max(), value.abs().max()
        if not difference <= TOLERANCE * scale:
            raise CannotFold(f"folded, {name} would differ by {difference:.2g} of {scale:.2g}")


def _fold_one(model: nn.Module, attachment: Attachment, anatomy: Anatomy) -> bool:
    """Fold one part; False for a residual sum, which stays beside what is folded."""
    if not attachment.child:
        return False
    home, at = model.get_submodule(attachment.home), model.get_submodule(attachment.at)
    part = home.get_submodule(attachment.child)
    if isinstance(part, InputCapture):
        raise CannotFold("its branch is spread over two modules")
    if isinstance(part, TokenBuffer):
        raise CannotFold("it adds to the training loss only, and costs nothing otherwise")
    if isinstance(part, ScaledMap):
        behind = module_patches(at).attention[module_patches(at).attention.index(part) + 1 :]
        if any(type(other).forward is not AttentionPatch.forward for other in behind):
            raise CannotFold("another remedy changes its map further")
        block = next(b for b in anatomy.blocks if any(a.core == attachment.at for a in b.attentions))
        try:
            rows = value_rows(model, block)
        except NotApplicable as reason:
            raise CannotFold(str(reason)) from reason
        gain = 1 + part.omega
        _scale(rows, _large(gain).repeat_interleave(block.core().value_channels))
        share = ((gain - 1) / gain).view_as(part.gain())
        _exchange(home, at, attachment.child, part, MeanFromMap(share))
    elif isinstance(part, AugmentedPaths):
        _exchange(home, at, attachment.child, part, KeptPaths(part))
    elif isinstance(part, BandGain):
        low, high = (torch.as_tensor(g, dtype=torch.get_default_dtype()) for g in part.gains())
        rows, columns = _branch_rows(model, attachment.at, part, anatomy)
        _scale(rows, _large(high), columns)
        reference = rows.weight
        share = (low / high - 1).to(reference.device, reference.dtype)
        _exchange(home, at, attachment.child, part, MeanToTokens(share, part.channels_last))
    else:
        raise CannotFold("it is not a linear change of what a weight gives out")
    return True


def _large(gain: Tensor) -> Tensor:
    if gain.abs().min() < SMALLEST_GAIN:
        raise CannotFold(f"a gain of {gain.abs().min():.1g} cannot be divided out again")
    return gain


def _scale(rows: Rows, gain: Tensor, columns: bool = False) -> None:
    gain = gain.to(rows.weight.device, rows.weight.dtype)
    rows.weight.mul_(gain if columns or gain.ndim == 0 else gain.unsqueeze(1))
    if rows.bias is not None and not columns:
        rows.bias.mul_(gain)


def _branch_rows(model: nn.Module, at: str, part: nn.Module, anatomy: Anatomy) -> tuple[Rows, bool]:
    """The last linear layer of the branch that a tap follows (its rows), or that follows the tap (its columns)."""
    for block in anatomy.blocks:
        for branch in (block.attn, block.mlp):
            if branch is None or not branch.linears:
                continue
            owner = model.get_submodule(branch.linears[-1].weight.rpartition(".")[0])
            weight = model.get_parameter(branch.linears[-1].weight)
            if _is_hooked(model, branch.end, at, part):
                return Rows(weight, getattr(owner, "bias", None)), False
            if _is_hooked(model, branch.mid, at, part):
                return Rows(weight, None), True
    raise CannotFold("no linear layer stands right in front of it")


def _is_hooked(model: nn.Module, point: HookPoint | None, at: str, part: nn.Module) -> bool:
    if point is None or point.module != at:
        return False
    module = model.get_submodule(at)
    hooks = module._forward_hooks if point.side == "output" else module._forward_pre_hooks
    return any(hook is part for hook in hooks.values())


def _exchange(home: nn.Module, at: nn.Module, child: str, old: nn.Module, new: nn.Module) -> None:
    """Put one part in another's place, in the same order."""
    home._modules[child] = new.train(old.training)
    for hooks in (at._forward_hooks, at._forward_pre_hooks):
        for key, hook in hooks.items():
            if hook is old:
                hooks[key] = new
    found = at.__dict__.get("_unsmooth_patches")
    if found is not None:
        found.attention = [new if part is old else part for part in found.attention]
