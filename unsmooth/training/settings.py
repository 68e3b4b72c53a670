"""Settings of `unsmooth train`: everything about a run that is not its model, its data or its recipe."""

from __future__ import annotations

from unsmooth.utils.options import DataText, FilePath, option, options


@options
class TrainSettings:
    """Settings of one training run."""

    label = "train"

    out: FilePath | None = option(None, "run directory (default: runs/SPEC-DATA-seedN)")
    seed: int = option(0, "seed of weights, order and augmentation", low=0, high=2**62 - 1)
    checkpoint: FilePath | None = option(None, "weights to start from: a saved folder or a checkpoint file")
    pretrained: bool = option(False, "start from the library's pretrained weights")
    val_data: DataText | None = option(None, "validation images, if not part of the data")
    data_dir: FilePath | None = option(None, "directory of timm data set files")
    workers: int = option(0, "worker processes that load images", low=0)
    device: str = option("", "device: cpu, cuda or cuda:N (default: cuda if available)")
    strict_data: bool = option(False, "raise on a broken image instead of skipping it")
    save_every: float = option(600.0, "seconds between checkpoints within an epoch", low=0)
