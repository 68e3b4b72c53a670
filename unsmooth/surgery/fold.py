"""Folds remedies into the host's weights, for inference: the same outputs, with only a broadcast of a mean remaining.

    attn_scale           (1+ω) into the value weights          remaining: − ω/(1+ω)·mean(v)
    feat_scale           (1+t) into the output projection      remaining: + ((1+s)/(1+t) − 1)·mean(y)
    context_broadcast    ½ into the MLP's last linear layer    remaining: + mean(y)
    layer_scale          γ into the last linear layers         remaining: nothing
    sigma_reparam        γ/σ(W) into each weight               remaining: nothing
    augmented_shortcut   the matrices of its circulants are computed once and stored
    adder                dtype="int8": bytes in place of its weights and scores (`fold_int8`)

A remedy that cannot be folded stays as it is, with a warning. Every step is checked on an example against the model
before it, and undone if the outputs differ: another remedy may be in between, or the host may scale its values.
"""

from __future__ import annotations

import copy
import warnings
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.bands import add_mean, is_small
from unsmooth.errors import NotApplicable, UnsmoothError
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.hosts.inputs import Example, example_input, first_tensor, run
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.weights import WeightAndBias, value_rows
from unsmooth.remedies.attn_scale import ScaledMap
from unsmooth.remedies.augmented_shortcut import AugmentedPaths, InputCapture
from unsmooth.remedies.base import AttentionPatch, BandGain, MapBuffer, TokenBuffer, TokenHook, WeightPatch
from unsmooth.remedies.kernels import circulant
from unsmooth.seam.intercept import Attend
from unsmooth.seam.patched import module_patches
from unsmooth.surgery.apply import detach_patch
from unsmooth.surgery.fold_int8 import to_int8
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.record import Attachment, check_model, check_unfolded, record_of

SMALLEST_GAIN = 1e-3  # dividing by a smaller gain loses digits
ADDERS = ("adder", "adder_attention")
INT8_ERROR = 0.1  # relative error of outputs in bytes that is worth a warning: a signal-to-noise ratio of 20 dB
TOLERANCE = 1e-4  # relative to the largest output, in single precision


class CannotFold(Exception):
    """The reason why a patch stays as it is."""


class MeanFromMap(AttentionPatch):
    """The remainder of a folded AttnScale: a multiple of the mean value is subtracted."""

    def __init__(self, share: Tensor):
        super().__init__()
        self.register_buffer("share", share)

    share: Tensor

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        out = attend(v)
        if is_small(v):
            total, share = v.sum(dim=-2, keepdim=True), -1 / v.shape[-2]
        else:
            total, share = v.mean(dim=-2, keepdim=True), -1.0
        # The output is not used elsewhere, so it can be changed in place if no gradient needs it.
        in_place = not (torch.is_grad_enabled() or torch._C._get_tracing_state())
        return (out.addcmul_ if in_place else out.addcmul)(total, self.share, value=share)

    def matrix(self, weights: Tensor) -> Tensor:
        return weights - self.share / weights.shape[-1]


class MeanToTokens(TokenHook):
    """The remainder of a folded `BandGain`: a multiple of the mean token is added."""

    share: Tensor

    def __init__(self, share: Tensor, channels_last: bool):
        super().__init__()
        self.register_buffer("share", share)
        self.channels_last = channels_last

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return add_mean(x, x, self.share, self.channels_last)


class FoldedAway(TokenHook):
    """The place of a `BandGain` whose two gains are equal: nothing remains of it, and it is not run."""

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return x


class FoldedWeight(WeightPatch):
    """The place of a `WeightPatch` whose weight is stored: nothing remains of it, and it is not run."""

    def start_from(self, host: Tensor) -> None:
        pass

    def forward(self, weight: Tensor) -> Tensor:
        return weight


class PreparedPaths(TokenHook):
    """Augmented paths with stored matrices."""

    def __init__(self, paths: AugmentedPaths):
        super().__init__()
        prepared = circulant.prepare(paths.vectors.detach(), paths.bias.detach())
        self.blocks, self.count = prepared.blocks, len(prepared.weights)
        for i, weight in enumerate(prepared.weights):
            self.register_buffer(f"weight{i}", weight.contiguous())
        self.register_buffer("bias", paths.bias.detach())
        self.register_buffer("shift", prepared.shift)
        self.register_buffer("gain", None if paths.gain is None else paths.gain.detach())

    bias: Tensor
    shift: Tensor | None
    gain: Tensor | None

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        assert source is not None
        weights = tuple(getattr(self, f"weight{i}") for i in range(self.count))
        prepared = circulant.Prepared(weights, self.blocks, self.shift)
        if self.gain is None:
            return circulant.augment(source, prepared, self.bias, onto=x)
        return x.addcmul(circulant.augment(source, prepared, self.bias), self.gain)


@torch.no_grad()
def fold(model: nn.Module, example: Example | None = None, dtype: str | None = None) -> nn.Module:
    """Return a copy of a treated model with its remedies folded into the weights, for inference.

    A remedy that cannot be folded stays as it is, with a warning that gives the reason.

    Args:
        model: A treated model in eval mode. It is not changed.
        example: One input of the host, as keyword arguments, for checking the outputs. Default: an image of noise.
        dtype: `int8` computes the layers of `adder` and the scores of `adder_attention` in 8-bit integers. Their scales
            come from the weights and the keys; no images are needed. Default: the dtype of the model.

    Returns:
        A model with the same outputs; with `dtype="int8"`, with outputs within the error of 8 bits.

    Raises:
        UnsmoothError: The model is in training mode, has no remedy, or is folded already; or `dtype` is not `int8`, or
            is given for a model without an adder remedy.

    Example:
        >>> import unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+attn_scale").eval()
        >>> folded = unsmooth.fold(model)
        >>> sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in folded.parameters())
        6
    """
    check_model(model)
    check_unfolded(model)
    if model.training:
        raise UnsmoothError("fold is for inference, and this model is in training mode. Call model.eval() first.")
    record = record_of(model)
    if not record.applied:
        raise UnsmoothError("there is nothing to fold: this model has no remedy. Apply one first.")
    if dtype is not None and dtype != "int8":
        raise UnsmoothError(f'fold has no dtype {dtype!r}. Use dtype="int8", or model.to(...) for other precisions.')
    adders = [entry for entry in record.applied if dtype and entry.remedy.name in ADDERS]
    if dtype and not adders:
        raise UnsmoothError(
            'fold(dtype="int8") is for models with the remedy adder or adder_attention: other remedies keep the '
            "products of their host. Quantize those with torch.ao or torchao."
        )
    anatomy, precision = anatomy_of(model), next(model.parameters()).dtype
    folded: nn.Module = copy.deepcopy(model).eval()
    if torch.finfo(precision).bits < 32:
        folded = folded.float()  # a half-precision host is folded and checked in single precision, then rounded once
    example = example_input(folded) if example is None else example
    targets = {attachment.target for entry in record.applied for attachment in entry.attachments}
    compared = sorted(targets | {block.point("output").module for block in anatomy.blocks})
    expected = _outputs(folded, example, compared)
    done: list[str] = []
    for entry in record_of(folded).applied:
        name = entry.remedy.name
        if entry in adders:
            continue
        attempt = copy.deepcopy(folded)
        try:
            if not [attachment for attachment in entry.attachments if _fold_one(attempt, attachment, anatomy)]:
                raise CannotFold("a residual sum has no weight to fold into")
            _compare(_outputs(attempt, example, compared), expected)
        except CannotFold as reason:
            warnings.warn(f"{name} stays as it is: {reason}", stacklevel=2)
            continue
        folded = attempt
        done.append(name)
    expected = _outputs(folded, example, compared) if adders else {}
    for entry in adders:  # last: the others are compared with the model before them, to more digits than a byte has
        for attachment in entry.attachments:
            parent, target = folded.get_submodule(attachment.parent), folded.get_submodule(attachment.target)
            patch = parent.get_submodule(attachment.child)
            _exchange(parent, target, attachment.child, patch, to_int8(patch))
        done.append(entry.remedy.name)
    if adders:
        _warn_of_int8(_outputs(folded, example, compared), expected)
    record_of(folded).folded = tuple(done)
    return folded.to(precision)


def _outputs(model: nn.Module, example: Example, names: list[str]) -> dict[str, Tensor]:
    """The outputs of the model and of the named modules: a head of zeros would hide a difference."""
    outputs: dict[str, Tensor] = {}

    def store(name: str, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            outputs[name] = tensor.detach().clone()

    hooks = [
        model.get_submodule(name).register_forward_hook(lambda module, args, output, name=name: store(name, output))
        for name in names
    ]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # some hosts are random in eval mode too (ViLT shuffles its patches)
            store("the outputs", run(model, example))
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def _compare(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        difference, scale = (actual[name] - value).abs().max(), value.abs().max()
        if not difference <= TOLERANCE * scale:
            raise CannotFold(f"the folded {name} would differ by {difference:.2g} of {scale:.2g}")


def _warn_of_int8(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    tiny = torch.finfo(torch.float32).tiny
    errors = {name: float((actual[name] - x).norm() / x.norm().clamp_min(tiny)) for name, x in expected.items()}
    worst = max(errors, key=lambda name: errors[name])
    if not errors[worst] <= INT8_ERROR:
        warnings.warn(
            f"in int8, {worst} differs by {100 * errors[worst]:.0f} % on an example. Evaluate the folded model. "
            "Weights far from the others of their layer, which set its step, are the usual cause.",
            stacklevel=3,
        )


def _fold_one(model: nn.Module, attachment: Attachment, anatomy: Anatomy) -> bool:
    """Fold one patch. Returns False for a residual sum, which stays as it is."""
    if not attachment.child:
        return False
    parent, target = model.get_submodule(attachment.parent), model.get_submodule(attachment.target)
    patch = parent.get_submodule(attachment.child)
    if isinstance(patch, InputCapture):
        raise CannotFold("its branch is not a single module")
    if isinstance(patch, TokenBuffer | MapBuffer):
        raise CannotFold("it only adds to the training loss and costs nothing in inference")
    if isinstance(patch, ScaledMap):
        attention_patches = module_patches(target).attention
        later = attention_patches[attention_patches.index(patch) + 1 :]
        if any(_changes_more_than_scores(other) for other in later):
            raise CannotFold("a later remedy changes its map or its output")
        block = anatomy.block_of(attachment.target, patch.attention_order)
        try:
            rows = value_rows(model, block)
        except NotApplicable as reason:
            raise CannotFold(str(reason)) from reason
        gain = 1 + patch.omega
        _scale(rows, _checked(gain).repeat_interleave(block.attention().value_channels))
        share = patch.over_heads((gain - 1) / gain)
        _exchange(parent, target, attachment.child, patch, MeanFromMap(share))
    elif isinstance(patch, WeightPatch):
        path = next(path for path, other in module_patches(target).linears if other is patch)
        weight = attrgetter(path)(target)
        weight.copy_(patch(weight))
        _exchange(parent, target, attachment.child, patch, FoldedWeight())
    elif isinstance(patch, AugmentedPaths):
        _exchange(parent, target, attachment.child, patch, PreparedPaths(patch))
    elif isinstance(patch, BandGain):
        low, high = (torch.as_tensor(g, dtype=torch.get_default_dtype()) for g in patch.gains())
        try:
            rows, columns = _adjacent_linear(model, attachment.target, patch, anatomy)
        except NotApplicable as reason:
            raise CannotFold(str(reason)) from reason
        _scale(rows, high if torch.equal(low, high) else _checked(high), columns)
        reference = rows.weight
        share = torch.where(low == high, 0.0, low / high - 1).to(reference.device, reference.dtype)
        rest = MeanToTokens(share, patch.channels_last) if share.any() else FoldedAway()
        _exchange(parent, target, attachment.child, patch, rest)
    else:
        raise CannotFold("it is not a linear function of the output of a weight")
    return True


def _changes_more_than_scores(patch: AttentionPatch) -> bool:
    own, base = type(patch), AttentionPatch
    if isinstance(patch, MapBuffer):
        return False
    return own.forward is not base.forward or own.change is not base.change


def _checked(gain: Tensor) -> Tensor:
    if gain.abs().min() < SMALLEST_GAIN:
        raise CannotFold(f"it has a gain of {gain.abs().min():.1g}, too small to divide by")
    return gain


def _scale(rows: WeightAndBias, gain: Tensor, columns: bool = False) -> None:
    gain = gain.to(rows.weight.device, rows.weight.dtype)
    if gain.ndim and len(gain) != rows.weight.shape[1 if columns else 0]:
        raise CannotFold("no linear layer is directly before it")  # such as in an MLP of convolutions
    rows.weight.mul_(gain if columns or gain.ndim == 0 else gain.unsqueeze(1))
    if rows.bias is not None and not columns:
        rows.bias.mul_(gain)


def _adjacent_linear(model: nn.Module, target: str, hook: nn.Module, anatomy: Anatomy) -> tuple[WeightAndBias, bool]:
    """The last linear layer of the branch of a token hook, and whether its columns (and not its rows) are scaled."""
    for block in anatomy.blocks:
        for branch in (block.attn, block.mlp):
            if branch is None or not branch.linears:
                continue
            last = branch.linears[-1]
            owner, weight = model.get_submodule(last.weight.rpartition(".")[0]), model.get_parameter(last.weight)
            if _is_hooked(model, branch.end, target, hook):
                if last.projections > 1:  # no output projection: a gain per channel passes through the attention
                    return value_rows(model, block), False
                return WeightAndBias(weight, getattr(owner, "bias", None)), False
            if _is_hooked(model, branch.mid, target, hook):
                return WeightAndBias(weight, None), True
    raise CannotFold("no linear layer is directly before it")


def _is_hooked(model: nn.Module, point: HookPoint | None, target: str, hook: nn.Module) -> bool:
    if point is None or point.module != target:
        return False
    module = model.get_submodule(target)
    hooks = module._forward_hooks if point.side == "output" else module._forward_pre_hooks
    return any(other is hook for other in hooks.values())


def _exchange(parent: nn.Module, target: nn.Module, child: str, old: nn.Module, new: nn.Module) -> None:
    """Replace one patch by another, in the same order."""
    parent._modules[child] = new.train(old.training)
    for hooks in (target._forward_hooks, target._forward_pre_hooks):
        for key, hook in hooks.items():
            if hook is old:
                hooks[key] = new
    if "_unsmooth_patches" in target.__dict__:
        patches = module_patches(target)
        patches.attention = [new if patch is old else patch for patch in patches.attention]
        patches.linears = [(path, new if patch is old else patch) for path, patch in patches.linears]
    if isinstance(new, FoldedAway | FoldedWeight):
        detach_patch(target, new)
