"""unsmooth prescribe: diagnose, try candidates on a stated budget, and recommend one or none."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Context, Option

from unsmooth.cli.options import RecipeName, TrainingData, takes_settings
from unsmooth.cli.outputs import check_directory, check_replaceable
from unsmooth.cli.recipe_options import recipe_fields
from unsmooth.cli.terminal import command_line, echo, emit, run_bars, show
from unsmooth.trials.settings import PrescribeSettings


@takes_settings(PrescribeSettings, names={"checkpoint": "from"})
def prescribe(
    context: Context,
    spec: Annotated[str, Argument(metavar="SPEC", help="model spec", show_default=False)],
    data: TrainingData,
    recipe: RecipeName = "small",
    *,
    settings: PrescribeSettings,
    json: Annotated[bool, Option("--json", help="print JSON instead of text")] = False,
) -> None:
    """Try remedies for a model's findings; recommend one or none.

    The model is diagnosed. Candidates for its findings are tried by successive halving on held-out training images,
    and the best one is compared with the model as it is, on fresh seeds. Every field of the recipe is an option too:
    --epochs 10 (see unsmooth list recipes). The same command resumes an interrupted prescription.
    """
    from unsmooth.report.prescription_table import as_rich
    from unsmooth.trials.directory import PrescriptionDirectory
    from unsmooth.trials.prescribe import prescribe as run_prescription

    directory = PrescriptionDirectory(settings.out)
    check_directory(directory.path)
    check_replaceable([directory.result, directory.report], "prescription")
    with run_bars() as bars:
        given = run_prescription(
            spec, data, recipe=recipe, settings=settings, on_progress=bars.on_progress, on_stage=bars.on_stage,
            progress=bars.on_runs, command=command_line(context), **recipe_fields(context),
        )  # fmt: skip
    if json:
        emit(given.to_json())
    else:
        show(as_rich(given))
    echo(f"wrote {directory.report} and {directory.result}")
