"""Segmentation model: a treated timm host, UperNet on its feature maps, and an auxiliary head for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, first_line, missing_package
from unsmooth.hosts.inputs import image_size
from unsmooth.hosts.modes import eval_mode
from unsmooth.surgery.record import applied, record_of
from unsmooth.tasks.segmentation.options import SegmentationOptions

LEVELS = 4


class Segmenter(nn.Module):
    """UperNet on a timm host: logits (N, classes, H, W) of images (N, C, H, W), in training also auxiliary logits.

    A hierarchical host provides one map per resolution, the last four. A plain ViT provides the tokens of four evenly
    spaced blocks, resized to a pyramid by two deconvolutions, one, none, and max-pooling (strides 4, 8, 16 and 32 with
    patches of 16).

    Args:
        backbone: Host, with its remedies applied.
        options: Resolved options of the task.
    """

    def __init__(self, backbone: nn.Module, options: SegmentationOptions) -> None:
        super().__init__()
        upernet = import_upernet()
        self.options = options
        self.image_size = options.window
        self.channels = image_size(backbone)[0]
        self.indices, widths, self.multiple, plain = _levels(backbone, (self.channels, options.window, options.window))
        check_remedies_reached(backbone, self._maps_of(backbone))
        self.backbone = backbone
        self.neck = _pyramid(widths) if plain else nn.ModuleList(nn.Identity() for _ in widths)
        config = upernet.UperNetConfig(
            hidden_size=options.hidden, auxiliary_channels=max(1, options.hidden // 2), num_labels=options.classes
        )
        self.head = upernet.modeling_upernet.UperNetHead(config, widths)
        self.auxiliary = (
            upernet.modeling_upernet.UperNetFCNHead(config, widths, in_index=len(widths) - 2)
            if options.auxiliary else None
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = _intermediates(self.backbone, images, self.indices)
        maps = [scale(each) for scale, each in zip(self.neck, features, strict=True)]
        logits = _resize(self.head(maps), images)
        if self.training and self.auxiliary is not None:
            return logits, _resize(self.auxiliary(maps), images)
        return logits

    def _maps_of(self, backbone: nn.Module) -> Callable[[], Any]:
        image = _noise(backbone, (self.channels, self.options.window, self.options.window))
        return lambda: _intermediates(backbone, image, self.indices)

    def no_weight_decay(self) -> set[str]:
        """Parameters that the host excludes from weight decay."""
        excluded: Callable[[], Any] = getattr(self.backbone, "no_weight_decay", set)
        return {f"backbone.{name}" for name in excluded()}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[int]]:
        """Layers for timm's layer-wise learning rate decay: those of the host, and the heads as the last one."""
        from timm.models import group_parameters

        host: Any = self.backbone
        layers = group_parameters(host, host.group_matcher(coarse=coarse), reverse=True)
        top = max(layers.values()) + 1

        def layer(name: str) -> tuple[int]:
            child, _, rest = name.partition(".")
            return (layers[rest] if child == "backbone" else top,)

        return layer


def synchronise(model: Segmenter) -> None:
    """Synchronise the BatchNorm layers of neck and heads over all processes (GPUs only)."""
    for name in ("neck", "head", "auxiliary"):
        module = getattr(model, name)
        if module is not None:
            setattr(model, name, nn.SyncBatchNorm.convert_sync_batchnorm(module))


def import_upernet() -> Any:
    """Hugging Face's module of UperNet."""
    try:
        from transformers.models import upernet
    except ImportError as error:
        raise missing_package("the task segmentation", "transformers", "hf") from error
    return upernet


def check_remedies_reached(backbone: nn.Module, run: Callable[[], Any]) -> None:
    """Raise if a remedy acts on modules that the pass does not run, such as class-attention layers."""
    reached: set[str] = set()

    def note(name: str) -> Callable[..., None]:
        return lambda *_: reached.add(name)

    modules = dict(backbone.named_modules())
    sites = {attachment.target for entry in record_of(backbone).applied for attachment in entry.attachments}
    hooks = [modules[name].register_forward_pre_hook(note(name)) for name in sites]
    try:
        with eval_mode(backbone):
            run()
    finally:
        for hook in hooks:
            hook.remove()
    for entry in record_of(backbone).applied:
        missed = [attachment.target for attachment in entry.attachments if attachment.target not in reached]
        if missed:
            raise UnsmoothError(
                f"{entry.remedy} acts on {missed[0] or 'the whole model'}, which segmentation does not run. "
                f"Restrict it with blocks=…, or use another host than {_name(backbone)}."
            )


def check_any_size(model: Segmenter, name: str) -> None:
    """Raise if the model only accepts images of the crop size."""
    side = model.options.window
    try:
        with eval_mode(model):
            model(_noise(model.backbone, (model.channels, side, side + model.multiple)))
    except Exception as error:  # any error of a host at another size
        raise UnsmoothError(
            f"{name} only accepts images of {side} × {side} pixels. Use mode=slide, or a host for any size."
        ) from error


def _levels(backbone: nn.Module, size: tuple[int, int, int]) -> tuple[list[int], list[int], int, bool]:
    """Indices and channels of the feature maps, the divisor of image sides, and whether the host is a plain ViT."""
    name = _name(backbone)
    if not callable(getattr(backbone, "forward_intermediates", None)):
        raise UnsmoothError(
            f"{name} does not provide intermediate feature maps (timm's forward_intermediates), which segmentation "
            "needs. Use ViT, DeiT, BEiT, CaiT, Swin or PVT v2."
        )
    try:
        with eval_mode(backbone):
            maps = _intermediates(backbone, _noise(backbone, size), None)
    except Exception as error:  # any error of the host, or a remedy that this pass does not reach
        reason = first_line(error)
        raise UnsmoothError(f"{name} gives no feature maps for {size[2]} × {size[1]} pixels: {reason}") from error
    sides = [each.shape[-1] for each in maps]
    plain = len(set(sides)) == 1
    if plain:
        count = min(LEVELS, len(maps))
        indices = [(i + 1) * len(maps) // count - 1 for i in range(count)]
    else:
        indices = [i for i, side in enumerate(sides) if i + 1 == len(sides) or sides[i + 1] != side][-LEVELS:]
    if len(indices) < 2:
        raise UnsmoothError(f"{name} has a single feature map. Use a host with at least two blocks.")
    feature_info: Any = getattr(backbone, "feature_info", None) or ()
    strides = [info["reduction"] for info in feature_info] or [-(-size[-1] // side) for side in sides]
    multiple = int(max(strides))
    if size[-1] % multiple:
        below = size[-1] // multiple * multiple
        raise UnsmoothError(
            f"the crop must be a multiple of {multiple} for {name} (got {size[-1]}). "
            f"Use the option crop={below or multiple} or crop={below + multiple} (--option)."
        )
    return indices, [maps[i].shape[1] for i in indices], multiple, plain


def _pyramid(widths: list[int]) -> nn.ModuleList:
    """Modules that resize maps of one resolution to a pyramid."""

    def up(width: int) -> nn.Module:
        return nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)

    def twice(width: int) -> nn.Module:
        return nn.Sequential(up(width), nn.BatchNorm2d(width), nn.GELU(), up(width))

    makers: list[Callable[[int], nn.Module]] = [twice, up, lambda _: nn.Identity(), lambda _: nn.MaxPool2d(2)]
    return nn.ModuleList(make(width) for make, width in zip(makers, widths, strict=False))


def _intermediates(backbone: nn.Module, images: Tensor, indices: list[int] | None) -> list[Tensor]:
    host: Any = backbone
    maps: list[Tensor] = host.forward_intermediates(images, indices=indices, output_fmt="NCHW", intermediates_only=True)
    return maps


def _noise(backbone: nn.Module, size: tuple[int, int, int]) -> Tensor:
    parameter = next(backbone.parameters())
    image = torch.randn(1, *size, generator=torch.Generator().manual_seed(0))
    return image.to(parameter.device, parameter.dtype)


def _name(backbone: nn.Module) -> str:
    host = applied(backbone).host
    return type(backbone).__name__ if host is None else host.name


def _resize(logits: Tensor, images: Tensor) -> Tensor:
    return F.interpolate(logits, images.shape[-2:], mode="bilinear", align_corners=False)
