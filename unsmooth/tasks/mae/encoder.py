"""Convert the encoder of a pre-trained MAE to a classifier for fine-tuning: hf:vit with the same remedies and weights.

Both have the same blocks, final norm and parameter names. The decoder is dropped, and the classifier gets a new head.
On an unmasked image with patches in order, both compute the same tokens.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from unsmooth.data.sampling import preserved_rng
from unsmooth.spec import ModelSpec, SpecItem
from unsmooth.surgery.create import create_model
from unsmooth.surgery.record import applied
from unsmooth.tasks.huggingface import model_class

SHARED = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "layer_norm_eps", "image_size",
    "patch_size", "num_channels", "qkv_bias",
)  # fmt: skip


def classifier_spec(encoder: Any, classes: int) -> ModelSpec:
    """Spec of the classifier: hf:vit with the options that differ from its defaults."""
    defaults = model_class("ViTConfig")()
    options = {
        name: getattr(encoder.config, name)
        for name in SHARED
        if getattr(encoder.config, name) != getattr(defaults, name)
    }
    return ModelSpec(SpecItem("hf:vit", {**options, "num_labels": classes}), applied(encoder).remedies)


def as_classifier(encoder: Any, classes: int) -> nn.Module:
    """ViTForImageClassification with the weights and remedies of the encoder, and a new head."""
    with preserved_rng():
        model = create_model(classifier_spec(encoder, classes))
    parameter = next(encoder.parameters())
    model.to(parameter.device, parameter.dtype)
    head = {name: value for name, value in model.state_dict().items() if name.startswith("classifier.")}
    model.load_state_dict(head | {f"vit.{name}": value for name, value in encoder.state_dict().items()})
    return model
