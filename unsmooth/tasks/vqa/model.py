"""ViltForQuestionAnswering with remedies on its backbone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.spec import ModelSpec
from unsmooth.tasks.huggingface import apply_remedies, model_class

TASK, KIND, ANSWERING = "vqa", "vilt", "ViltForQuestionAnswering"
HEAD = "classifier.3."  # layer with one row per answer


def set_answers(config: Any, answers: list[str]) -> None:
    """Set the answer vocabulary in the configuration, which determines the size of the head."""
    config.id2label = dict(enumerate(answers))
    config.label2id = {answer: i for i, answer in config.id2label.items()}


def answers_of(config: Any) -> list[str]:
    return [config.id2label[i] for i in range(len(config.id2label))]


def build(
    config: Any, spec: ModelSpec, seed: int | None = None, weights: str = "", known: list[str] | None = None
) -> nn.Module:
    """Build the model, from scratch or with pretrained weights; their head is kept if `known` has the same answers."""
    model_type = model_class(ANSWERING)
    if seed is not None:
        torch.manual_seed(seed)
    if not weights:
        model: Any = model_type(config)
    else:
        model, loaded = model_type.from_pretrained(
            weights, config=config, ignore_mismatched_sizes=True, output_loading_info=True
        )
        mismatched = sorted(str(key[0]) for key in loaded["mismatched_keys"] if not str(key[0]).startswith(HEAD))
        if mismatched:
            raise UnsmoothError(
                f"the weights of {weights} do not fit {spec.host}: {', '.join(mismatched[:3])} differ in size"
            )
        if known != answers_of(config):
            reset_head(model)
    apply_remedies(model.vilt, spec)
    return model


def reset_head(model: Any) -> None:
    """Initialise the answer layer as transformers does."""
    last = model.get_submodule(HEAD.rstrip("."))
    nn.init.normal_(last.weight, std=model.config.initializer_range)
    nn.init.zeros_(last.bias)
