"""unsmooth bench: what models cost beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from unsmooth.cli.terminal import command_line, echo, progress_bar, show
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.bench import bench as run_bench
from unsmooth.evaluation.energy import PRICES
from unsmooth.report.bench_table import as_rich


def bench(
    specs: Annotated[list[str], Argument(metavar="SPEC…", help="specs or saved folders; ratios are to the first")],
    precision: Annotated[str, Option(help=f"of the energy that is shown: {', '.join(PRICES)}")] = "fp32",
    throughput: Annotated[bool, Option(help="measure images per second")] = True,
    training: Annotated[bool, Option("--training", help="measure training steps too")] = False,
    batch_size: Annotated[int, Option(help="images at a time")] = 8,
    rounds: Annotated[int, Option(help="measurements of each model, in turn")] = 7,
    amp: Annotated[str, Option(help="precision of the measurements: none, auto, bfloat16 or float16")] = "none",
    image_size: Annotated[int, Option(help="side of the images, for hosts that take any")] = 0,
    device: Annotated[str | None, Option(help="cpu, cuda or cuda:1; without: a GPU where there is one")] = None,
    out: Annotated[Path | None, Option(metavar="FILE.json", help="write the JSON there")] = None,
    json: Annotated[bool, Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Say what models cost: parameters, operations by kind, energy of the arithmetic, and images per second."""
    if out is not None and (out.suffix != ".json" or out.is_dir()):
        raise UnsmoothError(f"--out takes a .json file, not {out}")
    with progress_bar("bench") as progress:
        found = run_bench(
            specs, precision=precision, throughput=throughput, training=training, batch_size=batch_size, rounds=rounds,
            amp=amp, image_size=image_size, device=device, progress=progress, command=command_line(),
        )  # fmt: skip
    if json:
        print(found.to_json())  # noqa: T201
    else:
        show(as_rich(found))
    if out is not None:
        found.to_json(out)
        echo(f"wrote {out}")
