"""VQAv2 as it is published: questions and annotations of two splits, beside COCO's pictures.

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
    image: int  # the image_id of its picture
    text: str
    answers: tuple[str, ...]  # what people said, ten of them
    majority: str  # what most of them said
    kind: str  # yes/no, number or other


@dataclass(frozen=True)
class Split:
    """The questions of one split, and where its pictures are."""

    folder: Path
    split: str  # train2014 or val2014
    questions: list[Question]

    @property
    def name(self) -> str:
        return f"{self.folder}:{self.split}"

    def item(self, image: int) -> str:
        return f"{self.split}/COCO_{self.split}_{image:012d}.jpg"


def open_split(folder: Path, split: str) -> Split:
    """Read a split, and check that each question has its annotation and its picture's file."""
    if not folder.is_dir():
        raise UnsmoothError(f"there is no folder {folder}: vqa takes the folder that holds VQAv2's .json files")
    asked_file = folder / f"v2_OpenEnded_mscoco_{split}_questions.json"
    answered_file = folder / f"v2_mscoco_{split}_annotations.json"
    asked, answered = _read(asked_file, "questions"), _read(answered_file, "annotations")
    try:
        found = {int(one["question_id"]): one for one in answered}
        questions = [_question(one, found[int(one["question_id"])]) for one in asked]
    except KeyError as error:
        missing = error.args[0]
        what = f"no annotation of question {missing}" if isinstance(missing, int) else f"an entry without {missing!r}"
        raise UnsmoothError(f"{answered_file} and {asked_file.name} do not fit: there is {what}") from error
    except (TypeError, ValueError) as error:
        raise UnsmoothError(f"{asked_file} or {answered_file.name} is not VQAv2's: {error}") from error
    if not questions:
        raise UnsmoothError(f"{asked_file} holds no questions")
    opened = Split(folder, split, questions)
    _check_pictures(opened)
    return opened


def _question(asked: Any, answered: Any) -> Question:
    answers = tuple(str(one["answer"]) for one in answered["answers"])
    if not answers:
        raise ValueError(f"question {asked['question_id']} has no answers")
    return Question(
        int(asked["question_id"]), int(asked["image_id"]), str(asked["question"]), answers,
        str(answered["multiple_choice_answer"]), str(answered["answer_type"]),
    )  # fmt: skip


def _read(path: Path, key: str) -> list[Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found: list[Any] = content[key]
    except FileNotFoundError as error:
        raise UnsmoothError(f"{path} does not exist: get it from visualqa.org, VQA v2") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnsmoothError(f"{path} is not a file of VQAv2 with {key!r}: {error}") from error
    return found


def _check_pictures(opened: Split) -> None:
    pictures = opened.folder / opened.split
    there = set(os.listdir(pictures)) if pictures.is_dir() else set[str]()
    wanted = dict.fromkeys(opened.item(question.image) for question in opened.questions)
    missing = [name for name in wanted if name.rpartition("/")[2] not in there]
    if missing:
        raise UnsmoothError(
            f"{opened.folder / missing[0]} does not exist, the picture of a question; {len(missing)} of {len(wanted)} "
            f"pictures of {opened.split} are missing"
        )
