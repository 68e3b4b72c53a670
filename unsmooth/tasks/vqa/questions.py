"""Read VQAv2 as published: questions and annotations of two splits, and COCO's images.

DIR/v2_OpenEnded_mscoco_train2014_questions.json    DIR/v2_mscoco_train2014_annotations.json
DIR/v2_OpenEnded_mscoco_val2014_questions.json      DIR/v2_mscoco_val2014_annotations.json
DIR/train2014/COCO_train2014_000000000009.jpg       DIR/val2014/COCO_val2014_000000000042.jpg
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from unsmooth.errors import UnsmoothError


class Question(NamedTuple):
    number: int  # its question_id
    image: int  # its image_id
    text: str
    answers: tuple[str, ...]  # of ten annotators
    majority: str  # most frequent answer
    kind: str  # yes/no, number or other


@dataclass(frozen=True)
class Split:
    """Questions of one split, and the folder of its images."""

    folder: Path
    split: str  # train2014 or val2014
    questions: list[Question]

    @property
    def name(self) -> str:
        return f"{self.folder}:{self.split}"

    def image_file(self, image: int) -> str:
        return f"{self.split}/COCO_{self.split}_{image:012d}.jpg"


def open_split(folder: Path, split: str) -> Split:
    """Read a split, and check that each question has an annotation and an image file."""
    if not folder.is_dir():
        raise UnsmoothError(f"the folder {folder} does not exist. Use the folder that holds the .json files of VQAv2.")
    questions_file = folder / f"v2_OpenEnded_mscoco_{split}_questions.json"
    annotations_file = folder / f"v2_mscoco_{split}_annotations.json"
    question_entries = _read(questions_file, "questions")
    annotation_entries = _read(annotations_file, "annotations")
    unlike = f"{annotations_file} and {questions_file.name} do not match"
    try:
        annotations = {int(entry["question_id"]): entry for entry in annotation_entries}
        questions = []
        for entry in question_entries:
            number = int(entry["question_id"])
            if number not in annotations:
                raise UnsmoothError(f"{unlike}: question {number} has no annotation")
            questions.append(_question(entry, annotations[number]))
    except UnsmoothError:
        raise
    except KeyError as error:  # whose text is the name
        raise UnsmoothError(f"{unlike}: an entry has no {error}") from error
    except (TypeError, ValueError) as error:
        raise UnsmoothError(
            f"{questions_file} or {annotations_file.name} is not in the format of VQAv2: {error}"
        ) from error
    if not questions:
        raise UnsmoothError(f"{questions_file} holds no questions")
    opened = Split(folder, split, questions)
    _check_images(opened)
    return opened


def _question(entry: Any, annotation: Any) -> Question:
    answers = tuple(str(answer["answer"]) for answer in annotation["answers"])
    if not answers:
        raise ValueError(f"question {entry['question_id']} has no answers")
    return Question(
        int(entry["question_id"]), int(entry["image_id"]), str(entry["question"]), answers,
        str(annotation["multiple_choice_answer"]), str(annotation["answer_type"]),
    )  # fmt: skip


def _read(path: Path, key: str) -> list[Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries: list[Any] = content[key]
    except FileNotFoundError as error:
        raise UnsmoothError(f"{path} does not exist. Download VQA v2 from visualqa.org.") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnsmoothError(f"{path} is not a VQAv2 file with {key!r}: {error}") from error
    return entries


def _check_images(opened: Split) -> None:
    folder = opened.folder / opened.split
    files = set(os.listdir(folder)) if folder.is_dir() else set[str]()
    names = dict.fromkeys(opened.image_file(question.image) for question in opened.questions)
    missing = [name for name in names if name.rpartition("/")[2] not in files]
    if missing:
        raise UnsmoothError(
            f"{len(missing)} of {len(names)} images of {opened.split} are missing. First: {opened.folder / missing[0]}"
        )
