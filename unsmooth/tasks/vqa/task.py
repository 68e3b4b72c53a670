"""Visual question answering on VQAv2 with ViLT, as classification of frequent answers.

Of the recipe, the budget, the optimizer, precision, the weight average and dropout are used. Images are neither cropped
nor flipped, since left and right are answers; label smoothing, drop_path and vitals are ignored. As in ViLT, training
questions without an answer in the vocabulary are left out; validation has all questions.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unsmooth.data.images import evenly_spaced
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import image_size
from unsmooth.spec import ModelSpec
from unsmooth.surgery.storage import WEIGHTS, fill_for_tuning
from unsmooth.tasks.base import Task, TaskRequest, reject_classification_fields
from unsmooth.tasks.huggingface import CONFIG, config_of, model_class, read_spec
from unsmooth.tasks.vqa.answers import targets, vocabulary
from unsmooth.tasks.vqa.items import VqaBatch, VqaDataset, image_transform
from unsmooth.tasks.vqa.model import HEAD, KIND, TASK, answers_of, build, reset_head, set_answers
from unsmooth.tasks.vqa.questions import Split, open_split
from unsmooth.tasks.vqa.score import VqaScore, merge_scores, score
from unsmooth.tasks.vqa.storage import VOCABULARY, save_vqa
from unsmooth.tasks.vqa.text import Text, build_vocabulary, check_vocabulary, read_vocabulary
from unsmooth.utils.files import write
from unsmooth.utils.options import option, options, read_texts

PREDICTIONS = "answers.json"  # of the last model, in the format of the official evaluation


@options
class VqaOptions:
    """Options of the VQA task (`--option NAME=VALUE`)."""

    label = "vqa"

    vocab: str = option(
        "BERT vocab.txt (default: that of the weights, or the words of the training questions)", default=""
    )
    min_answers: int = option(
        "questions that an answer must be the majority answer of to be in the vocabulary", default=9, low=1
    )
    answers: Literal["train", "train+val"] = option(
        "annotations that the answer vocabulary is built from", default="train"
    )


@dataclass(frozen=True)
class InitialWeights:
    """Initial weights: none, pretrained ones by name, or a checkpoint."""

    weights: str
    known: list[str]  # answers of the pretrained weights
    checkpoint: Path | None


class QuestionAnswering(Task):
    name = TASK
    primary_metric = "accuracy"

    def __init__(self, request: TaskRequest, spec: ModelSpec, config: Any, text: Text, splits: Mapping[str, Split],
                 answers: list[str], start: InitialWeights) -> None:  # fmt: skip
        self.request, self.spec, self.config, self.text = request, spec, config, text
        self.splits, self.answers, self.start = splits, answers, start

    @property
    def data(self) -> str:
        return str(self.splits["train"].folder)

    def counts(self) -> dict[str, int]:
        questions = {name: len(split.questions) for name, split in self.splits.items()}
        return {**questions, "answers": len(self.answers), "words": len(self.text.pieces)}

    def build(self) -> None:
        self.model = build(self.config, self.spec, self.request.seed, self.start.weights, self.start.known)
        if self.start.checkpoint is not None:
            self._load_checkpoint(self.start.checkpoint)
        self.image_size = image_size(self.model)
        transform, indices = image_transform(self.config), {answer: i for i, answer in enumerate(self.answers)}
        self.train, self.val = (
            VqaDataset(
                split, self.text, [targets(question.answers, indices) for question in split.questions], transform,
                self.config.num_channels, len(self.answers), self.request.strict_data,
            )
            for split in (self.splits["train"], self.splits["val"])
        )  # fmt: skip

    def _load_checkpoint(self, path: Path) -> None:
        """Load a checkpoint; its head is replaced unless it has the same answers."""
        replaced = fill_for_tuning(self.model, path, len(self.answers))
        if not replaced and path.is_dir() and _saved_answers(path) != self.answers:
            reset_head(self.model)
            replaced = [f"{HEAD}weight", f"{HEAD}bias"]
        if replaced:
            names = ", ".join(replaced)
            warnings.warn(f"{path} has a head for other answers. Initialised randomly: {names}.", stacklevel=2)

    def loss(self, runner: Any, batch: VqaBatch) -> Tensor:
        loss: Tensor = runner(**batch.inputs()).loss  # binary cross-entropy, summed over the answers
        return loss

    def score(self, model: nn.Module, batches: Iterable[VqaBatch], device: torch.device, amp: str) -> VqaScore:
        return score(model, batches, self.splits["val"].questions, self.answers, device, amp)

    def merge_scores(self, scores: Sequence[VqaScore]) -> VqaScore:
        return merge_scores(scores, self.data)

    def save(self, model: nn.Module, folder: Path) -> None:
        save_vqa(model, self.text, folder)

    def save_predictions(self, score: VqaScore, folder: Path) -> None:
        rows = zip(score.numbers, score.answers, strict=True)
        predictions = [{"question_id": number, "answer": answer} for number, answer in rows]
        write(folder / PREDICTIONS, json.dumps(predictions).encode())


def open_task(request: TaskRequest) -> QuestionAnswering:
    """Open VQAv2 for hf:vilt(…) with remedies; the data is the folder of VQAv2.

    With `pretrained`, the host is a folder or hub id with weights. `checkpoint` is a folder that this task saved, or a
    file with weights of ViltForQuestionAnswering.
    """
    recipe = request.recipe
    reject_classification_fields(recipe, TASK)
    task_options = read_texts(VqaOptions, request.options, TASK)
    parsed = read_spec(TASK, KIND, request.spec)
    config = config_of(TASK, KIND, parsed.known_host)
    weights = parsed.known_host.name.removeprefix("hf:") if request.pretrained else ""
    if weights == KIND:
        raise UnsmoothError(f"hf:{KIND} is a model type without weights. Use a hub id or a folder, hf:FOLDER.")
    for size in (config.image_size, config.patch_size):
        if not isinstance(size, int):
            raise UnsmoothError(f"image_size and patch_size must be one number for vqa (got {size})")
    checkpoint = request.checkpoint
    if checkpoint is not None and not (checkpoint / WEIGHTS if checkpoint.is_dir() else checkpoint).exists():
        raise UnsmoothError(f"{checkpoint} does not exist or holds no {WEIGHTS}. Use a folder that the task vqa saved.")
    folder = Path(request.data)
    splits = {name: open_split(folder, f"{name}2014") for name in ("train", "val")}
    answers = _answers(splits, task_options)
    splits["train"] = _answerable(splits["train"], answers)
    text = Text(_pieces(task_options.vocab, checkpoint, weights, splits["train"]), config.max_position_embeddings)
    if not weights and "vocab_size" not in parsed.known_host.options:
        config.vocab_size = len(text.pieces)
    if len(text.pieces) > config.vocab_size:
        raise UnsmoothError(
            f"the vocabulary has {len(text.pieces)} pieces, more than the {config.vocab_size} of {parsed.host}"
        )
    if recipe.dropout and "hidden_dropout_prob" not in parsed.known_host.options:
        config.hidden_dropout_prob = recipe.dropout
    start = InitialWeights(weights, answers_of(config), checkpoint)
    set_answers(config, answers)
    counts = {"train": recipe.train_images, "val": recipe.val_images}
    limited = {name: _limit(split, counts[name]) for name, split in splits.items()}
    return QuestionAnswering(request, parsed, config, text, limited, answers, start)


def _answers(splits: Mapping[str, Split], options: VqaOptions) -> list[str]:
    used = [splits[name] for name in options.answers.split("+")]
    answers = vocabulary((question.majority for split in used for question in split.questions), options.min_answers)
    if len(answers) < 2:
        raise UnsmoothError(
            f"{used[0].name} has {len(answers)} answers that are the majority answer of at least {options.min_answers} "
            "questions. Use a lower min_answers (--option min_answers=…)."
        )
    return answers


def _answerable(split: Split, answers: list[str]) -> Split:
    """The questions with at least one answer in the vocabulary."""
    indices = {answer: i for i, answer in enumerate(answers)}
    return replace(split, questions=[question for question in split.questions if targets(question.answers, indices)])


def _pieces(vocab: str, checkpoint: Path | None, weights: str, train: Split) -> list[str]:
    """Token vocabulary: from a file, from the initial weights, or built from the training questions."""
    if vocab:
        return read_vocabulary(vocab)
    if checkpoint is not None and (checkpoint / VOCABULARY).exists():
        return read_vocabulary(checkpoint / VOCABULARY)
    if weights:
        try:
            numbers = model_class("BertTokenizer").from_pretrained(weights).get_vocab()
        except (OSError, ValueError) as error:
            raise UnsmoothError(
                f"{weights} has no token vocabulary. Use the option vocab='vocab.txt' (--option)."
            ) from error
        return check_vocabulary(sorted(numbers, key=numbers.__getitem__), weights)
    return build_vocabulary(question.text for question in train.questions)


def _saved_answers(folder: Path) -> list[str]:
    try:
        labels = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["id2label"]
        return [labels[str(i)] for i in range(len(labels))]
    except (OSError, ValueError, KeyError):
        return []


def _limit(split: Split, count: int) -> Split:
    if not count or count >= len(split.questions):
        return split
    return replace(split, questions=[split.questions[i] for i in evenly_spaced(len(split.questions), count)])
