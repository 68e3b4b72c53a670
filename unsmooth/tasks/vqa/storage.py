"""Save and load VQA models with their two vocabularies.

DIR/config.json, model.safetensors, vqa.json    ViLT; the answers are `id2label` of the configuration
DIR/vocab.txt                                   the WordPiece vocabulary of the tokenizer
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from unsmooth.data.images import convert_channels
from unsmooth.hosts.modes import device_of, eval_mode
from unsmooth.tasks.huggingface import read_folder, write_folder
from unsmooth.tasks.vqa.items import image_transform, pad_images
from unsmooth.tasks.vqa.model import TASK, answers_of, build
from unsmooth.tasks.vqa.text import Text, read_vocabulary
from unsmooth.utils.files import write

VOCABULARY = "vocab.txt"


@dataclass(frozen=True)
class VqaModel:
    """A trained ViltForQuestionAnswering with its tokenizer and its answer vocabulary."""

    model: nn.Module
    text: Text
    answers: list[str]

    def ask(self, image: Image.Image, question: str) -> str:
        """Answer a question about an image.

        Args:
            image: PIL image.
            question: Question in English.

        Returns:
            The answer with the highest logit.
        """
        config: Any = self.model.config
        device = device_of(self.model)
        images, mask = pad_images([image_transform(config)(convert_channels(image, config.num_channels))])
        ids, token_mask = (torch.from_numpy(array).long() for array in self.text.encode([question]))
        inputs = {"pixel_values": images, "pixel_mask": mask, "input_ids": ids, "attention_mask": token_mask}
        with eval_mode(self.model):
            torch.default_generator.manual_seed(0)  # ViLT samples the order of its patches
            output = self.model(**{name: value.to(device) for name, value in inputs.items()})
        return self.answers[int(output.logits[0].argmax())]


def save_vqa(model: Any, text: Text, folder: str | Path) -> None:
    """Save a model with its tokenizer vocabulary."""
    folder = Path(folder)
    write(folder / VOCABULARY, ("\n".join(text.pieces) + "\n").encode())
    write_folder(model, model.vilt, TASK, folder, {"max_tokens": text.length})


def load_vqa(folder: str | Path) -> VqaModel:
    """Load a model that the task vqa saved.

    Args:
        folder: Folder of the model, such as RUN/last.

    Returns:
        The model with its remedies, tokenizer and answers.

    Raises:
        UnsmoothError: If a file is missing or cannot be read.
    """
    folder = Path(folder)
    model, about = read_folder(folder, TASK, "ViltConfig", build)
    config: Any = model.config
    return VqaModel(model, Text(read_vocabulary(folder / VOCABULARY), int(about["max_tokens"])), answers_of(config))
