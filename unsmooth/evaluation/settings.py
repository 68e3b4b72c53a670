"""Settings of `unsmooth evaluate` and `unsmooth bench`, and of token scores."""

from __future__ import annotations

from typing import Literal

from unsmooth.utils.options import Amp, DataText, Device, FilePath, Numbers, option, options


@options
class TokenOptions:
    """What scores the frozen tokens of each block, in `evaluate` and in `compare`."""

    tokens: DataText | None = option("data with labels or masks that score the tokens of each block", default=None)
    memory_images: int = option("training images that token probes are fitted on", default=1000, low=2)
    memory_tokens: int = option("with masks: patch tokens kept per block", default=8192, low=2)
    neighbours: int = option("neighbours that vote in token probes", default=20, low=1)
    mask_classes: int = option("number of classes of the masks", default=150, low=2)
    reduce_zero_label: bool = option("treat mask value 0 as unlabelled and 1 as the first class", default=True)


@options
class EvaluateSettings(TokenOptions):
    """Test sets and settings of one evaluation."""

    label = "evaluate"

    checkpoint: FilePath | None = option("weights to load into the model", default=None)
    data_dir: FilePath | None = option("folder of timm dataset files", default=None)
    occlusion: Numbers = option("shares of the image area to occlude at the centre", default=())
    fgsm: Numbers = option("FGSM step sizes in pixel values (0 to 255)", default=())
    imagenet_v2: FilePath | None = option("ImageNet-V2 folder, class folders 0 to 999 or synsets", default=None)
    imagenet_a: FilePath | None = option("ImageNet-A folder, class folders by synset", default=None)
    imagenet_r: FilePath | None = option("ImageNet-R folder, class folders by synset", default=None)
    real: FilePath | None = option("ImageNet validation folder, scored with ReaL labels", default=None)
    corrupted: FilePath | None = option("folder of corrupted copies, CORRUPTION/SEVERITY/CLASS/…", default=None)
    throughput: bool = option("measure images per second", default=False)
    batch_size: int = option("images per batch", default=64, low=1)
    workers: int = option("worker processes that load images", default=0, low=0)
    device: Device | None = option("device: cpu, cuda, cuda:N or mps (default: cuda or mps if available)", default=None)
    amp: Amp = option("precision of autocast", default="none")
    limit: int | None = option("maximum number of images per test, evenly spaced (default: all)", default=None, low=1)
    image_size: int = option("image side, for hosts that accept any (default: 0, the host's own)", default=0, low=0)
    strict: bool = option("raise on a broken image instead of skipping it", default=False)


@options
class BenchSettings:
    """Measurements and settings of one bench."""

    label = "bench"

    precision: Literal["fp32", "fp16", "int32", "int8"] = option("precision of the energy column", default="fp32")
    throughput: bool = option("measure images per second", default=True)
    training: bool = option("measure a training step too", default=False)
    batch_size: int = option("images per batch", default=8, low=1)
    rounds: int = option("interleaved timing rounds", default=7, low=1)
    amp: Amp = option("precision of autocast", default="none")
    image_size: int = option("image side, for hosts that accept any (default: 0, the host's own)", default=0, low=0)
    device: Device | None = option("device: cpu, cuda, cuda:N or mps (default: cuda or mps if available)", default=None)
