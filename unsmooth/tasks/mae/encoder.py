"""The encoder of a pre-trained MAE as a classifier to fine-tune: hf:vit with the same remedies and weights.

Both have the same blocks, final norm and names; MAE's decoder is left out, and the classifier's head is new. On a whole
image, patches in their order, the two give the same tokens.
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
    """What a classifier with this encoder is called: hf:vit with the options that differ from its defaults."""
    usual = model_class("ViTConfig")()
    options = {
        name: getattr(encoder.config, name) for name in SHARED if getattr(encoder.config, name) != getattr(usual, name)
    }
    return ModelSpec(SpecItem("hf:vit", {**options, "num_labels": classes}), applied(encoder).remedies)


def as_classifier(encoder: Any, classes: int) -> nn.Module:
    """A ViTForImageClassification with the encoder's weights, its remedies' among them, and a new head."""
    with preserved_rng():
        model = create_model(classifier_spec(encoder, classes))
    parameter = next(encoder.parameters())
    model.to(parameter.device, parameter.dtype)
    own = {name: value for name, value in model.state_dict().items() if name.startswith("classifier.")}
    model.load_state_dict(own | {f"vit.{name}": value for name, value in encoder.state_dict().items()})
    return model
