"""Records runs of `unsmooth paper`: every experiment with --small, and every figure on a real model.

    python benchmarks/papers.py FOLDER --data cifar10.npz [--only PAPER/NAME …] [--jobs 2]
    python benchmarks/papers.py FOLDER --images IMAGENET_PHOTOS --checkpoint vits14_saliency_fp16.safetensors
    python benchmarks/papers.py --redraw

The first command writes results/papers/small/PAPER/NAME.json, the second results/papers/vits14/PAPER/NAME.json. Both
write figures to docs/images/papers/, for docs/papers/. Runs are kept in FOLDER and not repeated. The third draws the
figures again whose numbers are in the records: gains, and curves. Maps, spectra and bounds are not in them.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image

from unsmooth.errors import Interrupted, UnsmoothError
from unsmooth.papers.catalogue import Experiment, list_papers
from unsmooth.papers.figures import curve_figure, gain_figure
from unsmooth.papers.request import RunRequest
from unsmooth.papers.run import reproduce
from unsmooth.report.figures import save
from unsmooth.results.reproduction import GroupResult, Reproduction
from unsmooth.trials.arms import plan_arms
from unsmooth.trials.directory import RUN_PATTERN, TrialDirectory

ROOT = Path(__file__).parent.parent
GALLERY, RECORDS = ROOT / "docs" / "images" / "papers", ROOT / "results" / "papers"
MODEL = "vit_small_patch14_dinov2(img_size=224)"
WIDTH, COLOURS = 1100, 64  # of figures in the docs


def selected(only: list[str]) -> Iterator[Experiment]:
    for paper in list_papers():
        for experiment in paper.experiments():
            if not only or experiment.id in only:
                yield experiment


def store(reproduction: Reproduction, folder: Path, target: Path, name: str) -> None:
    """Write the record, and its figures as small files."""
    owners: list[Reproduction | GroupResult] = [reproduction, *reproduction.groups]
    for i, owner in enumerate(owners):
        if owner.picture is not None:
            picture = f"{name}{'' if i == 0 else f'_{i}'}{Path(owner.picture).suffix}"
            if picture.endswith(".svg"):
                GALLERY.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / owner.picture, GALLERY / picture)
            else:
                shrink(folder / owner.picture, GALLERY / picture)
            owner.picture = picture
    write_record(reproduction, target)


def write_record(reproduction: Reproduction, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rounded(reproduction.to_dict()), indent=1, ensure_ascii=False)
    target.write_text(text + "\n", encoding="utf-8")


def redraw(experiment: Experiment, path: Path) -> None:
    """Draw the figures of a record again, as vectors. Figures of a diagnosis need more numbers than a record has."""
    record = Reproduction.from_json(path)
    figures: list[tuple[Reproduction | GroupResult, Figure | None]] = [(record, gain_figure(record))]
    if not experiment.figure:
        figures += [(group, curve_figure(group)) for group in record.groups]
    for owner, figure in figures:
        if owner.picture is not None and figure is not None:
            old, new = GALLERY / owner.picture, (GALLERY / owner.picture).with_suffix(".svg")
            old.unlink(missing_ok=True)
            new.write_bytes(save(figure, "svg"))
            owner.picture = new.name
    write_record(record, path)


def shrink(path: Path, target: Path) -> None:
    picture = Image.open(path).convert("RGB")
    if picture.width > WIDTH:
        picture = picture.resize((WIDTH, round(picture.height * WIDTH / picture.width)), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(file.getvalue())


def rounded(value: Any) -> Any:
    """Values with five significant digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def reuse_runs(experiment: Experiment, request: RunRequest, folder: Path) -> None:
    """Copy runs of other experiments with the same spec, seed, recipe and data."""
    if experiment.kind not in ("trial", "diagnosis") or experiment.finetuned:
        return
    done = {}
    for path in folder.glob(f"*/*/*/{RUN_PATTERN}/result.json"):
        settings = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
        if settings["checkpoint"] is None:
            done[settings["spec"], settings["seed"], json.dumps(settings["recipe"])] = path.parent
    for group in request.groups(experiment):
        if len(group.models) < 2:  # no trial: one model is trained by itself
            continue
        recipe = json.dumps(request.recipe(experiment, group).to_json())
        for arm in plan_arms(group.specs(small=True)):
            for seed in range(experiment.small.seeds):
                target = TrialDirectory(request.folder(group)).run_path(arm, seed)
                source = done.get((str(arm.spec), seed, recipe))
                if source is not None and not (target / "result.json").exists():
                    shutil.rmtree(target, ignore_errors=True)
                    shutil.copytree(source, target)


def record_small(experiment: Experiment, arguments: argparse.Namespace) -> None:
    needs_data = experiment.kind in ("trial", "diagnosis") or experiment.task == "mae"
    folder, data = arguments.folder / experiment.id, str(arguments.data) if needs_data else None
    shown = f" --data {arguments.data.name}" if needs_data else ""
    command = f"unsmooth paper {experiment.id} --small{shown}"
    request = RunRequest(out=folder, small=True, data=data, jobs=arguments.jobs, command=command)
    reuse_runs(experiment, request, arguments.folder)
    name = experiment.id.replace("/", "_")
    store(reproduce(experiment.id, request), folder, RECORDS / "small" / f"{experiment.id}.json", name)


def record_figure(experiment: Experiment, arguments: argparse.Namespace) -> None:
    folder, name = arguments.folder / "vits14" / experiment.id, f"{experiment.id.replace('/', '_')}_vits14"
    files = f"--checkpoint {arguments.checkpoint.name} --data {arguments.images.name}"
    command = f"unsmooth paper {experiment.id} --spec '{MODEL}' {files}"
    request = RunRequest(
        out=folder, spec=MODEL, checkpoints=[arguments.checkpoint], data=str(arguments.images), command=command
    )
    store(reproduce(experiment.id, request), folder, RECORDS / "vits14" / f"{experiment.id}.json", name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--redraw", action="store_true", help="draw figures again from the records")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.redraw:
        for experiment in selected(arguments.only):
            for path in RECORDS.glob(f"*/{experiment.id}.json"):
                redraw(experiment, path)
        return
    if arguments.folder is None:
        parser.error("FOLDER is missing: it keeps the runs")
    torch.set_num_threads(1)  # small hosts run fastest with one thread
    failed, seen = 0, set[str]()
    for experiment in selected(arguments.only):
        if arguments.data is None:
            view = repr((experiment.figure, experiment.blocks, experiment.curves))
            # The model has no remedies, and each view of it is recorded once.
            if experiment.kind != "diagnosis" or experiment.figure.startswith("learned") or view in seen:
                continue
            seen.add(view)
        started = time.time()
        try:
            (record_small if arguments.data is not None else record_figure)(experiment, arguments)
            print(f"{experiment.id}: {time.time() - started:.0f} s", flush=True)
        except Interrupted:
            raise
        except UnsmoothError as error:
            failed += 1
            print(f"{experiment.id}: {error}", flush=True)
        except Exception:
            failed += 1
            print(f"{experiment.id}: {traceback.format_exc()}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
