"""ViltForQuestionAnswering with remedies on its backbone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.spec import ModelSpec
from unsmooth.tasks.huggingface import model_class, treat

TASK, KIND, ANSWERING = "vqa", "vilt", "ViltForQuestionAnswering"
HEAD = "classifier.3."  # the layer that has a row an answer


def name_answers(config: Any, answers: list[str]) -> None:
    """Write the vocabulary of answers into the configuration, which sizes the head."""
    config.id2label = dict(enumerate(answers))
    config.label2id = {answer: i for i, answer in config.id2label.items()}


def answers_of(config: Any) -> list[str]:
    return [config.id2label[i] for i in range(len(config.id2label))]


def build(
    config: Any, spec: ModelSpec, seed: int | None = None, weights: str = "", known: list[str] | None = None
) -> nn.Module:
    """The model: from scratch by a seed, or with published weights, whose head stays if it `known` the same answers."""
    made = model_class(ANSWERING)
    if seed is not None:
        torch.manual_seed(seed)
    if not weights:
        model: Any = made(config)
    else:
        model, loaded = made.from_pretrained(
            weights, config=config, ignore_mismatched_sizes=True, output_loading_info=True
        )
        wrong = sorted(str(key[0]) for key in loaded["mismatched_keys"] if not str(key[0]).startswith(HEAD))
        if wrong:
            raise UnsmoothError(
                f"the weights of {weights} do not fit {spec.host}: {', '.join(wrong[:3])} differ in size"
            )
        if known != answers_of(config):
            start_head(model)
    treat(model.vilt, spec)
    return model


def start_head(model: Any) -> None:
    """Draw the layer of the answers anew, as transformers does."""
    last = model.get_submodule(HEAD.rstrip("."))
    nn.init.normal_(last.weight, std=model.config.initializer_range)
    nn.init.zeros_(last.bias)
