"""Small data sets in the formats of ADE20K and VQAv2, made of scikit-learn's scanned digits.

A scene is a grid of cells on a noise background; most cells hold a digit, enlarged three times. Segmentation: pixels of
ink have the class of their digit. Questions: which digit is where, how many there are, and whether one is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unsmooth.utils.files import write

CELL, GRID, TIMES = 32, 2, 3
INK = 6  # of 16: pixels at least this dark belong to the digit
SPLITS = {"training": 120, "validation": 40}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLACES = ("top left", "top right", "bottom left", "bottom right")

Array = np.ndarray[Any, Any]
Scene = tuple[Array, Array, list[int | None]]  # picture, class of each pixel (1: background), digit of each cell


def scenes(split: str, count: int | None = None) -> Iterator[Scene]:
    """The scenes of a split, the same each time; `count` of them instead of `SPLITS`. No scan is in both splits."""
    from sklearn.datasets import load_digits

    digits, index = load_digits(), list(SPLITS).index(split)
    generator = np.random.default_rng(index)
    scans = np.arange(index, len(digits.images), len(SPLITS))
    for _ in range(SPLITS[split] if count is None else count):
        side = CELL * GRID
        picture = generator.integers(20, 90, (side, side, 3)).astype(np.uint8)
        classes = np.zeros((side, side), dtype=np.uint8)
        cells: list[int | None] = []
        for cell in range(GRID * GRID):
            if cells.count(None) < GRID and generator.random() < 0.35:
                cells.append(None)
                continue
            scan = int(generator.choice(scans))
            ink = np.kron(digits.images[scan], np.ones((TIMES, TIMES)))
            room = CELL - ink.shape[0]
            top, left = generator.integers(0, room + 1, 2) + CELL * np.array(divmod(cell, GRID))
            where = np.s_[top : top + ink.shape[0], left : left + ink.shape[1]]
            colour = generator.integers(150, 256, 3)
            shade = (ink / 16)[..., None]
            picture[where] = (picture[where] * (1 - shade) + colour * shade).astype(np.uint8)
            classes[where] = np.where(ink >= INK, digits.target[scan] + 2, classes[where])
            cells.append(int(digits.target[scan]))
        # Class 1 is the background; 0 is ignored, as in ADE20K.
        yield picture, np.where(classes == 0, 1, classes).astype(np.uint8), cells


def write_ade20k(folder: Path, counts: Mapping[str, int] = SPLITS) -> str:
    """Write images/ and annotations/ of training and validation, 11 classes: background and ten digits."""
    for split, count in counts.items():
        for i, (picture, classes, _) in enumerate(scenes(split, count)):
            name = f"ADE_{'train' if split == 'training' else 'val'}_{i + 1:08d}"
            _save(picture, folder / "images" / split / f"{name}.jpg")
            _save(classes, folder / "annotations" / split / f"{name}.png")
    return f"{counts['training']} scenes of scanned digits in ADE20K's layout"


def write_vqa(folder: Path) -> str:
    """Write images with names as in COCO, and questions and annotations as in VQAv2, ten answers each."""
    for split, short in (("training", "train2014"), ("validation", "val2014")):
        questions: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for i, (picture, _, cells) in enumerate(scenes(split)):
            _save(picture, folder / short / f"COCO_{short}_{i + 1:012d}.jpg")
            for text, answer, kind in _questions(cells, np.random.default_rng(i)):
                number = (i + 1) * 1000 + len(questions) % 1000
                questions.append({"image_id": i + 1, "question": text, "question_id": number})
                answers = [{"answer": answer, "answer_confidence": "yes", "answer_id": k + 1} for k in range(10)]
                annotations.append({
                    "image_id": i + 1, "question_id": number, "question_type": " ".join(text.split()[:2]),
                    "answer_type": kind, "multiple_choice_answer": answer, "answers": answers,
                })  # fmt: skip
        about = {"info": {"description": "scenes of scanned digits"}, "license": {}, "data_subtype": short}
        question_file = {**about, "task_type": "Open-Ended", "data_type": "mscoco", "questions": questions}
        annotation_file = {**about, "data_type": "mscoco", "annotations": annotations}
        for name, content in (
            (f"v2_OpenEnded_mscoco_{short}_questions.json", question_file),
            (f"v2_mscoco_{short}_annotations.json", annotation_file),
        ):
            write(folder / name, json.dumps(content).encode())
    return f"questions about {SPLITS['training']} scenes of scanned digits in VQAv2's format"


def _questions(cells: list[int | None], generator: np.random.Generator) -> Iterator[tuple[str, str, str]]:
    yield "how many digits are there?", str(sum(cell is not None for cell in cells)), "number"
    cell = int(generator.choice([i for i, digit in enumerate(cells) if digit is not None]))
    yield f"which digit is {PLACES[cell]}?", str(cells[cell]), "other"
    digit = int(generator.integers(10))
    yield f"is there a {NUMBERS[digit]}?", "yes" if digit in cells else "no", "yes/no"


def _save(pixels: Array, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=95)  # PNG ignores quality


# Functions that write the data of a task to a folder and return a description.
WRITERS: dict[str, Callable[[Path], str]] = {"segmentation": write_ade20k, "vqa": write_vqa}
