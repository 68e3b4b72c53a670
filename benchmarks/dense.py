"""What the collapse of a real ViT-S/14 costs: scores of its frozen tokens by block, with intervals.

The model is a saliency fine-tune of DINOv2 ViT-S/14, whose last two blocks collapse. Three kinds of data:

    scenes    scenes of scanned digits with known masks (unsmooth.papers.small_data), 64 px resized to 224 px: mIoU
    mosaics   mosaics of 2 × 2 CIFAR-10 images, whose mask is the class of each image, 64 px resized to 112 px: mIoU
    cifar10   CIFAR-10, 32 px resized to 112 px: accuracy of the mean token and of the class token

Writes results/dense_saliency_vits14.json: one evaluation per kind of data. The recorded run took
29 minutes on a core that it shared with other work.

    python benchmarks/dense.py FOLDER cifar10.npz vits14_saliency_fp16.safetensors [--only scenes]

FOLDER receives the scenes and the mosaics.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import unsmooth
from unsmooth.papers.small_data import write_ade20k
from unsmooth.results.evaluation import Evaluation
from unsmooth.results.measured import round_values

RESULT = Path(__file__).parent.parent / "results" / "dense_saliency_vits14.json"
HOST = "vit_small_patch14_dinov2(img_size={size})"
SIZES = {"scenes": 224, "mosaics": 112, "cifar10": 112}
SCENES = {"training": 100, "validation": 100}
MOSAICS = {"training": ("train", 500), "validation": ("test", 500)}  # split of CIFAR-10, number of mosaics
GRID = 2  # images per side of a mosaic
FIELDS: dict[str, dict[str, Any]] = {
    "scenes": {"mask_classes": 11, "memory_images": 100, "memory_tokens": 4000, "batch_size": 20},
    "mosaics": {"mask_classes": 10, "memory_images": 500, "memory_tokens": 4000, "batch_size": 50},
    "cifar10": {"memory_images": 2000, "limit": 2000, "batch_size": 50},
}
SOURCES = {"scenes": "scenes of scanned digits", "mosaics": "mosaics of CIFAR-10", "cifar10": "CIFAR-10"}


def write_mosaics(folder: Path, cifar10: Path) -> None:
    """Write mosaics in the layout of ADE20K. No image occurs twice."""
    with np.load(cifar10) as data:
        for split, (part, count) in MOSAICS.items():
            order = np.random.default_rng(0).permutation(len(data[f"y_{part}"]))[: count * GRID**2]
            pixels, labels = data[f"x_{part}"][order], data[f"y_{part}"][order]
            side = pixels.shape[1]
            tiles = pixels.reshape(count, GRID, GRID, side, side, 3).transpose(0, 1, 3, 2, 4, 5)
            masks = labels.reshape(count, GRID, GRID).repeat(side, 1).repeat(side, 2).astype(np.uint8) + 1
            for kind, arrays in {
                "images": tiles.reshape(count, GRID * side, GRID * side, 3),
                "annotations": masks,
            }.items():
                place = folder / kind / split
                place.mkdir(parents=True)
                for i, array in enumerate(arrays):
                    Image.fromarray(array).save(place / f"{i:05d}.png")


def measure(name: str, data: Path, checkpoint: Path) -> Evaluation:
    spec, fields = HOST.format(size=SIZES[name]), FIELDS[name]
    options = " ".join(f"--{field.replace('_', '-')} {value}" for field, value in fields.items())
    command = f"unsmooth evaluate '{spec}' --checkpoint {checkpoint.name} --tokens {data.name} {options}"

    def show(done: int, total: int | None) -> None:
        if done % 500 == 0:
            print(name, done, "of", total, flush=True)

    evaluation = unsmooth.evaluate(spec, tokens=data, checkpoint=checkpoint, command=command, progress=show, **fields)
    assert evaluation.tokens is not None
    evaluation.tokens.data, evaluation.model.checkpoint = SOURCES[name], checkpoint.name
    return evaluation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--only", choices=SIZES, help="measure this data again and keep the rest of the record")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scenes, mosaics = arguments.folder / "scenes", arguments.folder / "mosaics"
    if not scenes.exists():
        write_ade20k(scenes, SCENES)
    if not mosaics.exists():
        write_mosaics(mosaics, arguments.cifar10)
    records = json.loads(RESULT.read_text(encoding="utf-8")) if arguments.only else {}
    for name, data in {"scenes": scenes, "mosaics": mosaics, "cifar10": arguments.cifar10}.items():
        if arguments.only in (None, name):
            evaluation = measure(name, data, arguments.checkpoint)
            print(evaluation.tokens)
            records[name] = _rounded(evaluation.to_dict())
            RESULT.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {RESULT.name}; next: python -m tools.token_page (the figure), make docs")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else round_values(value)


if __name__ == "__main__":
    main()
