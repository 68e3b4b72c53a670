"""unsmooth evaluate: accuracy with intervals, robustness, tokens by block and throughput of one model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from unsmooth.cli.options import DATA, takes_settings
from unsmooth.cli.outputs import check_directory, check_replaceable
from unsmooth.cli.terminal import command_line, echo, emit, file_name, progress_bar, show
from unsmooth.evaluation.settings import EvaluateSettings


@takes_settings(EvaluateSettings, names={"strict": "strict_data"})
def evaluate(
    context: Context,
    spec: Annotated[str, Argument(metavar="SPEC", help="model spec, or folder written by unsmooth")],
    data: Annotated[
        str | None,
        Option(metavar=DATA, help="images to score: the validation split, or all images if there is no split"),
    ] = None,
    *,
    settings: EvaluateSettings,
    out: Annotated[Path | None, Option(metavar="FILE.json|DIR", help="JSON file or directory to write to")] = None,
    json: Annotated[bool, Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Score a model: accuracy, robustness, tokens and throughput.

    Accuracies are reported with 95 % intervals, on the data and on each selected robustness test. With --tokens, the
    frozen tokens of each block are scored by nearest neighbours and a linear probe.
    """
    from unsmooth.report.evaluation_table import as_rich

    to_file = out is not None and out.suffix == ".json" and not out.is_dir()
    if out is not None:
        check_directory(out.parent if to_file else out)
    with progress_bar(spec) as progress:
        from unsmooth.evaluation.evaluate import evaluate as run_evaluation

        result = run_evaluation(spec, data, progress=progress, settings=settings, command=command_line(context))
    path = None if out is None else out if to_file else out / f"evaluation-{file_name(result.model.name)}.json"
    if path is not None:
        check_replaceable([path], result.kind)
        result.to_json(path)
    if json:
        emit(result.to_json())
    else:
        show(as_rich(result))
    if path is not None:
        echo(f"wrote {path}")
