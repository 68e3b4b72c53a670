"""unsmooth evaluate: accuracy with intervals, robustness and cost of one model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from unsmooth.cli.terminal import command_line, progress_bar, show
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.evaluate import evaluate as run_evaluation
from unsmooth.report.evaluation_table import as_rich

DATA, DIR = "FOLDER|DATASET|FILE.npz", "DIR"


def evaluate(
    spec: Annotated[str, Argument(help="a model spec, or a folder written by unsmooth.save")],
    checkpoint: Annotated[Path | None, Option(help="weights to load into it")] = None,
    data: Annotated[str | None, Option(metavar=DATA, help="its validation split, or all where there is none")] = None,
    data_dir: Annotated[Path | None, Option(metavar=DIR, help="where timm looks for the files of a data set")] = None,
    occlusion: Annotated[str, Option(metavar="SHARES", help="hide the centre: shares of its area, as 0.25,0.5")] = "",
    fgsm: Annotated[str, Option(metavar="PIXELS", help="one step against the model: of 255, as 1,2")] = "",
    imagenet_v2: Annotated[Path | None, Option(metavar=DIR, help="ImageNet-V2: folders 0 to 999, or synsets")] = None,
    imagenet_a: Annotated[Path | None, Option(metavar=DIR, help="ImageNet-A: folders by synset")] = None,
    imagenet_r: Annotated[Path | None, Option(metavar=DIR, help="ImageNet-R: folders by synset")] = None,
    real: Annotated[Path | None, Option(metavar=DIR, help="ImageNet's validation images, for ReaL labels")] = None,
    corrupted: Annotated[Path | None, Option(metavar=DIR, help="corrupted copies: CORRUPTION/SEVERITY/CLASS/")] = None,
    throughput: Annotated[bool, Option("--throughput", help="measure images per second too")] = False,
    batch_size: Annotated[int, Option(help="images at a time")] = 64,
    workers: Annotated[int, Option(help="processes that read images")] = 0,
    device: Annotated[str | None, Option(help="cpu, cuda or cuda:1; without: a GPU where there is one")] = None,
    amp: Annotated[str, Option(help="precision: none, auto, bfloat16 or float16")] = "none",
    strict_data: Annotated[bool, Option("--strict-data", help="stop at a broken image, do not skip it")] = False,
    limit: Annotated[int | None, Option(help="so many images of each test at most, spread over it")] = None,
    image_size: Annotated[int, Option(help="side of the images, for a host that takes any")] = 0,
    out: Annotated[Path | None, Option(metavar="FILE.json|DIR", help="write the JSON there")] = None,
    json: Annotated[bool, Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Say how good a model is, with intervals, and how it holds on harder images."""
    if out is not None and out.suffix != ".json" and out.exists() and not out.is_dir():
        raise UnsmoothError(f"{out} is a file; --out takes a folder or a .json file")
    shares, steps = _numbers("occlusion", occlusion), _numbers("fgsm", fgsm)
    with progress_bar(spec) as progress:
        found = run_evaluation(
            spec, data, checkpoint=checkpoint, data_dir=data_dir, occlusion=shares, fgsm=steps, imagenet_v2=imagenet_v2,
            imagenet_a=imagenet_a, imagenet_r=imagenet_r, real=real, corrupted=corrupted, throughput=throughput,
            batch_size=batch_size, workers=workers, device=device, amp=amp, limit=limit, image_size=image_size,
            strict=strict_data, progress=progress, command=command_line(),
        )  # fmt: skip
    if json:
        print(found.to_json())  # noqa: T201
    else:
        show(as_rich(found))
    if out is not None:
        name = re.sub(r"[^A-Za-z0-9.+=-]+", "_", found.model.name).strip("_")[:80] or "model"
        path = out if out.suffix == ".json" and not out.is_dir() else out / f"evaluation-{name}.json"
        found.to_json(path)
        print(f"wrote {path}", file=sys.stderr)  # noqa: T201


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise UnsmoothError(f"--{option} takes numbers with commas, as 0.25,0.5, not {text!r}") from None
