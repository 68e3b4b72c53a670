"""Why no attention of a host was seen, and how to switch to attention that is."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from torch import nn

# Libraries whose attention is one kernel that no torch function shows, and the switch.
KERNELS = {
    "xformers": "set the environment variable XFORMERS_DISABLED=1 before the host is imported",
    "flash_attn": "build the host without flash-attn (often use_flash_attn=False), so that it uses PyTorch's attention",
    "torch.nn.attention.flex_attention": "build the host with F.scaled_dot_product_attention",
}
# Attention implementations of Hugging Face that the seam sees; the others are kernels of their own.
SEEN = ("sdpa", "eager")


def way_out(model: nn.Module) -> str:
    """Which kernel hides the attention of a host and how to switch it off; "" if none is known to."""
    chosen = next((name for module in model.modules() if (name := _implementation(module)) not in (*SEEN, "")), "")
    if chosen:
        return f'its attention implementation is {chosen}: call model.set_attn_implementation("sdpa") first'
    for kernel, switch in KERNELS.items():
        if any(_uses(type(module), kernel) for module in model.modules()):
            return f"its code uses {kernel.rpartition('.')[2]}: {switch}"
    return ""


def _implementation(module: Any) -> str:
    value = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return value if isinstance(value, str) else ""


def _uses(cls: type[nn.Module], kernel: str) -> bool:
    """Whether the file of a class, or a file that it imports a function from, imports something of a library."""
    library = cls.__module__.partition(".")[0]
    file = sys.modules.get(cls.__module__)
    if file is None or library in ("torch", "timm", "transformers"):  # these have a switch, or use PyTorch's attention
        return False
    names = list(vars(file).values())
    names += [v for f in names if isinstance(f, FunctionType) and f.__module__.startswith(f"{library}.")
              for v in f.__globals__.values()]  # fmt: skip
    return any(_belongs(value, kernel) for value in names)


def _belongs(value: Any, kernel: str) -> bool:
    name = getattr(value, "__module__", None) or getattr(value, "__name__", None)
    return isinstance(name, str) and (name == kernel or name.startswith(f"{kernel}."))


def why_unseen(model: nn.Module, softmaxes: int) -> str:
    """Why the forward pass of a host showed no attention, and what to do."""
    hidden = way_out(model)
    if hidden:
        return f"{hidden}."
    if softmaxes:
        return (
            "it ran a softmax, but not of a map of queries and keys that is multiplied with values: factorised or "
            "separable attention has no map."
        )
    return "it ran no softmax, and linear attention has no map: is it a vision transformer?"
