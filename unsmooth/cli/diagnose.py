"""unsmooth diagnose: the vitals of models, with findings, a verdict and a report."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text
from typer import Argument, Context, Option

from unsmooth.cli.options import DATA, DIR, takes_settings
from unsmooth.cli.outputs import FIGURE_METADATA, check_directory, check_replaceable
from unsmooth.cli.terminal import command_line, echo, emit, file_name, show
from unsmooth.diagnosis.settings import DiagnoseSettings
from unsmooth.errors import UnsmoothError, unknown

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.utils.processes import Processes
    from unsmooth.utils.progress import Progress

REPORT, KIND = "report.html", "diagnosis"


@takes_settings(DiagnoseSettings, without=["checkpoint"])
def diagnose(
    context: Context,
    specs: Annotated[
        list[str],
        Argument(metavar="SPEC", help="model specs, folders written by unsmooth, or .json files of diagnoses"),
    ],
    images: Annotated[
        str | None,
        Option(
            metavar=DATA, show_default=False,
            help="images: a folder, an .npz file or a timm dataset (default: sample photographs)",
        ),
    ] = None,
    checkpoint: Annotated[
        list[Path],
        Option(metavar="PATH", show_default=False, help="weights to load into the model; one per spec, in order"),
    ] = [],  # noqa: B006
    *,
    settings: DiagnoseSettings,
    out: Annotated[Path | None, Option(metavar=DIR, help="directory for the report and the JSON files")] = None,
    format: Annotated[
        str,
        Option(
            metavar="TEXT", show_default=False,
            help="format of the report: html, or figures as png, svg or pdf (default: html)",
        ),
    ] = "html",
    json: Annotated[bool, Option("--json", help="print JSON instead of a table")] = False,
) -> None:  # fmt: skip
    """Measure whether, where and why the tokens of a model collapse.

    Vitals are measured per block. Findings, a verdict and candidate remedies are derived from them. Several processes
    share the images: torchrun --nproc-per-node 4 -m unsmooth diagnose …
    """
    from unsmooth.report.tables import as_rich
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.utils.progress import show_progress

    _check_target(out, format)
    if len(checkpoint) not in (0, len(specs)):
        raise UnsmoothError(
            f"got {len(checkpoint)} checkpoints for {len(specs)} specs. Use --checkpoint once per spec, or not at all."
        )
    _check_sources(specs, checkpoint)
    if all(spec.endswith(".json") for spec in specs):
        _check_measured(context)
    diagnoses = []
    primary = os.environ.get("RANK", "0") == "0"  # only the first of several processes prints and writes
    with show_progress(None if primary else False, log=primary) as progress, _processes(settings.device) as processes:
        for i, spec in enumerate(specs):
            if spec.endswith(".json"):
                diagnoses.append(Diagnosis.from_json(spec))
                continue
            of = f"{spec}: " if len(specs) > 1 else ""
            progress(f"{of}loading torch", 0, None)
            from unsmooth.diagnosis.diagnose import diagnose as run_diagnosis  # torch is not needed to read files

            diagnoses.append(
                run_diagnosis(
                    spec, images, command=command_line(context),
                    progress=partial(_named, progress, of),
                    settings=replace(settings, checkpoint=checkpoint[i] if checkpoint else None),
                    processes=processes(),
                )
            )  # fmt: skip
        if not primary:
            return
        if out is not None:
            progress("report", 0, None)
        written = [] if out is None else _write_report(diagnoses, out, format)
    if json:
        texts = [diagnosis.to_json() for diagnosis in diagnoses]
        emit(texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")
    else:
        for i, diagnosis in enumerate(diagnoses):
            comparable = i > 0 and diagnosis.blocks == diagnoses[0].blocks
            show(as_rich(diagnosis, diagnoses[0] if comparable else None))
            if comparable:
                show([Text("Compared with the first:", style="bold"), *diagnoses[0].compare(diagnosis).lines()])
    for path in written:
        echo(f"wrote {path}")


@contextmanager
def _processes(device: str) -> Iterator[Callable[[], Processes]]:
    """A function that joins the processes of torchrun when it is first called. They are left at the end."""
    with ExitStack() as joined:

        @cache
        def join() -> Processes:
            from unsmooth.utils.processes import ALONE, init_processes

            if os.environ.get("WORLD_SIZE", "1") == "1":
                return ALONE
            processes = init_processes(device)
            joined.callback(processes.close)
            return processes

        yield join


def _named(report: Progress, of: str, stage: str, done: float, total: float | None) -> None:
    report(of + stage, done, total)


def _check_measured(context: Context) -> None:
    """Raise for options of a measurement, which a file of a diagnosis would ignore."""
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in context.params.items()
        if name not in ("specs", "out", "format", "json") and value is not None and value != []
    ]
    if given:
        raise UnsmoothError(
            f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect on .json files, which are measured "
            f"already. Leave {'it' if len(given) == 1 else 'them'} out, or diagnose the model again."
        )


def _check_sources(specs: Sequence[str], checkpoints: Sequence[Path]) -> None:
    """Raise for mistakes that can be seen without torch, whose import takes seconds."""
    from unsmooth.spec import parse

    for path in checkpoints:
        if not path.exists():
            raise UnsmoothError(f"{path} does not exist. Pass a checkpoint file, or a folder written by save.")
    for spec in specs:
        if not spec.endswith(".json") and not Path(spec).is_dir():
            parse(spec)


def _check_target(folder: Path | None, format: str) -> None:
    """Raise, before any work, if the report cannot be written."""
    from unsmooth.report.render import FORMATS

    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if folder is not None:
        check_directory(folder)
        if format == "html":
            check_replaceable([folder / REPORT], KIND)


def _write_report(diagnoses: Sequence[Diagnosis], folder: Path, format: str) -> list[Path]:
    """Write one JSON file per diagnosis, and a report or figures of all of them; return the paths."""
    from unsmooth.report.render import diagnosis_figures, render
    from unsmooth.utils.files import encode, write

    files: dict[Path, bytes] = {}
    for i, diagnosis in enumerate(diagnoses):
        name = f"{f'{i + 1}-' if len(diagnoses) > 1 else ''}{file_name(diagnosis.model.name)}"
        files[folder / f"{name}.json"] = encode(diagnosis.to_json())
    if format == "html":
        files[folder / REPORT] = render(diagnoses, format)
    else:
        for name, figure in diagnosis_figures(diagnoses).items():
            file = io.BytesIO()
            figure.savefig(file, format=format, bbox_inches="tight", metadata=FIGURE_METADATA[format])
            files[folder / f"{name}.{format}"] = file.getvalue()
    check_replaceable(files, KIND)
    for path, content in files.items():
        write(path, content)
    return list(files)
