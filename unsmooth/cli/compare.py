"""unsmooth compare: several models on the same budget, with intervals of their differences."""

from __future__ import annotations

from typing import Annotated, Any

from rich.markup import escape
from typer import Argument, Context, Option

from unsmooth.cli.options import RecipeName, TrainingData, takes_settings
from unsmooth.cli.recipe_options import recipe_fields
from unsmooth.cli.terminal import command_line, echo, emit, run_bars, show
from unsmooth.trials.settings import CompareSettings


@takes_settings(CompareSettings, names={"checkpoint": "from"})
def compare(
    context: Context,
    specs: Annotated[
        list[str], Argument(metavar="SPEC", help="model specs; each is compared with the first", show_default=False)
    ],
    data: TrainingData,
    recipe: RecipeName = "small",
    *,
    settings: CompareSettings,
    power: Annotated[
        bool, Option("--power", help="print the difference that the trial can detect, and train nothing")
    ] = False,
    json: Annotated[bool, Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Train several models on the same budget and compare them.

    Differences from the first model are reported with intervals. Every field of the recipe is an option too:
    --epochs 10 (see unsmooth list recipes). The same command resumes an interrupted trial; more specs or seeds extend
    it.
    """
    if power:
        _print_power(specs, data, recipe, settings, json, **recipe_fields(context))
        return
    from unsmooth.report.trial_table import as_rich
    from unsmooth.trials.compare import compare as run_trial
    from unsmooth.trials.directory import TrialDirectory

    directory = TrialDirectory(settings.out)
    with run_bars() as bars:
        trial = run_trial(
            specs, data, recipe=recipe, settings=settings, on_progress=bars.on_progress, on_stage=bars.on_stage,
            progress=bars.on_runs, command=command_line(context), **recipe_fields(context),
        )  # fmt: skip
    if json:
        emit(trial.to_json())
    else:
        show(as_rich(trial))
    echo(f"wrote {directory.report} and {directory.result}")


def _print_power(
    specs: list[str], data: str, recipe: str, settings: CompareSettings, json: bool, **fields: Any
) -> None:
    from pydantic import TypeAdapter

    from unsmooth.results.trial import Power
    from unsmooth.trials.compare import power

    stated = power(specs, data, recipe=recipe, settings=settings, **fields)
    if json:
        print(TypeAdapter(Power).dump_json(stated).decode())  # noqa: T201
    else:
        show([escape(stated.text)])
