"""unsmooth compare: several models on one budget, and whether they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from unsmooth.cli.recipe_options import recipe_fields
from unsmooth.cli.terminal import command_line, echo, run_bars, show
from unsmooth.cli.train import DATA, DIR
from unsmooth.report.trial_table import as_rich
from unsmooth.trials.compare import compare as run_trial
from unsmooth.trials.directory import TrialDirectory


def compare(
    context: Context,
    specs: Annotated[list[str], Argument(metavar="SPEC…", help="model specs; the rest is compared with the first")],
    data: Annotated[str, Option(metavar=DATA, help="training and validation images: see docs/data.md")],
    seeds: Annotated[int, Option(help="runs of each spec, from other weights and in other order")] = 3,
    recipe: Annotated[str, Option(metavar="NAME|FILE.toml", help="see unsmooth list recipes")] = "small",
    out: Annotated[Path, Option(metavar=DIR, help="the trial's folder")] = Path("trial"),
    jobs: Annotated[int, Option(help="runs at the same time")] = 1,
    robustness: Annotated[bool, Option("--robustness", help="centre occlusion and FGSM of every run too")] = False,
    vitals: Annotated[str, Option(help="vitals of the final models: names with commas, default, or none")] = "default",
    costs: Annotated[bool, Option(help="measure parameters, operations and throughput")] = True,
    confidence: Annotated[float, Option(help="of the intervals")] = 0.95,
    checkpoint: Annotated[Path | None, Option(help="weights that every arm starts from")] = None,
    pretrained: Annotated[bool, Option("--pretrained", help="start from the weights of the host's library")] = False,
    val_data: Annotated[str | None, Option(metavar=DATA, help="validation images, if not in --data")] = None,
    data_dir: Annotated[Path | None, Option(metavar=DIR, help="where timm looks for the files of a data set")] = None,
    workers: Annotated[int, Option(help="processes that read images, for each run")] = 0,
    device: Annotated[str, Option(help="cpu, cuda or cuda:1; without: the GPUs, or the CPU")] = "",
    strict_data: Annotated[bool, Option("--strict-data", help="stop at a broken image, do not skip it")] = False,
    json: Annotated[bool, Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Train each spec on one budget and say what differs, with intervals. Recipe fields as in train: --epochs 10.

    The same command again goes on where it was cut; more specs or seeds add to what is done.
    """
    fields: dict[str, Any] = dict(recipe_fields(context))
    with run_bars() as bars:
        trial = run_trial(
            specs, data, seeds=seeds, recipe=recipe, out=out, jobs=jobs,
            checkpoint=checkpoint, pretrained=pretrained, val_data=val_data, data_dir=data_dir, workers=workers,
            device=device, strict_data=strict_data, robustness=robustness, costs=costs, confidence=confidence,
            vitals=vitals, on_progress=bars.on_progress, on_stage=bars.on_stage, command=command_line(),
            **fields,
        )  # fmt: skip
    if json:
        print(trial.to_json())  # noqa: T201
    else:
        show(as_rich(trial))
    directory = TrialDirectory(out)
    echo(f"wrote {directory.report} and {directory.result}")
