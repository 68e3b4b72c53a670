"""Additional forward arguments of a host: text, timesteps, class labels.

Which of them a host needs is read from the signature of its `forward`: text if it takes any, the others if they have no
default. They are constants: a diagnosis is about the tokens of the image.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

TEXT_LENGTH = 4  # tokens
TIMESTEP = 500  # of 1000, half noise


def forward_parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The parameters of `forward`, of the model inside if a wrapper such as that of peft passes all on."""
    unwrap = getattr(model, "get_base_model", None)
    return inspect.signature((unwrap() if callable(unwrap) else model).forward).parameters


def _text(items: Tensor) -> Tensor:
    return torch.arange(1, TEXT_LENGTH + 1, device=items.device).expand(len(items), TEXT_LENGTH)


def _mask(items: Tensor) -> Tensor:
    return torch.ones_like(_text(items))


def _timestep(items: Tensor) -> Tensor:
    return torch.full((len(items),), TIMESTEP, device=items.device)


def _label(items: Tensor) -> Tensor:
    return torch.zeros(len(items), dtype=torch.long, device=items.device)


TEXT: dict[str, Callable[[Tensor], Tensor]] = {"input_ids": _text, "attention_mask": _mask}
# Arguments of diffusion transformers: DiT's own code, diffusers and their relatives.
CONDITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("t", "timestep", "timesteps"), _timestep),
    **dict.fromkeys(("y", "label", "class_label", "class_labels"), _label),
}
# diffusers gives them a default of None, and some of its models fail without them.
NEEDED = ("timestep", "class_labels")


def companions(model: nn.Module, name: str, items: Tensor) -> dict[str, Any]:
    """The other arguments of a host for a batch, whose own argument is `name`."""
    parameters = forward_parameters(model)
    if name != "image":
        takes_text = "input_ids" in parameters
        return {key: make(items) for key, make in TEXT.items() if takes_text and key in parameters}
    others = list(parameters.values())[1:]
    diffusers = next(iter(parameters), "") == "hidden_states"
    return {
        parameter.name: CONDITIONS[parameter.name](items)
        for parameter in others
        if parameter.name in CONDITIONS
        and (parameter.default is parameter.empty or (diffusers and parameter.name in NEEDED))
    }
