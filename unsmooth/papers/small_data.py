"""Small data in the true formats of ADE20K and VQAv2, made of scikit-learn's scanned digits, for --small.

A scene is a grid of cells, some with a digit of three times its size, on a ground of noise. Segmentation: a pixel of
ink has its digit's class. Questions: which digit is where, how many there are, and whether there is a certain one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unsmooth.utils.files import write

CELL, GRID, TIMES = 32, 2, 3
INK = 6  # of 16: a pixel that is darker belongs to the digit
SPLITS = {"training": 120, "validation": 40}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLACES = ("top left", "top right", "bottom left", "bottom right")

Array = np.ndarray[Any, Any]
Scene = tuple[Array, Array, list[int | None]]  # picture, class of each pixel (0: ground), digit of each cell


def scenes(split: str) -> Iterator[Scene]:
    """The same scenes each time; the splits use other scans."""
    from sklearn.datasets import load_digits

    digits, at = load_digits(), list(SPLITS).index(split)
    chance = np.random.default_rng(at)
    scans = np.arange(at, len(digits.images), len(SPLITS))
    for _ in range(SPLITS[split]):
        side = CELL * GRID
        picture = chance.integers(20, 90, (side, side, 3)).astype(np.uint8)
        classes = np.zeros((side, side), dtype=np.uint8)
        cells: list[int | None] = []
        for cell in range(GRID * GRID):
            if cells.count(None) < GRID and chance.random() < 0.35:
                cells.append(None)
                continue
            scan = int(chance.choice(scans))
            ink = np.kron(digits.images[scan], np.ones((TIMES, TIMES)))
            room = CELL - ink.shape[0]
            top, left = chance.integers(0, room + 1, 2) + CELL * np.array(divmod(cell, GRID))
            where = np.s_[top : top + ink.shape[0], left : left + ink.shape[1]]
            colour = chance.integers(150, 256, 3)
            shade = (ink / 16)[..., None]
            picture[where] = (picture[where] * (1 - shade) + colour * shade).astype(np.uint8)
            classes[where] = np.where(ink >= INK, digits.target[scan] + 2, classes[where])
            cells.append(int(digits.target[scan]))
        # Class 1 is the ground; 0 is left for what is not eval_model, as in ADE20K.
        yield picture, np.where(classes == 0, 1, classes).astype(np.uint8), cells


def write_ade20k(folder: Path) -> str:
    """images/ and annotations/ of training and validation, 11 classes: the ground and ten digits."""
    for split in SPLITS:
        for i, (picture, classes, _) in enumerate(scenes(split)):
            name = f"ADE_{'train' if split == 'training' else 'val'}_{i + 1:08d}"
            _save(picture, folder / "images" / split / f"{name}.jpg")
            _save(classes, folder / "annotations" / split / f"{name}.png")
    return f"{SPLITS['training']} scenes of scanned digits in ADE20K's layout"


def write_vqa(folder: Path) -> str:
    """Images with COCO's names, and questions and annotations as VQAv2 has them, ten answers each."""
    for split, short in (("training", "train2014"), ("validation", "val2014")):
        asked: list[dict[str, Any]] = []
        answered: list[dict[str, Any]] = []
        for i, (picture, _, cells) in enumerate(scenes(split)):
            _save(picture, folder / short / f"COCO_{short}_{i + 1:012d}.jpg")
            for text, answer, kind in _questions(cells, np.random.default_rng(i)):
                number = (i + 1) * 1000 + len(asked) % 1000
                asked.append({"image_id": i + 1, "question": text, "question_id": number})
                answers = [{"answer": answer, "answer_confidence": "yes", "answer_id": k + 1} for k in range(10)]
                answered.append({
                    "image_id": i + 1, "question_id": number, "question_type": " ".join(text.split()[:2]),
                    "answer_type": kind, "multiple_choice_answer": answer, "answers": answers,
                })  # fmt: skip
        about = {"info": {"description": "scenes of scanned digits"}, "license": {}, "data_subtype": short}
        questions = {**about, "task_type": "Open-Ended", "data_type": "mscoco", "questions": asked}
        annotations = {**about, "data_type": "mscoco", "annotations": answered}
        for name, value in (
            (f"v2_OpenEnded_mscoco_{short}_questions.json", questions),
            (f"v2_mscoco_{short}_annotations.json", annotations),
        ):
            write(folder / name, json.dumps(value).encode())
    return f"questions about {SPLITS['training']} scenes of scanned digits in VQAv2's format"


def _questions(cells: list[int | None], chance: np.random.Generator) -> Iterator[tuple[str, str, str]]:
    yield "how many digits are there?", str(sum(cell is not None for cell in cells)), "number"
    place = int(chance.choice([i for i, cell in enumerate(cells) if cell is not None]))
    yield f"which digit is {PLACES[place]}?", str(cells[place]), "other"
    wanted = int(chance.integers(10))
    yield f"is there a {NUMBERS[wanted]}?", "yes" if wanted in cells else "no", "yes/no"


def _save(pixels: Array, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=95)  # PNG has no quality and does not mind


# Tasks whose data is not just images: what makes some, told the folder, and says what it made.
MAKERS: dict[str, Callable[[Path], str]] = {"segmentation": write_ade20k, "vqa": write_vqa}
