"""Settings of `compare`: everything about a trial except its arms, data and recipe."""

from __future__ import annotations

from pathlib import Path

from unsmooth.utils.options import DataText, FilePath, option, options


@options
class CompareSettings:
    """Settings of one trial."""

    label = "compare"

    out: FilePath = option(Path("trial"), "trial directory")
    seeds: int = option(3, "runs per arm", low=1)
    jobs: int = option(1, "runs trained at the same time", low=1)
    checkpoint: FilePath | None = option(None, "weights that every arm starts from")
    pretrained: bool = option(False, "start every arm from the library's pretrained weights")
    val_data: DataText | None = option(None, "validation images, if not part of the data")
    data_dir: FilePath | None = option(None, "directory of timm data set files")
    workers: int = option(0, "worker processes that load images, per run", low=0)
    device: str = option("", "device: cpu, cuda or cuda:N (default: cuda if available)")
    strict_data: bool = option(False, "raise on a broken image instead of skipping it")
    robustness: bool = option(False, "score occluded and attacked images of every run")
    costs: bool = option(True, "measure parameters, operations and throughput")
    vitals: str = option("default", "vitals of the final models, comma-separated, or default, all or none")
    confidence: float = option(0.95, "confidence level of the intervals", low=0.5, high=0.9999)
