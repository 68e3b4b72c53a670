"""A treated timm host under UperNet: features of four depths, a head over them, and an auxiliary head for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import image_size
from unsmooth.hosts.modes import eval_mode
from unsmooth.surgery.record import applied, record_of
from unsmooth.tasks.segmentation.options import SegmentationOptions

LEVELS = 4


class Segmenter(nn.Module):
    """Logits (N, classes, H, W) of images (N, C, H, W); in training with those of the auxiliary head.

    A host with stages gives one map of each resolution, the last four. A plain ViT gives the tokens of four blocks,
    evenly spread, made to a pyramid: two deconvolutions, one, none, max-pooling (strides 4, 8, 16, 32 with patches
    of 16). `options` say what it was trained for.
    """

    def __init__(self, backbone: nn.Module, options: SegmentationOptions) -> None:
        super().__init__()
        heads = upernet()
        self.options = options
        self.image_size = options.window
        self.channels = image_size(backbone)[0]
        self.indices, widths, self.multiple, plain = _levels(backbone, (self.channels, options.window, options.window))
        check_met(backbone, self._maps_of(backbone))
        self.backbone = backbone
        self.neck = _pyramid(widths) if plain else nn.ModuleList(nn.Identity() for _ in widths)
        config = heads.UperNetConfig(
            hidden_size=options.hidden, auxiliary_channels=max(1, options.hidden // 2), num_labels=options.classes
        )
        self.head = heads.modeling_upernet.UperNetHead(config, widths)
        self.auxiliary = (
            heads.modeling_upernet.UperNetFCNHead(config, widths, in_index=len(widths) - 2)
            if options.auxiliary else None
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        found = _intermediates(self.backbone, images, self.indices)
        maps = [scale(each) for scale, each in zip(self.neck, found, strict=True)]
        logits = _sized(self.head(maps), images)
        if self.training and self.auxiliary is not None:
            return logits, _sized(self.auxiliary(maps), images)
        return logits

    def _maps_of(self, backbone: nn.Module) -> Callable[[], Any]:
        image = _noise(backbone, (self.channels, self.options.window, self.options.window))
        return lambda: _intermediates(backbone, image, self.indices)

    def no_weight_decay(self) -> set[str]:
        """The host's own wish, for the optimiser."""
        wish: Callable[[], Any] = getattr(self.backbone, "no_weight_decay", set)
        return {f"backbone.{name}" for name in wish()}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[int]]:
        """Layers for timm's layer-wise learning rates: the host's, and everything above it as the last one."""
        from timm.models import group_parameters

        host: Any = self.backbone
        layers = group_parameters(host, host.group_matcher(coarse=coarse), reverse=True)
        top = max(layers.values()) + 1

        def layer(name: str) -> tuple[int]:
            part, _, rest = name.partition(".")
            return (layers[rest] if part == "backbone" else top,)

        return layer


def synchronise(model: Segmenter) -> None:
    """Have BatchNorm above the host see the batch of all processes, where each has few images (GPUs only)."""
    for name in ("neck", "head", "auxiliary"):
        part = getattr(model, name)
        if part is not None:
            setattr(model, name, nn.SyncBatchNorm.convert_sync_batchnorm(part))


def upernet() -> Any:
    """Hugging Face's UperNet."""
    try:
        from transformers.models import upernet as found
    except ImportError as error:
        raise UnsmoothError("segmentation needs an extra: pip install 'unsmooth[hf]'") from error
    return found


def check_met(backbone: nn.Module, run: Callable[[], Any]) -> None:
    """Refuse remedies that sit where this pass does not go: class-attention layers, or the end of the host."""
    reached: set[str] = set()

    def note(name: str) -> Callable[..., None]:
        return lambda *_: reached.add(name)

    modules = dict(backbone.named_modules())
    sites = {attachment.at for entry in record_of(backbone).entries for attachment in entry.attachments}
    hooks = [modules[name].register_forward_pre_hook(note(name)) for name in sites]
    try:
        with eval_mode(backbone):
            run()
    finally:
        for hook in hooks:
            hook.remove()
    for entry in record_of(backbone).entries:
        missed = [attachment.at for attachment in entry.attachments if attachment.at not in reached]
        if missed:
            raise UnsmoothError(
                f"{entry.part} acts on {missed[0] or 'the whole model'}, which segmentation does not run; "
                f"restrict it with blocks=…, or choose another host than {_name(backbone)}"
            )


def check_any_size(model: Segmenter, name: str) -> None:
    """Refuse a host that takes images of the size of a crop and no others."""
    side = model.options.window
    try:
        with eval_mode(model):
            model(_noise(model.backbone, (model.channels, side, side + model.multiple)))
    except Exception as error:  # whatever a host makes of a size that it was not built for
        raise UnsmoothError(
            f"{name} takes images of {side} × {side} pixels only: evaluate with mode=slide, or build it for any size"
        ) from error


def _levels(backbone: nn.Module, size: tuple[int, int, int]) -> tuple[list[int], list[int], int, bool]:
    """Which of a host's maps to take, their channels, what sides must be a multiple of, and whether it is plain."""
    name = _name(backbone)
    if not callable(getattr(backbone, "forward_intermediates", None)):
        raise UnsmoothError(
            f"{name} does not give the maps between its layers (timm's forward_intermediates), so it cannot be "
            "segmented with; ViT, DeiT, BEiT, CaiT, Swin and PVT v2 can"
        )
    try:
        with eval_mode(backbone):
            maps = _intermediates(backbone, _noise(backbone, size), None)
    except RuntimeError as error:
        if str(error).startswith("unsmooth:"):  # a remedy that would be silently off
            raise UnsmoothError(str(error).removeprefix("unsmooth: ")) from error
        raise _unfit(name, size, error) from error
    except Exception as error:
        raise _unfit(name, size, error) from error
    sides = [each.shape[-1] for each in maps]
    plain = len(set(sides)) == 1
    if plain:
        count = min(LEVELS, len(maps))
        indices = [(i + 1) * len(maps) // count - 1 for i in range(count)]
    else:
        indices = [i for i, side in enumerate(sides) if i + 1 == len(sides) or sides[i + 1] != side][-LEVELS:]
    if len(indices) < 2:
        raise UnsmoothError(f"{name} has one map only: a pyramid needs a host of two blocks or more")
    known: Any = getattr(backbone, "feature_info", None) or ()
    strides = [info["reduction"] for info in known] or [-(-size[-1] // side) for side in sides]
    multiple = int(max(strides))
    if size[-1] % multiple:
        below = size[-1] // multiple * multiple
        raise UnsmoothError(
            f"{name} divides images into parts of {multiple} pixels, and {size[-1]} is no multiple of it: try "
            f"--option crop={below or multiple} or crop={below + multiple}"
        )
    return indices, [maps[i].shape[1] for i in indices], multiple, plain


def _pyramid(widths: list[int]) -> nn.ModuleList:
    """Four resolutions of maps that all have the same."""

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


def _sized(logits: Tensor, images: Tensor) -> Tensor:
    return F.interpolate(logits, images.shape[-2:], mode="bilinear", align_corners=False)


def _unfit(name: str, size: tuple[int, int, int], error: Exception) -> UnsmoothError:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return UnsmoothError(f"{name} cannot give its maps of images of {size[2]} × {size[1]} pixels: {first}")
