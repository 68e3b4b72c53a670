"""The weight matrices of a block by role: queries, keys, values, output projection, MLP."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Block, Linear

# Layer names by role. A layer that computes several roles has them in this order.
LAYERS = {
    "query": ("q", "query", "q_proj", "wq"),
    "key": ("k", "key", "k_proj", "wk"),
    "value": ("v", "value", "v_proj", "wv"),
}


@dataclass(frozen=True)
class WeightAndBias:
    """Rows of a weight, and the same rows of its bias if there is one."""

    weight: Tensor
    bias: Tensor | None


def _linears(block: Block) -> tuple[Linear, ...]:
    return block.branch("attn").linears


def _role(linear: Linear) -> str:
    layer = linear.weight.split(".")[-2]
    return next((role for role, names in LAYERS.items() if layer in names), "")


def value_rows(model: nn.Module, block: Block) -> WeightAndBias:
    """The rows of a weight that compute the values of a block's attention, with their bias."""
    attention = block.attention()
    if attention.value_channels != attention.head_channels:
        raise NotApplicable(
            f"its values have {attention.value_channels} channels per head and its keys {attention.head_channels}"
        )
    weight = _rows(model, block, "value")
    linear = _linear_of(block, "value")
    owner = model.get_submodule(linear.weight.rpartition(".")[0])
    bias = getattr(owner, linear.weight.split(".")[-1].removesuffix("weight") + "bias", None)
    if bias is None:  # BEiT and EVA keep the bias of the values outside the layer
        bias = getattr(model.get_submodule(attention.core), "v_bias", None)
    return WeightAndBias(weight, None if bias is None else bias[-len(weight) :])


def query_key_value(model: nn.Module, block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of queries, keys and values of all heads, each (heads × head channels, channels)."""
    query, key, value = (_rows(model, block, role) for role in LAYERS)
    return query, key, value


def _linear_of(block: Block, role: str) -> Linear:
    linears = _linears(block)
    named = [linear for linear in linears if _role(linear) == role]
    joint = [linear for linear in linears if linear.projections > 1]
    if not named and not joint:
        raise NotApplicable(f"its attention has no weight of {role}s")
    return named[0] if named else joint[-1]


def _rows(model: nn.Module, block: Block, role: str) -> Tensor:
    linear, attention = _linear_of(block, role), block.attention()
    weight = model.get_parameter(linear.weight)
    if linear.projections <= 1:
        return weight
    width = attention.heads * attention.head_channels
    index = {"query": 0, "key": linear.projections - 2, "value": linear.projections - 1}[role]  # q, k, v; or k, v
    return weight[index * width : (index + 1) * width]


def projection(model: nn.Module, block: Block) -> Tensor:
    """The output projection of a block's attention, (channels, heads × value channels)."""
    attention, linears = block.attention(), _linears(block)
    last = linears[-1] if linears else None
    if last is None or last.inputs != attention.heads * attention.value_channels or last.outputs != block.channels:
        raise NotApplicable("its attention has no output projection")
    return model.get_parameter(last.weight)


def mlp_layers(model: nn.Module, block: Block) -> tuple[Tensor, Tensor]:
    """The weights of a two-layer MLP. A gated MLP, which has no Lipschitz constant, raises `NotApplicable`."""
    linears = block.branch("mlp").linears
    if len(linears) != 2 or linears[0].outputs != linears[1].inputs:
        raise NotApplicable("its MLP is not two linear layers with an activation between them")
    return model.get_parameter(linears[0].weight), model.get_parameter(linears[1].weight)
