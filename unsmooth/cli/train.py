"""unsmooth train: train one model, and resume it after an interruption."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from rich.markup import escape
from typer import Argument, Context, Option

from unsmooth.cli.options import RecipeName, TrainingData, takes_settings
from unsmooth.cli.recipe_options import recipe_fields
from unsmooth.cli.terminal import command_line, run_bars, show
from unsmooth.errors import UnsmoothError
from unsmooth.tasks.table import CLASSIFICATION, TASKS
from unsmooth.training.settings import TrainSettings


@takes_settings(TrainSettings)
def train(
    context: Context,
    spec: Annotated[str, Argument(metavar="SPEC", help="model spec: HOST or HOST+remedy(option=value)")],
    data: TrainingData,
    recipe: RecipeName = "small",
    task: Annotated[
        str,
        Option(
            metavar="TASK",
            show_default=False,
            help=f"task: {', '.join(TASKS)} (default: {CLASSIFICATION})",
        ),
    ] = CLASSIFICATION,
    option: Annotated[
        list[str],
        Option(metavar="NAME=VALUE", show_default=False, help="option of the task; repeat it for several options"),
    ] = [],  # noqa: B006
    *,
    settings: TrainSettings,
) -> None:
    """Train or fine-tune a model.

    Every field of the recipe is an option too: --epochs 10 --lr 1e-4 --mixup 0.8 (see unsmooth list recipes). The same
    command resumes an interrupted run. Several processes: torchrun --nproc-per-node 4 -m unsmooth train …
    """
    from unsmooth.spec import bare_name
    from unsmooth.training.observer import ProgressObserver
    from unsmooth.training.run import default_run_dir
    from unsmooth.training.run import train as run_training

    folder = settings.out or default_run_dir(spec, data, settings.seed, task)
    with run_bars() as bars:
        result = run_training(
            spec, data, task=task, options=_task_options(option), recipe=recipe, settings=replace(settings, out=folder),
            observer=ProgressObserver(bare_name(spec), bars.on_progress, on_stage=bars.on_stage),
            command=command_line(context), **recipe_fields(context),
        )  # fmt: skip
    if os.environ.get("RANK", "0") != "0":
        return  # only the first of several processes prints
    files = f"{folder}: models in last/ and best/, curves in metrics.jsonl and tensorboard/"
    show(map(escape, (*str(result).splitlines(), files)))


def _task_options(pairs: Sequence[str]) -> dict[str, str]:
    """Options of a task by name: `--option head=upernet`."""
    options: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise UnsmoothError(f"--option takes NAME=VALUE (got {pair!r})")
        options[name] = value
    return options
