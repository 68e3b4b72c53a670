"""Records what `unsmooth paper` measures here: every part with --small, and every figure on a real model.

    python benchmarks/papers.py FOLDER --data cifar10.npz [--only PAPER/PART …] [--jobs 2]
    python benchmarks/papers.py FOLDER --images IMAGENET_PHOTOS --checkpoint vits14_saliency_fp16.safetensors

The first writes results/papers/small/PAPER/PART.json, the second results/papers/vits14/PAPER/PART.json; both write
pictures to docs/images/papers/. `make docs` writes docs/papers/ from them. FOLDER keeps runs, which are not repeated.
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
from PIL import Image

from unsmooth.errors import UnsmoothError
from unsmooth.papers.catalogue import Experiment, list_papers
from unsmooth.papers.request import RunRequest
from unsmooth.papers.run import reproduce
from unsmooth.recipes.recipe import load_recipe
from unsmooth.training.run import Interrupted
from unsmooth.trials.arms import arms_of

ROOT = Path(__file__).parent.parent
GALLERY, RECORDS = ROOT / "docs" / "images" / "papers", ROOT / "results" / "papers"
MODEL = "vit_small_patch14_dinov2(img_size=224)"
WIDTH, COLOURS = 1100, 64  # of a picture in the docs


def chosen(only: list[str]) -> Iterator[Experiment]:
    for paper in list_papers():
        for experiment in paper.experiments():
            if not only or experiment.id in only:
                yield experiment


def keep(found: dict[str, Any], folder: Path, target: Path, name: str) -> None:
    """The record, and its pictures as small files under names that tell what they are."""
    for at, place in enumerate([found, *found["groups"]]):
        if "picture" in place:
            picture = f"{name}{'' if at == 0 else f'_{at}'}.png"
            shrink(folder / place["picture"], GALLERY / picture)
            place["picture"] = picture
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(rounded(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def shrink(path: Path, target: Path) -> None:
    picture = Image.open(path).convert("RGB")
    if picture.width > WIDTH:
        picture = picture.resize((WIDTH, round(picture.height * WIDTH / picture.width)), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(file.getvalue())


def rounded(value: Any) -> Any:
    """Five digits are more than any interval here justifies, and make a file that can be read."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def take_over(experiment: Experiment, request: RunRequest, folder: Path) -> None:
    """Copy runs that another part has done already: the same spec, seed and recipe on the same data give the same."""
    if experiment.kind not in ("trial", "diagnosis") or experiment.finetuned:
        return
    done = {}
    for path in folder.glob("*/*/*/runs/*/seed*/result.json"):
        settings = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
        if settings["checkpoint"] is None:
            done[settings["spec"], settings["seed"], json.dumps(settings["recipe"])] = path.parent
    for group in request.groups(experiment):
        recipe = json.dumps(load_recipe(experiment.small.recipe, request.fields(experiment, group)).to_json())
        for arm in arms_of(group.specs(small=True)):
            for seed in range(experiment.small.seeds):
                target, source = arm.folder(request.folder(group), seed), done.get((arm.spec, seed, recipe))
                if source is not None and not (target / "result.json").exists():
                    shutil.rmtree(target, ignore_errors=True)
                    shutil.copytree(source, target)


def record(experiment: Experiment, given: argparse.Namespace) -> None:
    needs = experiment.kind in ("trial", "diagnosis") or experiment.task == "mae"
    folder, data = given.folder / experiment.id, str(given.data) if needs else None
    shown = f" --data {given.data.name}" if needs else ""
    command = f"unsmooth paper {experiment.id} --small{shown}"
    request = RunRequest(out=folder, small=True, data=data, jobs=given.jobs, command=command)
    take_over(experiment, request, given.folder)
    name = experiment.id.replace("/", "_")
    keep(reproduce(experiment.id, request).data, folder, RECORDS / "small" / f"{experiment.id}.json", name)


def look(experiment: Experiment, given: argparse.Namespace) -> None:
    folder, name = given.folder / "vits14" / experiment.id, f"{experiment.id.replace('/', '_')}_vits14"
    files = f"--checkpoint {given.checkpoint.name} --data {given.images.name}"
    command = f"unsmooth paper {experiment.id} --spec '{MODEL}' {files}"
    request = RunRequest(
        out=folder, spec=MODEL, checkpoints=[given.checkpoint], data=str(given.images), command=command
    )
    keep(reproduce(experiment.id, request).data, folder, RECORDS / "vits14" / f"{experiment.id}.json", name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)  # small hosts lose more by waiting for each other than they gain
    failed, seen = 0, set[tuple[Any, ...]]()
    for experiment in chosen(given.only):
        if given.data is None:
            view = (experiment.figure, experiment.blocks, *experiment.curves)
            # What a remedy has learned is not there to be seen, and the same view of one model is shown once.
            if experiment.kind != "diagnosis" or experiment.figure == "learned" or view in seen:
                continue
            seen.add(view)
        begun = time.time()
        try:
            (record if given.data is not None else look)(experiment, given)
            print(f"{experiment.id}: {time.time() - begun:.0f} s", flush=True)
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
