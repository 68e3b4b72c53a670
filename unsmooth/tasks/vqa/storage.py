"""Where a model that answers questions is kept, with its two vocabularies.

DIR/config.json, model.safetensors, vqa.json    ViLT; the answers are `id2label` of the configuration
DIR/vocab.txt                                   the pieces of words that questions are cut into
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
from unsmooth.tasks.vqa.items import padded, preparation
from unsmooth.tasks.vqa.model import TASK, answers_of, build
from unsmooth.tasks.vqa.text import Text, read_vocabulary
from unsmooth.utils.files import write

VOCABULARY = "vocab.txt"


@dataclass(frozen=True)
class Answering:
    """A trained ViltForQuestionAnswering, how its questions are cut, and the answers that it chooses from."""

    model: nn.Module
    text: Text
    answers: list[str]

    def ask(self, picture: Image.Image, question: str) -> str:
        """The best answer to a question about a picture."""
        config: Any = self.model.config
        device = device_of(self.model)
        images, mask = padded([preparation(config)(convert_channels(picture, config.num_channels))])
        ids, there = (torch.from_numpy(array).long() for array in self.text.encode([question]))
        inputs = {"pixel_values": images, "pixel_mask": mask, "input_ids": ids, "attention_mask": there}
        with eval_mode(self.model):
            torch.default_generator.manual_seed(0)  # ViLT draws the order of its patches
            found = self.model(**{name: value.to(device) for name, value in inputs.items()})
        return self.answers[int(found.logits[0].argmax())]


def save_vqa(model: Any, text: Text, folder: str | Path) -> None:
    folder = Path(folder)
    write(folder / VOCABULARY, ("\n".join(text.pieces) + "\n").encode())
    write_folder(model, model.vilt, TASK, folder, {"max_tokens": text.length})


def load_vqa(folder: str | Path) -> Answering:
    """The model that a run of the task vqa saved, remedies on its backbone, and its vocabularies."""
    folder = Path(folder)
    model, about = read_folder(folder, TASK, "ViltConfig", build)
    config: Any = model.config
    return Answering(model, Text(read_vocabulary(folder / VOCABULARY), int(about["max_tokens"])), answers_of(config))
