"""Names of tensors in files that transformers writes: those of its older versions, not those of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn


def by_own_names(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a file under the names of the model, if `save_pretrained` renamed them."""
    own = model.state_dict()
    if own.keys() == weights.keys() or not hasattr(model, "save_pretrained"):
        return dict(weights)
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # an older version, which does not rename
        return dict(weights)
    places = {value.data_ptr(): name for name, value in own.items()}
    saved = revert_weight_conversion(cast(Any, model), own)  # renamed tensors; those that it joins or splits are new
    names = {name: places[value.data_ptr()] for name, value in saved.items() if value.data_ptr() in places}
    return {names.get(name, name): value for name, value in weights.items()}
