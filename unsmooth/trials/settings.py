"""Settings of `compare`: everything about a trial except its arms, data and recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from unsmooth.evaluation.settings import TokenOptions
from unsmooth.utils.options import DataText, FilePath, option, options


def _sweep_text(value: Any) -> Any:
    """`{"lr": [5e-4, 1e-3]}` as `lr=0.0005,0.001`."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((field, values),) = value.items()
        if isinstance(values, list | tuple):
            return f"{field}={','.join(map(str, values))}"
    return value


SweepText = Annotated[str, BeforeValidator(_sweep_text)]


@options
class CompareSettings(TokenOptions):
    """Settings of one trial."""

    label = "compare"

    out: FilePath = option("trial directory", default=Path("trial"))
    seeds: int = option("runs per arm", default=3, low=1)
    jobs: int = option("runs trained at the same time", default=1, low=1)
    cluster: Literal["none", "ray"] = option(
        "cluster that trains the runs; without one, this machine trains --jobs of them at a time",
        default="none",
    )
    run_cpus: float = option("CPUs of each run on a cluster", default=1.0, above=0)
    run_gpus: float = option("GPUs of each run on a cluster", default=0.0, low=0)
    checkpoint: FilePath | None = option("trained host that every arm starts from: a file or a folder", default=None)
    pretrained: bool = option("start every arm from the library's pretrained weights", default=False)
    sweep: SweepText = option(
        "recipe field and values to choose from for each arm, on held-out training images: lr=5e-4,1e-3", default=""
    )
    sweep_epochs: int = option("epochs of each run of the sweep; 0: those of the recipe", default=0, low=0)
    until: float | None = option(
        "difference in points that does not matter: seeds are added until each arm is better, worse or within it, at "
        "most --seeds",
        default=None,
        above=0,
    )
    controls: Literal["none", "parameters", "seeds", "all"] = option(
        "extra arms: the first spec with at least as many parameters as any arm, the first spec with other seeds, or "
        "both",
        default="none",
    )
    val_data: DataText | None = option("validation images, if not part of the data", default=None)
    data_dir: FilePath | None = option("folder of timm dataset files", default=None)
    workers: int = option("worker processes that load images, per run", default=0, low=0)
    device: str = option("device: cpu, cuda or cuda:N (default: cuda if available)", default="")
    strict_data: bool = option("raise on a broken image instead of skipping it", default=False)
    robustness: bool = option("score occluded and attacked images of every run", default=False)
    costs: bool = option("measure parameters, operations and throughput", default=True)
    vitals: str = option("vitals of the final models, comma-separated, or default, all or none", default="default")
    confidence: float = option("confidence level of the intervals", default=0.95, low=0.5, high=0.9999)


@options
class PrescribeSettings:
    """Settings of one prescription."""

    label = "prescribe"

    out: FilePath = option("directory of the prescription", default=Path("prescription"))
    budget: float = option("maximum training in total, in runs of the recipe's epochs", default=12.0, above=0)
    seeds: int = option("fresh seeds per arm of the final comparison", default=3, low=2)
    candidates: int = option("maximum number of candidates, in the order of the diagnosis", default=6, low=1)
    factor: int = option("reduction of candidates from rung to rung", default=2, low=2)
    finalists: int = option("candidates in the final comparison", default=1, low=1)
    jobs: int = option("runs trained at the same time", default=1, low=1)
    checkpoint: FilePath | None = option("trained weights to diagnose and start from: a file or a folder", default=None)
    pretrained: bool = option("diagnose and start from the library's pretrained weights", default=False)
    val_data: DataText | None = option("validation images, if not part of the data", default=None)
    data_dir: FilePath | None = option("folder of timm dataset files", default=None)
    workers: int = option("worker processes that load images, per run", default=0, low=0)
    device: str = option("device: cpu, cuda or cuda:N (default: cuda if available)", default="")
    strict_data: bool = option("raise on a broken image instead of skipping it", default=False)
    costs: bool = option("measure parameters, operations and throughput of the finalists", default=True)
    confidence: float = option("confidence level of the intervals", default=0.95, low=0.5, high=0.9999)
