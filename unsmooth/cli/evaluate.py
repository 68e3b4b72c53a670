"""unsmooth evaluate: accuracy with intervals, robustness, tokens by block and throughput of one model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from unsmooth.cli.options import DATA, takes_settings
from unsmooth.cli.terminal import command_line, echo, file_name, progress_bar, show
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.settings import EvaluateSettings


@takes_settings(EvaluateSettings, names={"strict": "strict_data"})
def evaluate(
    context: Context,
    spec: Annotated[str, Argument(metavar="SPEC", help="model spec, or folder written by unsmooth")],
    data: Annotated[
        str | None,
        Option(metavar=DATA, help="images, of which the validation split is used, or all if there is none"),
    ] = None,
    *,
    settings: EvaluateSettings,
    out: Annotated[Path | None, Option(metavar="FILE.json|DIR", help="JSON file or directory to write to")] = None,
    json: Annotated[bool, Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Score a model: accuracy, robustness, tokens by block and throughput.

    Accuracies are reported with 95 % intervals, on the data and on each selected robustness test. With --tokens, the
    frozen tokens of each block are scored by nearest neighbours and a linear probe.
    """
    from unsmooth.evaluation.evaluate import evaluate as run_evaluation
    from unsmooth.report.evaluation_table import as_rich

    if out is not None and out.suffix != ".json" and out.exists() and not out.is_dir():
        raise UnsmoothError(f"{out} is a file; --out takes a folder or a .json file")
    with progress_bar(spec) as progress:
        result = run_evaluation(spec, data, progress=progress, settings=settings, command=command_line(context))
    if json:
        print(result.to_json())  # noqa: T201
    else:
        show(as_rich(result))
    if out is not None:
        name = file_name(result.model.name)
        path = out if out.suffix == ".json" and not out.is_dir() else out / f"evaluation-{name}.json"
        result.to_json(path)
        echo(f"wrote {path}")
