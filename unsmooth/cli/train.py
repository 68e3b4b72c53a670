"""unsmooth train: one model on one budget; nothing is lost when it is cut."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Context, Option

from unsmooth.cli.recipe_options import recipe_fields
from unsmooth.cli.terminal import command_line, run_bars
from unsmooth.errors import UnsmoothError
from unsmooth.report.metrics import format_scores
from unsmooth.spec import bare_name
from unsmooth.tasks.registry import CLASSIFICATION
from unsmooth.training.observer import ProgressObserver
from unsmooth.training.run import SAVE_EVERY, default_folder
from unsmooth.training.run import train as run_training

DATA, DIR = "FOLDER|DATASET|FILE.npz", "DIR"


def train(
    context: Context,
    spec: Annotated[str, Argument(help="a model spec: HOST or HOST+remedy(option=value)")],
    data: Annotated[str, Option(metavar=DATA, help="training and validation images: see docs/data.md")],
    task: Annotated[str, Option(help="classification, segmentation, vqa or mae")] = CLASSIFICATION,
    option: Annotated[list[str], Option(metavar="NAME=VALUE", help="of the task: see its page in docs/")] = [],  # noqa: B006
    recipe: Annotated[str, Option(metavar="NAME|FILE.toml", help="see unsmooth list recipes")] = "small",
    out: Annotated[Path | None, Option(metavar=DIR, help="the run's folder; without: a name in runs/")] = None,
    seed: Annotated[int, Option(help="of weights, order, augmentation and dropout")] = 0,
    checkpoint: Annotated[Path | None, Option(help="weights to start from; another head starts anew")] = None,
    pretrained: Annotated[bool, Option("--pretrained", help="start from the weights of the host's library")] = False,
    val_data: Annotated[str | None, Option(metavar=DATA, help="validation images, if not in --data")] = None,
    data_dir: Annotated[Path | None, Option(metavar=DIR, help="where timm looks for the files of a data set")] = None,
    workers: Annotated[int, Option(help="processes that read images")] = 0,
    device: Annotated[str, Option(help="cpu, cuda or cuda:1; without: a GPU where there is one")] = "",
    strict_data: Annotated[bool, Option("--strict-data", help="stop at a broken image, do not skip it")] = False,
    save_every: Annotated[float, Option(help="seconds between two checkpoints within an epoch")] = SAVE_EVERY,
) -> None:
    """Train or fine-tune a model. Any field of the recipe can be given too: --epochs 10 --lr 1e-4 --mixup 0.8.

    The same command again goes on where a run was cut. Several processes: torchrun --nproc-per-node 4 -m unsmooth …
    """
    folder = out or default_folder(spec, data, seed, task)
    with run_bars() as bars:
        result = run_training(
            spec, data, task=task, options=_options(option), recipe=recipe, overrides=recipe_fields(context),
            out=folder, seed=seed, checkpoint=checkpoint, pretrained=pretrained, val_data=val_data, data_dir=data_dir,
            workers=workers, device=device, strict_data=strict_data, save_every=save_every,
            observer=ProgressObserver(bare_name(spec), bars.on_progress, on_stage=bars.on_stage), command=command_line(),
        )  # fmt: skip
    if os.environ.get("RANK", "0") != "0":
        return  # of several processes, the first one speaks
    best, skipped = result["best"], sum(map(len, result["skipped"].values()))
    console = Console()
    console.print(
        f"{format_scores(result)} on {result['images']:,} images after {result['epochs']} epochs "
        f"(best {format_scores(best)} after {best['epoch']}), {result['images_per_second']:,.0f} images/s",
        highlight=False,
    )
    if skipped:
        console.print(f"{skipped} broken images were skipped; {folder / 'result.json'} names them", highlight=False)
    console.print(
        f"{folder}: last/ and best/ hold the models, metrics.jsonl and tensorboard/ the curves", highlight=False
    )


def _options(given: list[str]) -> dict[str, str]:
    """`--option head=upernet` as words of a task."""
    pairs = [text.partition("=") for text in given]
    wrong = next((text for text, (name, equals, _) in zip(given, pairs, strict=True) if not (name and equals)), None)
    if wrong is not None:
        raise UnsmoothError(f"--option {wrong}: write NAME=VALUE")
    return {name: value for name, _, value in pairs}
