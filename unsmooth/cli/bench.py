"""unsmooth bench: the cost of models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from unsmooth.cli.options import takes_settings
from unsmooth.cli.outputs import check_directory, check_replaceable
from unsmooth.cli.terminal import command_line, echo, emit, progress_bar, show
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.settings import BenchSettings


@takes_settings(BenchSettings)
def bench(
    context: Context,
    specs: Annotated[
        list[str],
        Argument(metavar="SPEC", help="model specs, or folders written by unsmooth; each is compared with the first"),
    ],
    *,
    settings: BenchSettings,
    out: Annotated[Path | None, Option(metavar="FILE.json", help="JSON file to write")] = None,
    json: Annotated[bool, Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Measure parameters, operations, energy and speed of models.

    Energy is estimated from the operations. Throughput is timed in interleaved rounds, so that all models are timed
    under the same conditions.
    """
    from unsmooth.report.bench_table import as_rich

    if out is not None and (out.suffix != ".json" or out.is_dir()):
        raise UnsmoothError(f"--out takes a .json file (got {out})")
    if out is not None:
        check_directory(out.parent)
        check_replaceable([out], "bench")
    with progress_bar("bench") as progress:
        from unsmooth.evaluation.bench import bench as run_bench

        result = run_bench(specs, progress=progress, settings=settings, command=command_line(context))
    if out is not None:
        result.to_json(out)
    if json:
        emit(result.to_json())
    else:
        show(as_rich(result))
    if out is not None:
        echo(f"wrote {out}")
