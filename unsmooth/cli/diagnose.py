"""unsmooth diagnose: the vitals of models, with findings, a verdict and a report."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from unsmooth.cli.terminal import command_line, echo, progress_bar, show
from unsmooth.diagnosis.settings import LIMIT
from unsmooth.errors import UnsmoothError, unknown

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis


def diagnose(
    context: Context,
    specs: Annotated[
        list[str], Argument(metavar="SPEC…", help="model specs, saved folders, or .json files of diagnoses")
    ],
    checkpoint: Annotated[list[Path], Option(help="weights to load, once for each spec, in order")] = [],  # noqa: B006
    images: Annotated[
        str | None, Option(metavar="FOLDER|DATASET|FILE.npz", help="images; without: photographs that come along")
    ] = None,
    data_dir: Annotated[Path | None, Option(metavar="DIR", help="where timm looks for the files of a data set")] = None,
    out: Annotated[Path | None, Option(metavar="DIR", help="write report and JSON there")] = None,
    json: Annotated[bool, Option("--json", help="print JSON instead of a table")] = False,
    vitals: Annotated[str, Option(help="names with commas, or default, or all: see unsmooth list vitals")] = "default",
    blocks: Annotated[str | None, Option(help="some blocks only: 6:, 0,3 or -1")] = None,
    format: Annotated[str, Option(help="of the report in DIR: html, or figures as png, svg or pdf")] = "html",
    prefix: Annotated[bool, Option(help="class and register tokens in token vitals")] = True,
    limit: Annotated[int, Option(help="look at so many images at most, spread over the data")] = LIMIT,
    batch_size: Annotated[int | None, Option(help="images at a time; chosen by the size of the maps")] = None,
    reference: Annotated[bool, Option(help="look at the same architecture at random start too")] = True,
) -> None:
    """Measure whether, where and why the tokens of a model collapse."""
    from unsmooth.diagnosis.diagnose import diagnose as run_diagnosis
    from unsmooth.report.tables import as_rich
    from unsmooth.results.diagnosis import Diagnosis

    _check_target(out, format)
    if len(checkpoint) not in (0, len(specs)):
        raise UnsmoothError(f"{len(specs)} specs and {len(checkpoint)} checkpoints: give one for each spec, or none")
    diagnoses = []
    for i, spec in enumerate(specs):
        if spec.endswith(".json"):
            diagnoses.append(Diagnosis.from_json(spec))
            continue
        with progress_bar(spec) as progress:
            diagnoses.append(
                run_diagnosis(
                    spec, images, vitals, blocks, checkpoint=checkpoint[i] if checkpoint else None, data_dir=data_dir,
                    prefix=prefix, limit=limit, batch_size=batch_size, reference=reference, progress=progress,
                    command=command_line(context),
                )
            )  # fmt: skip
    if json:
        texts = [diagnosis.to_json() for diagnosis in diagnoses]
        print(texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")  # noqa: T201
    else:
        for diagnosis in diagnoses:
            show(as_rich(diagnosis.data))
    if out is not None:
        for path in _write_report(diagnoses, out, format):
            echo(f"wrote {path}")


def _check_target(folder: Path | None, format: str) -> None:
    """Raise, before any work, if the report cannot be written."""
    from unsmooth.report.render import FORMATS

    if format not in FORMATS:
        raise unknown("report format", format, FORMATS)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UnsmoothError(f"{folder} is a file; --out takes a folder")


def _write_report(diagnoses: Sequence[Diagnosis], folder: Path, format: str) -> list[Path]:
    """Write a JSON file per diagnosis, and one report or one set of figures of all; return the paths."""
    from unsmooth.report.render import diagnosis_figures, render
    from unsmooth.utils.files import write

    data = [diagnosis.data for diagnosis in diagnoses]
    paths: list[Path] = []
    for i, diagnosis in enumerate(diagnoses):
        name = re.sub(r"[^A-Za-z0-9.+=-]+", "_", diagnosis.data["model"]["name"]).strip("_")[:80] or "model"
        paths.append(folder / f"{f'{i + 1}-' if len(diagnoses) > 1 else ''}{name}.json")
        diagnosis.to_json(paths[-1])
    if format == "html":
        paths.append(folder / "report.html")
        write(paths[-1], render(data, format))
        return paths
    for name, figure in diagnosis_figures(data).items():
        file = io.BytesIO()
        figure.savefig(file, format=format, bbox_inches="tight")
        paths.append(folder / f"{name}.{format}")
        write(paths[-1], file.getvalue())
    return paths
