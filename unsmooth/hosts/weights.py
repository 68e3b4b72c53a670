"""The weight matrices of a block by what they do: queries, keys, values, output projection, MLP."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Block, Linear

# The last word of a layer's name, by role. A layer that makes several at once has them in this order.
LAYERS = {
    "query": ("q", "query", "q_proj", "wq"),
    "key": ("k", "key", "k_proj", "wk"),
    "value": ("v", "value", "v_proj", "wv"),
}


@dataclass(frozen=True)
class Rows:
    """SpecItem of a weight and of its bias."""

    weight: Tensor
    bias: Tensor | None


def _linears(block: Block) -> tuple[Linear, ...]:
    return block.branch("attn").linears


def _role(linear: Linear) -> str:
    word = linear.weight.split(".")[-2]
    return next((role for role, words in LAYERS.items() if word in words), "")


def value_rows(model: nn.Module, block: Block) -> Rows:
    """The rows of a weight that make the values of a block's attention, with their bias."""
    attention = block.core()
    if attention.value_channels != attention.head_channels:
        raise NotApplicable("its values have another width than its keys")
    weight = _rows(model, block, "value")
    linear = _find(block, "value")
    owner = model.get_submodule(linear.weight.rpartition(".")[0])
    bias = getattr(owner, linear.weight.split(".")[-1].removesuffix("weight") + "bias", None)
    if bias is None:  # BEiT and EVA keep the bias of the values apart
        bias = getattr(model.get_submodule(attention.core), "v_bias", None)
    return Rows(weight, None if bias is None else bias[-len(weight) :])


def query_key_value(model: nn.Module, block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """The weights that make queries, keys and values of all heads, each (heads × head channels, channels)."""
    query, key, value = (_rows(model, block, role) for role in LAYERS)
    return query, key, value


def _find(block: Block, role: str) -> Linear:
    linears = _linears(block)
    named = [linear for linear in linears if _role(linear) == role]
    joint = [linear for linear in linears if linear.parts > 1]
    if not named and not joint:
        raise NotApplicable(
            f"the weight that makes the {role}s was not found" if role == "value" else f"no weight of {role}s"
        )
    return named[0] if named else joint[-1]


def _rows(model: nn.Module, block: Block, role: str) -> Tensor:
    linear, attention = _find(block, role), block.core()
    weight = model.get_parameter(linear.weight)
    if linear.parts <= 1:
        return weight
    width = attention.heads * attention.head_channels
    place = {"query": 0, "key": linear.parts - 2, "value": linear.parts - 1}[role]  # q, k, v; or k, v
    return weight[place * width : (place + 1) * width]


def projection(model: nn.Module, block: Block) -> Tensor:
    """The output projection of a block's attention, (channels, heads × value channels)."""
    attention, linears = block.core(), _linears(block)
    last = linears[-1] if linears else None
    if last is None or last.inputs != attention.heads * attention.value_channels or last.outputs != block.channels:
        raise NotApplicable("its output projection was not found")
    return model.get_parameter(last.weight)


def mlp_layers(model: nn.Module, block: Block) -> tuple[Tensor, Tensor]:
    """Both weights of an MLP of two layers; a gated one, which has no Lipschitz constant, is refused."""
    linears = block.branch("mlp").linears
    if len(linears) != 2 or linears[0].outputs != linears[1].inputs:
        raise NotApplicable("its MLP is not two linear layers with an activation between them")
    return model.get_parameter(linears[0].weight), model.get_parameter(linears[1].weight)
