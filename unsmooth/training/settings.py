"""Settings of `unsmooth train`: everything about a run that is not its model, its data or its recipe."""

from __future__ import annotations

from unsmooth.utils.options import DataText, FilePath, option, options


@options
class TrainSettings:
    """Settings of one training run."""

    label = "train"

    out: FilePath | None = option("run directory (default: runs/SPEC-DATA-seedN)", default=None)
    seed: int = option("seed of weights, order and augmentation", default=0, low=0, high=2**62 - 1)
    checkpoint: FilePath | None = option(
        "initial weights: a checkpoint file, or a folder written by unsmooth", default=None
    )
    pretrained: bool = option("start from the library's pretrained weights", default=False)
    val_data: DataText | None = option("validation images, if not part of the data", default=None)
    data_dir: FilePath | None = option("folder of timm dataset files", default=None)
    workers: int = option("worker processes that load images", default=0, low=0)
    device: str = option("device: cpu, cuda or cuda:N (default: cuda if available)", default="")
    shard: bool = option("split weights and optimizer state over the processes of torchrun (FSDP2)", default=False)
    strict_data: bool = option("raise on a broken image instead of skipping it", default=False)
    save_every: float = option("seconds between checkpoints within an epoch", default=600.0, low=0)
