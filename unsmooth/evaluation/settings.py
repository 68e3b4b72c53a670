"""Settings of `unsmooth evaluate` and `unsmooth bench`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from unsmooth.utils.options import FilePath, Numbers, option, options

Amp = Literal["none", "auto", "bfloat16", "float16"]


def _device_name(value: Any) -> Any:
    """A `torch.device` as text, without importing torch."""
    return str(value) if type(value).__module__ == "torch" else value


Device = Annotated[str, BeforeValidator(_device_name)]


@options
class EvaluateSettings:
    """Test sets and settings of one evaluation."""

    label = "evaluate"

    checkpoint: FilePath | None = option(None, "weights to load into the model")
    data_dir: FilePath | None = option(None, "directory of timm data set files")
    occlusion: Numbers = option((), "shares of the image area to occlude at the centre")
    fgsm: Numbers = option((), "FGSM step sizes in pixel values (0 to 255)")
    imagenet_v2: FilePath | None = option(None, "ImageNet-V2 folder, class folders 0 to 999 or synsets")
    imagenet_a: FilePath | None = option(None, "ImageNet-A folder, class folders by synset")
    imagenet_r: FilePath | None = option(None, "ImageNet-R folder, class folders by synset")
    real: FilePath | None = option(None, "ImageNet validation folder, scored with ReaL labels")
    corrupted: FilePath | None = option(None, "folder of corrupted copies, CORRUPTION/SEVERITY/CLASS/…")
    throughput: bool = option(False, "measure images per second")
    batch_size: int = option(64, "images per batch", low=1)
    workers: int = option(0, "worker processes that load images", low=0)
    device: Device | None = option(None, "device: cpu, cuda, cuda:N or mps (default: cuda if available)")
    amp: Amp = option("none", "precision of autocast")
    limit: int | None = option(None, "maximum number of images per test, evenly spaced (default: all)", low=1)
    image_size: int = option(0, "image side, for hosts that accept any (default: 0, the host's own)", low=0)
    strict: bool = option(False, "raise on a broken image instead of skipping it")


@options
class BenchSettings:
    """Measurements and settings of one bench."""

    label = "bench"

    precision: Literal["fp32", "fp16", "int32", "int8"] = option("fp32", "precision of the energy column")
    throughput: bool = option(True, "measure images per second")
    training: bool = option(False, "measure a training step too")
    batch_size: int = option(8, "images per batch", low=1)
    rounds: int = option(7, "interleaved timing rounds", low=1)
    amp: Amp = option("none", "precision of autocast")
    image_size: int = option(0, "image side, for hosts that accept any (default: 0, the host's own)", low=0)
    device: Device | None = option(None, "device: cpu, cuda, cuda:N or mps (default: cuda if available)")
