"""Settings of `compare`: everything about a trial except its arms, data and recipe."""

from __future__ import annotations

from pathlib import Path

from unsmooth.utils.options import DataText, FilePath, option, options


@options
class CompareSettings:
    """Settings of one trial."""

    label = "compare"

    out: FilePath = option("trial directory", default=Path("trial"))
    seeds: int = option("runs per arm", default=3, low=1)
    jobs: int = option("runs trained at the same time", default=1, low=1)
    checkpoint: FilePath | None = option("weights that every arm starts from", default=None)
    pretrained: bool = option("start every arm from the library's pretrained weights", default=False)
    val_data: DataText | None = option("validation images, if not part of the data", default=None)
    data_dir: FilePath | None = option("directory of timm dataset files", default=None)
    workers: int = option("worker processes that load images, per run", default=0, low=0)
    device: str = option("device: cpu, cuda or cuda:N (default: cuda if available)", default="")
    strict_data: bool = option("raise on a broken image instead of skipping it", default=False)
    robustness: bool = option("score occluded and attacked images of every run", default=False)
    costs: bool = option("measure parameters, operations and throughput", default=True)
    vitals: str = option("vitals of the final models, comma-separated, or default, all or none", default="default")
    confidence: float = option("confidence level of the intervals", default=0.95, low=0.5, high=0.9999)
